"""Condensed sets as a product: condense a data set of one owner, or export what a federation shared."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaf import config as configuration
from fedaf.common.files import write_atomically
from fedaf.config import Config
from fedaf.data import condensed_set
from fedaf.data.condensed_set import CondensedSet
from fedaf.data.dataset import DataSet, with_test
from fedaf.errors import UserError
from fedaf.federation.observer import Observer
from fedaf.methods.condensing import CondensingMethod
from fedaf.methods.registry import METHODS
from fedaf.runs.assembly import SharedData
from fedaf.runs.condensed import CondensedRun, condensed_run, condensing_methods, training_config
from fedaf.runs.condensed_card import card
from fedaf.runs.experiment import Experiment, execute, prepare

#: The names of the files in the folder that ``fedaf condense`` writes, and of the folder of its run.
STEM, RUN = "condensed", "run"
#: Tables of settings that one owner of all data has no use for.
_FEDERATED_ONLY = ("partition", "federation")


@dataclass(frozen=True, repr=False)
class Condensation:
    """The result of ``fedaf.condense``.

    Args:
        condensed: The condensed images, labels and class names.
        accuracy: Test accuracy in per cent of a fresh model that was trained on the condensed images alone.
        card: The card, as Markdown.
        directory: The folder with the set's files; ``None`` if it was not kept.
    """

    condensed: CondensedSet
    accuracy: float
    card: str
    directory: Path | None = None

    def __repr__(self) -> str:
        where = "" if self.directory is None else f", in {self.directory}"
        return f"Condensation({self.condensed!r}, accuracy from scratch {self.accuracy:.2f} %{where})"


def one_owner(given: Mapping[str, Any], preset: str | None = None) -> Config:
    """Return the configuration of a federation of one client that holds all data.

    Args:
        given: Settings by table. Those of partition and federation must be left out.
        preset: Name of the preset.

    Raises:
        UserError: A setting is wrong or has no effect here, or the method does not condense.
    """
    for table in _FEDERATED_ONLY:
        if given.get(table):
            setting = f"{table}.{next(iter(given[table]))}"
            what = f"{setting} has no effect, because condense works for one owner of all data"
            raise UserError(f"{what}; leave it out, or use fedaf run.", code="FEDAF-CONDENSE-SETTING")
    config = configuration.build({**given, "partition": {"kind": "iid", "clients": 1}}, preset=preset)
    if not issubclass(METHODS.find(config.method_name), CondensingMethod):
        what = f"the method {config.method_name} does not condense"
        raise UserError(f"{what}; expected one of {condensing_methods()}.", code="FEDAF-CONDENSE-METHOD")
    return config


def condense_into(experiment: Experiment, out: Path, observer: Observer, model: Any = None) -> Condensation:
    """Condense the data of an experiment of one owner into a new folder, and train a fresh model on the result.

    Args:
        experiment: The experiment, of the configuration that ``one_owner`` returned.
        out: The new folder.
        observer: Receives the events of both runs.
        model: The model that was passed from Python, if it was not a name.
    """
    execute(experiment, out / RUN, observer)
    found = condensed_run(out / RUN)
    training = training_config(found, f"npz:{STEM}.npz")
    accuracy = trained_from_scratch(training, found.condensed, experiment.dataset, observer, model)
    for format in condensed_set.FORMATS:
        if format == "npz" or condensed_set.parquet_problem(found.condensed) is None:
            write_atomically(out / f"{STEM}.{format}", condensed_set.to_bytes(found.condensed, format))
    text = _write_beside(found, training, out / f"{STEM}.npz", accuracy)
    return Condensation(found.condensed, accuracy, text, out)


def trained_from_scratch(
    training: Config, condensed: CondensedSet, data: DataSet, observer: Observer, model: Any = None
) -> float:
    """Return the test accuracy in per cent of a fresh model after training on a condensed set alone.

    Args:
        training: The configuration that ``training_config`` returned.
        condensed: The set.
        data: The data set with the test split.
        observer: Receives the events of the training.
        model: The model that was passed from Python, if it was not a name.
    """
    loaded = _Loaded(with_test(condensed.as_dataset(training.data.name), data))
    experiment = prepare(training, model=model, shared=loaded)
    with tempfile.TemporaryDirectory(prefix="fedaf-") as folder:
        result = execute(experiment, Path(folder) / RUN, observer)
    assert result.last_accuracy is not None, "the data of an owner have a test split"
    return result.last_accuracy


def export_condensed(
    run: str | Path, *, format: str = "npz", out: str | Path | None = None
) -> tuple[Path, CondensedRun]:
    """Write the condensed set of a run, with its card and the settings to train on it.

    Args:
        run: The run directory.
        format: ``npz`` or ``parquet``.
        out: The file. The card and the settings beside it have its name and the endings ``-card.md`` and
            ``-train.toml``. Unset: ``condensed/condensed.npz`` in the run directory.

    Returns:
        The file, and what is in it.

    Raises:
        UserError: The run has no condensed images, or a client's policy does not allow them to be published.
    """
    condensed_set.check_format(format)
    found = condensed_run(Path(run))
    file = Path(out) if out is not None else Path(run) / "condensed" / f"{STEM}.{format}"
    content = condensed_set.to_bytes(found.condensed, format)
    file.parent.mkdir(exist_ok=True)
    write_atomically(file, content)
    _write_beside(found, training_config(found, f"{format}:{file.name}"), file)
    return file, found


def _write_beside(found: CondensedRun, training: Config, file: Path, accuracy: float | None = None) -> str:
    """Write the settings and the card of a set beside its file, and return the card."""
    settings = settings_file(file)
    text = card(found, settings=settings.name, accuracy=accuracy)
    write_atomically(settings, training.to_toml())
    write_atomically(card_file(file), text)
    return text


def card_file(file: Path) -> Path:
    """Return where the card of the set in a file is."""
    return file.with_name(f"{file.stem}-card.md")


def settings_file(file: Path) -> Path:
    """Return where the settings that train on the set in a file are."""
    return file.with_name(f"{file.stem}-train.toml")


class _Loaded(SharedData):
    """Data that are in memory already, under whatever name a configuration has for them."""

    def __init__(self, data: DataSet) -> None:
        super().__init__()
        self._data = data

    def load(self, config: Config, *, watch: Any = None) -> DataSet:
        return self._data
