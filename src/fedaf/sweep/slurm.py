"""An sbatch script with one array task for each open cell of a sweep, or for a few of them."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from fedaf.common.naming import slug

SCRIPT = "sweep.sbatch"
_MOST_TASKS = 1000  # Slurm's own limit, MaxArraySize, is 1001 unless a cluster sets it

_TEMPLATE = """\
#!/bin/bash
#SBATCH --job-name={job}
#SBATCH --array=0-{last}
#SBATCH --output={logs}
#SBATCH --requeue
# Add here what your cluster asks for, such as --partition, --time, --cpus-per-task and --gres=gpu:1.
# A task that is stopped continues after its last complete round when the script is submitted again.
set -euo pipefail

tasks=(
{tasks}
)
task=${{SLURM_ARRAY_TASK_ID:?is set by sbatch}}
if (( task < 0 || task >= ${{#tasks[@]}} )); then
    echo "there is no task $task; the last one is $(( ${{#tasks[@]}} - 1 ))" >&2
    exit 2
fi
cd {here}
exec {command} --cell "${{tasks[$task]}}"
"""


def script(cells: Sequence[str], command: Sequence[str], *, out: Path, here: Path, jobs: int = 1) -> str:
    """Return the text of the script.

    Args:
        cells: The names of the open cells.
        command: The command that runs the sweep, without ``--cell``.
        out: The folder of the sweep, where logs go.
        here: The directory to run in.
        jobs: Cells that a task runs at once; a task gets at least as many.
    """
    each = max(jobs, math.ceil(len(cells) / _MOST_TASKS))
    tasks = [",".join(cells[start : start + each]) for start in range(0, len(cells), each)]
    return _TEMPLATE.format(
        job=slug(out.resolve().name),
        last=len(tasks) - 1,
        logs=shlex.quote(str(out.resolve() / "slurm-%A_%a.log")),
        tasks="\n".join(f"    {shlex.quote(task)}" for task in tasks),
        here=shlex.quote(str(here)),
        command=shlex.join(command),
    )
