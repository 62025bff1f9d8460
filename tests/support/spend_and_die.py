"""Spend from a privacy ledger in processes that are killed, or that run at the same time.

spend_and_die.py kill FOLDER: for n = 1, 2, ... a process obtains a release from a ledger of its own and is killed after
its n-th step on the disk; prints one JSON line for each, with what it had done by then.
spend_and_die.py race FOLDER PROCESSES: processes spend from one ledger at the same time, each five releases of its own;
prints one JSON list with the releases that were made.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from fedaf.errors import Refused
from fedaf.privacy.ledger import Ledger, Limit

MU, EARLIER, RELEASE = 0.5, "ab" * 8, "cd" * 8
RACE_LIMIT = Limit(max_epsilon=4.0, max_delta=1e-5)


def noise() -> dict[str, torch.Tensor]:
    return {"sums": torch.randint(-1000, 1000, (3, 4))}


def kill_after(step: int) -> None:
    """Kill this process after its so many-th call that changes the disk or forces a change to it."""
    done = 0

    def counting(call: Callable) -> Callable:
        def counted(*args, **options):
            nonlocal done
            result = call(*args, **options)
            done += 1
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted

    for name in ("mkdir", "open", "fchmod", "fsync", "replace", "unlink"):
        setattr(os, name, counting(getattr(os, name)))


def in_a_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def spend(folder: Path, step: int) -> None:
    made, used = os.open(folder.with_suffix(".made"), os.O_CREAT | os.O_WRONLY), folder.with_suffix(".used")

    def make() -> dict[str, torch.Tensor]:
        os.write(made, b"x")  # from here on noise may have been drawn
        return noise()

    kill_after(step)
    release = Ledger(folder).obtain(RELEASE, mu=MU, make=make, run="killed", round=1, limit=None)
    used.write_text(str(release["sums"].tolist()))


def kill(root: Path) -> None:
    for earlier in (0, 1):
        for step in range(1, 1000):
            folder = root / f"{earlier}-{step}"
            if earlier:
                Ledger(folder).obtain(EARLIER, mu=MU, make=noise, run="earlier", round=1, limit=None)
            _, status = os.waitpid(in_a_child(lambda folder=folder, step=step: spend(folder, step)), 0)
            made, used = folder.with_suffix(".made").stat().st_size, folder.with_suffix(".used").exists()
            print(json.dumps({"folder": str(folder), "earlier": earlier, "made": made, "used": used}), flush=True)
            if not os.WIFSIGNALED(status):
                assert os.waitstatus_to_exitcode(status) == 0
                break


def race(folder: Path, processes: int) -> None:
    start = time.monotonic() + 0.5
    made = folder.with_suffix(".made")
    log = os.open(made, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def work(number: int) -> None:
        time.sleep(max(0.0, start - time.monotonic()))
        for each in range(5):
            name = f"{number:04x}{each:04x}"

            def make(name: str = name) -> dict[str, torch.Tensor]:
                os.write(log, f"{name}\n".encode())
                time.sleep(0.01)
                return noise()

            try:
                Ledger(folder).obtain(name, mu=MU, make=make, run="race", round=each, limit=RACE_LIMIT)
            except Refused as refusal:
                if refusal.code != "FEDAF-PRIVACY-BUDGET":
                    raise

    for pid in [in_a_child(lambda number=number: work(number)) for number in range(processes)]:
        assert os.waitpid(pid, 0)[1] == 0
    print(json.dumps(made.read_text().split()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "kill":
        kill(Path(sys.argv[2]))
    else:
        race(Path(sys.argv[2]), int(sys.argv[3]))
