"""Trained models as files for other programs: ``torch.export`` and ONNX.

Both take uint8 images [N, C, H, W] and return probabilities float32 [N, classes]; normalisation is part of the file.
"""

import copy
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from fedaf.common.naming import nearest
from fedaf.common.registry import reason
from fedaf.protocol import UserError
from fedaf.runs.model import TrainedModel

#: Name of the description inside of a ``torch.export`` file.
DESCRIPTION = "model.json"

_ONNX_PACKAGES = ("onnx", "onnxscript")


class Classifier(nn.Module):
    """Normalisation, a network and a softmax in one: from uint8 images [N, C, H, W] to probabilities [N, classes].

    Args:
        model: A trained model, of which a copy on the CPU is used.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        # torch.export saves only tensors that are contiguous.
        self.network = copy.deepcopy(model.module).cpu().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        mean, std = (
            torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (model.task.mean, model.task.std)
        )
        self.register_buffer("scale", (1 / (255 * std)).float())
        self.register_buffer("shift", (-mean / std).float())
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images.float() * self.scale + self.shift)
        return logits.softmax(1)


def export(model: TrainedModel, format: str) -> bytes:
    """Return a model as the content of a file.

    Args:
        model: The model.
        format: ``torch`` for ``torch.export.load``, or ``onnx``.

    Raises:
        UserError: The format is unknown or needs a package that is missing, or the model cannot be exported.
    """
    check_format(format)
    _, write = FORMATS[format]
    classifier, example = Classifier(model), torch.zeros(2, *model.task.image_shape, dtype=torch.uint8)
    try:
        with _quietly():
            return write(classifier, example, _description(model))
    except UserError:
        raise
    except Exception as error:  # a custom network may do what cannot be exported, and exporters raise anything
        what = f"{model.card.model['name']} cannot be exported as {format} ({reason(error)})"
        raise UserError(f"{what}; avoid control flow on values in its forward.", code="FEDAF-EXPORT-FAILED") from error


def check_format(format: str) -> None:
    """Raise ``UserError`` if a format is unknown."""
    if format not in FORMATS:
        what = f"unknown format {format!r}{nearest(format, FORMATS)}; expected one of {', '.join(FORMATS)}."
        raise UserError(what, code="FEDAF-EXPORT-FORMAT")


def suffix(format: str) -> str:
    """Return how files of a known format end."""
    return FORMATS[format][0]


def _description(model: TrainedModel) -> dict[str, Any]:
    """What travels with the model."""
    card = model.card
    return {
        "classes": list(card.classes),
        "image_shape": list(card.image_shape),
        "dataset": card.dataset,
        "method": card.method["name"],
        "model": card.model["name"],
        "round": model.round,
        "client": model.client,
        "versions": dict(card.versions),
    }


def _program(classifier: nn.Module, example: Tensor) -> ExportedProgram:
    """Return the network as a graph for any number of images."""
    shapes = ({0: Dim("batch")},)
    try:
        return torch.export.export(classifier, (example,), dynamic_shapes=shapes)
    except Exception:  # strict mode analyses Python code instead of running it: `len(images)` then stays variable
        return torch.export.export(classifier, (example,), dynamic_shapes=shapes, strict=True)


def _torch_file(classifier: nn.Module, example: Tensor, description: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(_program(classifier, example), buffer, extra_files={DESCRIPTION: json.dumps(description)})
    return buffer.getvalue()


def _onnx_file(classifier: nn.Module, example: Tensor, description: Mapping[str, Any]) -> bytes:
    if missing := [name for name in _ONNX_PACKAGES if find_spec(name) is None]:
        what = f"ONNX needs {' and '.join(missing)}; install them with pip install {' '.join(missing)}."
        raise UserError(what, code="FEDAF-EXPORT-ONNX")
    program = torch.onnx.export(
        _program(classifier, example),
        dynamo=True,
        input_names=["images"],
        output_names=["probabilities"],
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update({name: json.dumps(value) for name, value in description.items()})
    content: bytes = program.model_proto.SerializeToString()
    return content


#: Ending and writer of each format.
FORMATS: Mapping[str, tuple[str, Callable[[nn.Module, Tensor, Mapping[str, Any]], bytes]]] = {
    "torch": (".pt2", _torch_file),
    "onnx": (".onnx", _onnx_file),
}


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress what the exporters say about themselves."""
    exporters = logging.getLogger("torch.onnx")
    before = exporters.level
    exporters.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        exporters.setLevel(before)
