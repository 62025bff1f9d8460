"""Run a small federation and die by SIGKILL at a named moment: run_and_die.py OUT SETTINGS_JSON MOMENT ROUND."""

import json
import os
import signal
import sys
from pathlib import Path

import torch

import fedaf
from fedaf.federation import checkpoint, model_folder, run_directory
from fedaf.federation.observer import Observer
from fedaf.federation.run_directory import RunDirectory
from fedaf.privacy import ledger, ledger_file
from fedaf.privacy.ledger_file import RELEASES


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killer(Observer):
    """Dies as soon as the phase called ``moment`` of ``round`` has got somewhere."""

    def __init__(self, moment: str, round: int) -> None:
        self.moment, self.last_round, self.round, self.phase = moment, round, 0, ""

    def round_started(self, round: int) -> None:
        self.round = round

    def phase_started(self, name: str, clients: int) -> None:
        self.phase = name

    def progressed(self, who: str, done: int, total: int) -> None:
        if (self.phase, self.round) == (self.moment, self.last_round):
            die()


def main() -> None:
    out, settings, moment, round = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.set_num_threads(1)
    killer = Killer(moment, round)
    write, exhibit = checkpoint.write_atomically, RunDirectory.write_exhibits
    durably = ledger.write_durably

    def write_and_die(path: Path, content: str | bytes) -> None:
        write(path, content)
        if moment == f"after {path.name}" and killer.round == round:
            die()

    def exhibit_and_die(self: RunDirectory, exhibits: object, round_now: int) -> object:
        if moment == "after metrics" and killer.round == round:
            die()
        return exhibit(self, exhibits, round_now)

    def write_durably_and_die(path: Path, content: bytes) -> None:
        durably(path, content)
        written = "release" if path.parent.name == RELEASES else path.name
        if moment == f"after {written}" and killer.round == round:
            die()

    ledger.write_durably = ledger_file.write_durably = write_durably_and_die
    checkpoint.write_atomically = run_directory.write_atomically = model_folder.write_atomically = write_and_die
    RunDirectory.write_exhibits = exhibit_and_die
    fedaf.run(**settings, out=out, observer=killer)


if __name__ == "__main__":
    main()
