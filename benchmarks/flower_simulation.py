"""Compare FedAvg in fedaf with FedAvg in Flower's simulation engine (on Ray), on the same CPU.

Both train the same ConvNet on the same split of the digits (10 clients, Dirichlet 0.02), from the same weights, with
the same batches, epochs and learning rate. The script checks that every client had the same number of samples and made
the same number of steps, and that the accuracies agree.

Flower's side is ``flower_app.py``: a ClientApp, a ServerApp and the strategy FedAvg. It runs three times: as in
Flower's documentation, with a DataLoader and two CPUs per client (the default); without a DataLoader; and without a
DataLoader and with one CPU per client, so that Flower trains one client per core at a time.

Install Flower's simulation engine next to fedaf, and run the script on an idle machine:

    pip install -c constraints.txt --editable . 'flwr[simulation]>=1.41,<1.42'
    python benchmarks/flower_simulation.py

All sides take turns, each time in a new process. A round includes training, aggregation, evaluation on the test set,
and in fedaf a checkpoint. "Seconds per round" is the median over all rounds but the first of each run. "Start to end"
is the median time from the start of the process to the end of the last round. ``--json FILE`` writes all figures.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedaf
from fedaf.federation.observer import Observer
from fedaf.methods.averaging import Fit
from fedaf.methods.fedavg import FedAvg
from fedaf.protocol import Payload, ServerState

ROUNDS = 6
#: What runs each side, in a new process.
SIDES = {
    "fedaf": f"from flower_simulation import simulate; rounds = simulate(folder, {ROUNDS})",
    "Flower, DataLoader": "from flower_app import simulate; rounds = simulate(folder, 2, loader=True)",
    "Flower, 2 CPUs": "from flower_app import simulate; rounds = simulate(folder, 2)",
    "Flower, 1 CPU": "from flower_app import simulate; rounds = simulate(folder, 1)",
}
TOLERANCE = 2.0  # per cent; the sides round differently, and the differences grow during training
#: Nothing is reported to anyone, and Ray listens on the loopback interface only. The last variable does that on every
#: system, despite its name; Ray replaces a loopback address that is given to ``ray.init``.
PRIVATE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
_STEPS = "features.1.num_batches_tracked"  # BatchNorm counts the batches that it has seen

Run = dict[str, Any]


class CountingFit(Fit):
    """Local training that logs each client's samples and steps."""

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        before = int(server.model[_STEPS])
        work = {name: [int(r.scalars["samples"]), int(r.tensors[_STEPS]) - before] for name, r in replies.items()}
        return super().aggregate(server, replies).with_log(work=work)


class CountingFedAvg(FedAvg):
    """FedAvg that logs each client's samples and steps."""

    Fit = CountingFit


class Clock(Observer):
    """Notes when each round ended, and what was done in it."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        self.rounds.append({"accuracy": metrics["accuracy"], "work": metrics["work"], "ended": time.time()})


def simulate(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Run FedAvg in fedaf, and return its rounds. Flower's side reads the configuration and the split in ``folder``."""
    clock, method = Clock(), "flower_simulation:CountingFedAvg"
    fedaf.run(dataset="digits", method=method, clients=10, alpha=0.02, rounds=rounds, out=folder, observer=clock)
    return clock.rounds


def timed(side: str, folder: Path) -> Run:
    """Run one side in a new process."""
    out = folder.with_suffix(".json")
    program = f"""
import json, pathlib
folder, out = pathlib.Path({str(folder)!r}), pathlib.Path({str(out)!r})
{SIDES[side]}
out.write_text(json.dumps(rounds))
"""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **PRIVATE, "PYTHONPATH": path}
    load, started = os.getloadavg()[0], time.time()
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stderr}")
    rounds = json.loads(out.read_text())
    ends = [each["ended"] for each in rounds]
    return {
        "side": side,
        "load_before": load,
        "seconds": [end - start for start, end in zip([started, *ends], ends, strict=False)],  # the first: from start
        "accuracy": [each["accuracy"] for each in rounds],
        "work": [each["work"] for each in rounds],
    }


def check(ours: Run, theirs: Run) -> None:
    """Stop if two sides did not do the same work."""
    if ours["work"] != theirs["work"]:
        sys.exit(f"samples and steps differ:\n{ours['work']}\n{theirs['work']}")
    apart = max(abs(a - b) for a, b in zip(ours["accuracy"], theirs["accuracy"], strict=True))
    if apart > TOLERANCE:
        sys.exit(f"accuracies differ by {apart:.2f} %:\n{ours['accuracy']}\n{theirs['accuracy']}")


def figures_of(side: str, runs: list[Run]) -> dict[str, float]:
    """Return the times of one side."""
    mine = [run["seconds"] for run in runs if run["side"] == side]
    return {
        "seconds per round": statistics.median(second for seconds in mine for second in seconds[1:]),
        "start to end": statistics.median(map(sum, mine)),
    }


def report(runs: list[Run]) -> dict[str, Any]:
    """Print the figures of all sides, and return them."""
    figures = {side: figures_of(side, runs) for side in SIDES}
    ours = figures["fedaf"]
    ratios = {side: {name: value / ours[name] for name, value in of.items()} for side, of in figures.items()}
    print(f"\n{'':20}{'seconds per round':>19}{'ratio':>7}{'start to end, s':>17}{'ratio':>7}  accuracy by round, %")
    for side, run in zip(SIDES, runs, strict=False):
        (each, whole), (each_ratio, whole_ratio) = figures[side].values(), ratios[side].values()
        curve = " ".join(f"{accuracy:.2f}" for accuracy in run["accuracy"])
        print(f"{side:20}{each:19.2f}{each_ratio:7.2f}{whole:17.1f}{whole_ratio:7.2f}  {curve}")
    work = runs[0]["work"][0].values()
    samples, steps = (sum(numbers) for numbers in zip(*work, strict=True))
    print(f"On all sides, {len(work)} clients made {steps} steps on {samples} samples in a round.")
    return {"figures": figures, "ratios": ratios, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    given = parser.parse_args()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="fedaf-flower-") as scratch:
        for repeat in range(given.repeats):
            for side in SIDES:
                run = timed(side, Path(scratch) / f"run-{repeat}")
                seconds = " ".join(f"{second:.2f}" for second in run["seconds"])
                print(f"{side}: {seconds} s by round, the first from the start", flush=True)
                runs.append(run)
                check(runs[0], run)
    figures = report(runs)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
