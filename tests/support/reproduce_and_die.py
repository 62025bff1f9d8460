"""Reproduce a plan of digits and die by SIGKILL in the second round of its second run: reproduce_and_die.py FOLDER."""

import sys
from pathlib import Path

import torch

from support.digit_cells import FEDAF, FEDAVG, reproduced
from support.run_and_die import Killer


class SecondRun(Killer):
    """Lets the first run pass."""

    def started(self, *, title: str, **_: object) -> None:
        self.moment = "fit" if title.startswith("fedavg") else ""


torch.set_num_threads(1)
reproduced([FEDAF, FEDAVG], Path(sys.argv[1]), observer=SecondRun("", 2))
