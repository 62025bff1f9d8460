"""Cells: the runs of a grid, and what is known of them."""

from collections.abc import Mapping
from typing import Any, Protocol

from fedaf.config import Config
from fedaf.sweep.identity import Identity


class Cell(Protocol):
    """One run of a grid. Cells are hashable and picklable."""

    @property
    def directory(self) -> str:
        """The directory of its run, below the folder of all runs."""

    @property
    def config(self) -> Config:
        """Its complete configuration."""

    @property
    def identity(self) -> Identity:
        """The settings that change its numbers."""


class FinishedRun(Protocol):
    """The run of a cell, after its last round."""

    @property
    def identity(self) -> Identity:
        """The settings that change its numbers."""

    @property
    def figures(self) -> Mapping[str, Any]:
        """The content of ``result.json``."""
