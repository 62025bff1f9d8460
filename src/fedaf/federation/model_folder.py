"""The models that a run keeps for use: the last one, the best one, and what is needed to use them.

The folder ``model/`` of a run directory has ``last.safetensors``, with selection images also ``best.safetensors``, and
``model.json``, which describes both. It is written after the checkpoint of each round, and again when a run is resumed,
so a run that is killed in between loses nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import safetensors.torch
from safetensors import SafetensorError

from fedaf.common.files import write_atomically
from fedaf.protocol import Task, Tensors, UserError, pack

FOLDER, CARD = "model", "model.json"
FORMAT_VERSION = 1

Which = Literal["last", "best"]


@dataclass(frozen=True)
class Kept:
    """A model that is kept.

    Args:
        round: The round after which the global model was this one.
        selection_accuracy: Its accuracy on the selection images, in per cent; ``None`` without such images.
    """

    round: int
    selection_accuracy: float | None = None


@dataclass(frozen=True)
class ModelCard:
    """What is needed to use a model without its training data: the content of ``model.json``.

    Args:
        method: Name and options of the method, which may add a head to the model.
        model: Name and options of the model: the ``[model]`` table of the configuration.
        seed: Seed of the run, from which a custom model may draw buffers.
        dataset: Name of the data set.
        classes: Class names in label order.
        image_shape: Channels, height and width of an image.
        mean: Mean per channel for normalisation, of pixels in [0, 1].
        std: Standard deviation per channel.
        parameters: Number of parameters.
        versions: Versions of fedaf, PyTorch and Python.
        files: The models that are kept.
    """

    method: Mapping[str, Any]
    model: Mapping[str, Any]
    seed: int
    dataset: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    parameters: int
    versions: Mapping[str, str]
    files: Mapping[Which, Kept] = field(default_factory=dict)

    @property
    def which(self) -> Which:
        """The model to use: the best one if images were set aside to choose it by, else the last one."""
        return "best" if "best" in self.files else "last"

    @property
    def task(self) -> Task:
        """What the model was trained for."""
        return Task(self.dataset, *self.image_shape, len(self.classes), self.mean, self.std)

    def to_json(self) -> str:
        """Return the content of ``model.json``."""
        facts = {"format_version": FORMAT_VERSION, "which": self.which, **asdict(self)}
        return json.dumps(facts, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the content of ``model.json``.

        Raises:
            ValueError, TypeError, LookupError or AttributeError: It is not a card of this format.
        """
        facts = json.loads(text)
        if facts.pop("format_version") != FORMAT_VERSION:
            raise ValueError("it was written by a newer version of fedaf")
        del facts["which"]
        facts["files"] = {name: Kept(**kept) for name, kept in facts["files"].items()}
        sequences = {name: tuple(facts[name]) for name in ("classes", "image_shape", "mean", "std")}
        return cls(**{**facts, **sequences})


def keep(directory: Path, card: ModelCard, model: Tensors, now: Kept) -> ModelCard:
    """Write the model after a round as the last one, and as the best one if it is.

    The best model is that of the round with the highest accuracy on the selection images; the earlier of equal ones.
    Keeping the same round again changes nothing.

    Args:
        directory: The run directory.
        card: The card of the run, without files.
        model: The global model after the round.
        now: The round and its accuracy on the selection images.

    Returns:
        The card with the files that are there now.
    """
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    weights, best = pack(model), _best_before(folder, now.round)
    score = now.selection_accuracy
    if score is not None and (best is None or score > (best.selection_accuracy or 0)):
        write_atomically(path_of(directory, "best"), weights)
        best = now
    write_atomically(path_of(directory, "last"), weights)
    written = replace(card, files={"last": now} if best is None else {"last": now, "best": best})
    write_card(directory, written)
    return written


def write_card(directory: Path, card: ModelCard) -> None:
    """Write what is needed to use the models of a run."""
    (directory / FOLDER).mkdir(exist_ok=True)
    write_atomically(directory / FOLDER / CARD, card.to_json())


def _best_before(folder: Path, round: int) -> Kept | None:
    """Return the best model of the rounds before this one, if there is any."""
    try:
        best = ModelCard.from_json((folder / CARD).read_bytes()).files.get("best")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None  # not written yet
    return best if best is not None and best.round < round else None


def path_of(directory: Path, which: Which) -> Path:
    """Return the file of a model in a run directory."""
    return directory / FOLDER / f"{which}.safetensors"


def read_card(directory: Path) -> ModelCard | None:
    """Return the card of a run; ``None`` if it has none: it finished no round, or is of an older version of fedaf.

    Raises:
        UserError: The card is damaged, or of a newer version.
    """
    try:
        return ModelCard.from_json((directory / FOLDER / CARD).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _damaged(directory / FOLDER / CARD, error) from error


def read_weights(directory: Path, which: Which) -> Tensors:
    """Return the weights of a model that a run keeps.

    Raises:
        UserError: The file is missing or damaged.
    """
    path = path_of(directory, which)
    try:
        return safetensors.torch.load_file(path)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    what = f"{path} cannot be read ({type(error).__name__}: {error})"
    remedy = "update fedaf if a newer version wrote it, else resume the run, which writes its last model again"
    return UserError(f"{what}; {remedy}.", code="FEDAF-MODEL-DAMAGED")
