"""Checks that a model fits the task and the federation. Each error says what to change in the model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.parameter import is_lazy

from fedaf.common.registry import reason
from fedaf.models.backbone import Backbone, find_classifier
from fedaf.models.custom import described, first_difference
from fedaf.models.heads import heads
from fedaf.models.weights import initialise, reset_of
from fedaf.protocol import Architecture, Key, Task, UserError

#: A description of each problem, without its full stop, and its code.
Problems = Iterator[tuple[str, str]]

_KEY = Key(0).derive("validation")
_ROUNDING = 0.01  # share of the largest logit: far above TF32 rounding, far below the difference of two images
_MOST_NAMES = 20  # tensors of a message
_CPU = torch.device("cpu")


def validate(architecture: Architecture, task: Task, *, device: torch.device = _CPU) -> None:
    """Check a model with a few forward passes of two images, without training.

    Args:
        architecture: The model to check.
        task: The task that it must fit.
        device: The device of the run.

    Raises:
        UserError: For the first property that would make a run fail or give wrong results, with all tensors that
            lack it.
    """
    for problem, code in _problems(architecture, task, device):
        raise UserError(f"{problem}.", code=code)


def _problems(architecture: Architecture, task: Task, device: torch.device) -> Problems:
    build = partial(architecture.build, _KEY)
    model = _guarded(build, "the model's weights cannot be initialised", code="FEDAF-MODEL-RESET")
    name = f"the model {type(model).__name__}"
    yield from _tensor_problems(model, name)
    yield from _reset_problems(model, name)
    again = build()
    if difference := first_difference(model, again):
        advice = "draw random numbers in its reset_parameters with torch only"
        yield f"two networks of {name} from one key differ in {difference}; {advice}", "FEDAF-MODEL-RANDOM"
    what = f"{name} cannot be moved to {device}"
    model, again = (_guarded(m.to, what, device, code="FEDAF-MODEL-DEVICE") for m in (model, again))
    images = torch.randn(2, *task.image_shape, generator=_KEY.torch()).to(device)
    yield from _forward_problems(model, again, images, task, name)
    yield from _feature_problems(model, images, task, architecture.classifier, name)
    yield from _fresh_problems(again, name)


def _tensor_problems(model: nn.Module, name: str) -> Problems:
    """Check that servers and clients can send, average and restore all parameters and buffers."""
    code = "FEDAF-MODEL-TENSORS"
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    if found := [path for path, value in model.state_dict().items() if not isinstance(value, Tensor)]:
        yield f"{name} has {_names(found)} in its state, which cannot be sent; make each a tensor in a buffer", code
    if found := [path for path, tensor in {**parameters, **buffers}.items() if is_lazy(tensor)]:
        yield f"{name} has {_counted('uninitialised parameter', found)}; give each layer an input size", code
    if others := {path: p.dtype for path, p in parameters.items() if p.dtype != torch.float32}:
        types = ", ".join(dict.fromkeys(map(_short, others.values())))
        yield f"{name} has {_counted('parameter', list(others))} of type {types}; use float32 (model.float())", code
    sparse = [path for path, b in buffers.items() if b.is_complex() or b.layout != torch.strided or b.is_quantized]
    if sparse:
        yield f"{name} has {_counted('buffer', sparse)} that is not a dense real tensor; make it one", code
    if not any(parameter.requires_grad for parameter in parameters.values()):
        yield f"{name} has no parameter to train; set requires_grad on at least one", code
    first: dict[int, str] = {}
    shared = []
    for path, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(parameter.data_ptr(), path)
        if other != path and parameter.numel():
            shared.append(f"{other} and {path}")
    if shared:
        advice = "keep it in one module and call that module twice"
        yield f"{name} has one parameter under two names, {_names(shared)}; {advice}", code


def _reset_problems(model: nn.Module, name: str) -> Problems:
    found = []
    for path, module in model.named_modules():
        parameters = [parameter for parameter, _ in module.named_parameters(recurse=False)]
        if parameters and reset_of(module) is None:
            where = f"its module {path} ({type(module).__name__})" if path else "it"
            found.append(f"{where} has the {_counted('parameter', parameters, article='')} but no reset_parameters")
    if found:
        advice = "add reset_parameters(self) that draws what is named"
        yield f"{name} cannot get fresh weights, because {_names(found)}; {advice}", "FEDAF-MODEL-RESET"


def _fresh_problems(model: nn.Module, name: str) -> Problems:
    """Check that every parameter is drawn anew, in place, on the device of the run."""
    code = "FEDAF-MODEL-RESET"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    devices = {parameter.device for parameter in model.parameters()}
    _guarded(initialise, f"{name} cannot get fresh weights", model, _KEY, code=code)
    parameters = dict(model.named_parameters())
    if found := [path for path, parameter in parameters.items() if parameter.isnan().any()]:
        yield f"reset_parameters of {name} does not change {_names(found)}; draw every parameter there", code
    if found := [path for path, parameter in parameters.items() if parameter.device not in devices]:
        yield f"reset_parameters of {name} moves {_names(found)} to another device; change parameters in place", code


@torch.no_grad()
def _forward_problems(model: nn.Module, again: nn.Module, images: Tensor, task: Task, name: str) -> Problems:
    shape = "x".join(map(str, task.image_shape))
    advice = f"its forward must accept float images [N, {', '.join(map(str, task.image_shape))}]"

    def logits(network: nn.Module, batch: Tensor, *, train: bool = False, draws: int = 0) -> Tensor:
        mode = "train" if train else "eval"
        what = f"{name} fails on a batch of {len(batch)} images of {shape} in {mode} mode"
        with _KEY.derive("forward", draws).seeded(images.device):
            given = batch.clone()
            output = _guarded(network.train(train), what, given, code="FEDAF-MODEL-FORWARD", advice=advice)
        if not torch.equal(given, batch):
            raise UserError(f"{name} changes its input images; work on a copy of them.", code="FEDAF-MODEL-FORWARD")
        return _checked_output(output, (len(batch), task.num_classes), f"{name} in {mode} mode")

    together = logits(model, images)
    if _differ(together, logits(model, images, draws=1)):
        advice = "switch its randomness off there, as F.dropout(x, training=self.training) does"
        yield f"{name} gives different logits for the same images in eval mode; {advice}", "FEDAF-MODEL-EVAL"
    for image, expected in zip(images.split(1), together.split(1), strict=True):
        if _differ(expected, logits(model, image)):
            what = f"in eval mode, the logits of {name} for an image depend on the other images of its batch"
            yield f"{what}; normalise with running statistics, or each image separately", "FEDAF-MODEL-EVAL"
    if _differ(logits(model, images, train=True), logits(again, images, train=True)):
        advice = "draw random numbers in its forward with torch only"
        yield f"two passes of {name} in train mode with the same seed differ; {advice}", "FEDAF-MODEL-RANDOM"


def _checked_output(output: Any, shape: tuple[int, int], who: str) -> Tensor:
    expected = f"expected finite float32 logits {list(shape)}, one row per image and one column per class"
    if not isinstance(output, Tensor):
        given = described(output)
        if isinstance(output, Mapping | Sequence):
            expected += "; set model.output to the number or key of the logits, or return only them"
    elif output.dtype != torch.float32 or tuple(output.shape) != shape:
        given = f"{_short(output.dtype)} {list(output.shape)}"
    elif not output.isfinite().all():
        given = "logits that are not finite"
    else:
        return output
    raise UserError(f"{who} gives {given}; {expected}.", code="FEDAF-MODEL-OUTPUT")


def _feature_problems(model: nn.Module, images: Tensor, task: Task, classifier: str | None, name: str) -> Problems:
    """Check what FedAF needs: features before the classifier, and gradients through them to the images."""
    code = "FEDAF-MODEL-FEATURES"
    images = images.clone().requires_grad_()
    weights = dict(model.state_dict(keep_vars=True))
    advice = "set model.classifier to the layer after the features"

    def both() -> tuple[Tensor, Tensor]:
        return Backbone(model, task, images.device, classifier)(weights, images)

    features, logits = _guarded(both, f"{name} gives no features", code=code, advice=advice)
    if classifier is None:
        yield from _head_problems(model, images, name)
    if len(features) != len(images) or not features.is_floating_point():
        given = f"{_short(features.dtype)} {list(features.shape)} for {len(images)} images"
        yield f"the features of {name} are {given}; expected one row of floats per image; {advice}", code
    for what, values in (("features", features), ("logits", logits)):
        if not values.requires_grad or grad(values.sum(), images, retain_graph=True, allow_unused=True)[0] is None:
            advice = "compute them without detach, no_grad or argmax"
            yield f"the {what} of {name} have no gradient to its images; {advice}", code


def _head_problems(model: nn.Module, images: Tensor, name: str) -> Problems:
    """Check that the last Linear layer, which is the classifier if none is named, is the only head."""
    code = "FEDAF-MODEL-CLASSIFIER"
    found = heads(model.eval(), images)
    with torch.no_grad():
        last = find_classifier(model, images)
    if len(found) > 1:
        what = f"{name} has {len(found)} heads, {' and '.join(found)}: its logits come from all of them"
        advice = "set model.classifier to the one whose input is the features, for example"
        yield f"{what}; {advice} model.classifier={found[-1]}", code
    elif found and found != [last]:
        what = f"the logits of {name} come from its layer {found[0]}, but the last Linear layer it calls is {last}"
        yield f"{what}; set model.classifier={found[0]}", code


def _differ(logits: Tensor, others: Tensor) -> bool:
    return bool((logits - others).abs().max() > _ROUNDING * max(1e-6, float(logits.abs().max())))


def _guarded(step: Callable[..., Any], what: str, *given: Any, code: str, advice: str = "make that work first") -> Any:
    """Call ``step``, and turn any exception of a custom model into a ``UserError``."""
    try:
        return step(*given)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} ({reason(error)}); {advice}.", code=code) from error


def _names(found: Sequence[str]) -> str:
    """List what is at fault, shortened if there is very much of it."""
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return ", ".join(found[:_MOST_NAMES]) + more


def _counted(what: str, found: Sequence[str], article: str = "the ") -> str:
    return f"{article}{what}{'s' if len(found) > 1 else ''} {_names(found)}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
