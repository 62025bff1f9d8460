"""Starting weights from a safetensors file: the state dict that the global model has before round 1."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from fedaf.models.backbone import find_classifier
from fedaf.protocol import Architecture, Key, Task, Tensors, UserError

_MOST_NAMES = 12  # tensors of a message; a wrong file may differ in hundreds

log = logging.getLogger(__name__)


def read(path: Path, expected: str | None = None) -> tuple[dict[str, torch.Tensor], str]:
    """Read a state dict.

    Args:
        path: A safetensors file.
        expected: The SHA-256 that the file must have; ``None`` accepts any file.

    Returns:
        The tensors by name, and the SHA-256 of the file.

    Raises:
        UserError: The file cannot be read, is of another format, or is not the expected one.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        what = f"model.weights is {path}, which cannot be read ({error.strerror})"
        raise UserError(f"{what}; give the path of a safetensors file.", code="FEDAF-MODEL-WEIGHTS-READ") from error
    digest = hashlib.sha256(content).hexdigest()
    if expected is not None and digest != expected:
        what = f"{path} is not the file that the run began with: its SHA-256 is {digest}, not {expected}"
        advice = "restore the file, or name the place of a copy with --weights; another file needs a new run"
        raise UserError(f"{what}; {advice}.", code="FEDAF-MODEL-WEIGHTS-CHANGED")
    try:
        return safetensors.torch.load(content), digest
    except (SafetensorError, ValueError, KeyError) as error:
        what = f"model.weights is {path}, which is not a safetensors file ({error})"
        advice = "write one with safetensors.torch.save_file(model.state_dict(), FILE)"
        raise UserError(f"{what}; {advice}.", code="FEDAF-MODEL-WEIGHTS-READ") from error


def start_from(weights: Tensors, architecture: Architecture, task: Task, *, file: Path, name: str) -> Architecture:
    """Return the architecture whose networks come with these weights.

    The classifier may be missing in the file; it then starts from fresh weights.

    Args:
        weights: The state dict.
        architecture: The network to train.
        task: Its task.
        file: Where the weights come from, for messages.
        name: The name of the model, for messages.

    Raises:
        UserError: The weights do not fit the network; the message names every tensor at fault.
    """
    model = architecture.build(Key(0))
    with torch.no_grad():
        classifier = find_classifier(model.eval(), torch.zeros(1, *task.image_shape), architecture.classifier)
    head = {f"{classifier}.{key}" for key in model.get_submodule(classifier).state_dict()}
    is_headless = not head & weights.keys()
    problems = _problems(weights, model, task, optional=head if is_headless else set(), head=head)
    if problems:
        what = f"the weights in {file} do not fit the model {name}: {'; '.join(problems)}"
        advice = "use a file that was saved from this model with the same settings"
        raise UserError(f"{what}; {advice}.", code="FEDAF-MODEL-WEIGHTS")
    if is_headless:
        log.warning("%s has no tensors of the classifier %r, which starts from fresh weights", file, classifier)

    def build(key: Key) -> nn.Module:
        network = architecture.build(key)
        network.load_state_dict(weights, strict=False)
        return network

    return replace(architecture, build=build, is_trained=True)


def _problems(weights: Tensors, model: nn.Module, task: Task, *, optional: set[str], head: set[str]) -> list[str]:
    """Return a clause for each kind of difference, with the names of all tensors that have it."""
    own = model.state_dict()
    problems = []
    if missing := [name for name in own if name not in weights and name not in optional]:
        problems.append(f"it has no {_listed(missing)}")
    if unexpected := [name for name in weights if name not in own]:
        problems.append(f"the model has no {_listed(unexpected)}")
    both = {name: (weights[name], tensor) for name, tensor in own.items() if name in weights}
    shapes = {name: (list(given.shape), list(kept.shape)) for name, (given, kept) in both.items()}
    others = {name: pair for name, pair in shapes.items() if pair[0] != pair[1]}
    if others:
        problems.append(_listed([f"{name} is {given} and not {kept}" for name, (given, kept) in others.items()]))
    if any(_is_of_other_classes(*others[name], task.num_classes) for name in head & others.keys()):
        classes = next(given[0] for given, _ in (others[name] for name in sorted(head & others.keys())))
        advice = f"leave {_listed(sorted(head))} out of the file to start with a fresh classifier"
        problems.append(f"its classifier is for {classes} classes and the data have {task.num_classes}; {advice}")
    if bad := [name for name, (given, _) in both.items() if given.is_floating_point() and not given.isfinite().all()]:
        problems.append(f"values that are not finite are in {_listed(bad)}")
    return problems


def _is_of_other_classes(given: Sequence[int], kept: Sequence[int], classes: int) -> bool:
    return bool(given and kept) and kept[0] == classes and given[0] != classes and given[1:] == kept[1:]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
