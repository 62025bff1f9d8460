"""Checks that a model fits the task and the federation. Each error says what to change in the model."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.parameter import is_lazy

from fedaf.common.registry import reason
from fedaf.models.backbone import Backbone
from fedaf.models.custom import first_difference
from fedaf.models.weights import initialise, reset_of
from fedaf.protocol import Architecture, Key, Task, UserError

#: A description of each problem, without its full stop, and its code.
Problems = Iterator[tuple[str, str]]

_KEY = Key(0).derive("validation")
_ROUNDING = 0.01  # share of the largest logit: far above TF32 rounding, far below the difference of two images
_CPU = torch.device("cpu")


def validate(architecture: Architecture, task: Task, *, device: torch.device = _CPU) -> None:
    """Check a model with a few forward passes of two images, without training.

    Args:
        architecture: The model to check.
        task: The task that it must fit.
        device: The device of the run.

    Raises:
        UserError: For the first property that would make a run fail or give wrong results.
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
    for path, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            yield f"{name} has {path} in its state, which is not a tensor and cannot be sent; make it a buffer", code
    for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            yield f"{name} has the uninitialised parameter {path}; give its layer an input size", code
    for path, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            dtype = _short(parameter.dtype)
            yield f"{name} has the parameter {path} of type {dtype}; make it float32 (model.float())", code
    for path, buffer in model.named_buffers():
        if buffer.is_complex() or buffer.layout != torch.strided or buffer.is_quantized:
            yield f"{name} has the buffer {path}, which is not a dense real tensor; make it one", code
    if not any(parameter.requires_grad for parameter in model.parameters()):
        yield f"{name} has no parameter to train; set requires_grad on at least one", code
    first: dict[int, str] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(parameter.data_ptr(), path)
        if other != path and parameter.numel():
            advice = "keep it in one module and call that module twice"
            yield f"{name} has one parameter under two names, {other} and {path}; {advice}", code


def _reset_problems(model: nn.Module, name: str) -> Problems:
    for path, module in model.named_modules():
        parameters = [parameter for parameter, _ in module.named_parameters(recurse=False)]
        if parameters and reset_of(module) is None:
            where = f"its module {path} ({type(module).__name__})" if path else "it"
            why = f"{where} has the parameter {parameters[0]} but no reset_parameters"
            advice = "add reset_parameters(self) that draws it"
            yield f"{name} cannot get fresh weights, because {why}; {advice}", "FEDAF-MODEL-RESET"


def _fresh_problems(model: nn.Module, name: str) -> Problems:
    """Check that every parameter is drawn anew, in place, on the device of the run."""
    code = "FEDAF-MODEL-RESET"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    devices = {parameter.device for parameter in model.parameters()}
    _guarded(initialise, f"{name} cannot get fresh weights", model, _KEY, code=code)
    for path, parameter in model.named_parameters():
        if parameter.isnan().any():
            yield f"reset_parameters of {name} does not change {path}; draw it there too", code
        if parameter.device not in devices:
            yield f"reset_parameters of {name} puts {path} on {parameter.device}; change it in place", code


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
        given = f"a {type(output).__name__}"
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
    if len(features) != len(images) or not features.is_floating_point():
        given = f"{_short(features.dtype)} {list(features.shape)} for {len(images)} images"
        yield f"the features of {name} are {given}; expected one row of floats per image; {advice}", code
    for what, values in (("features", features), ("logits", logits)):
        if not values.requires_grad or grad(values.sum(), images, retain_graph=True, allow_unused=True)[0] is None:
            advice = "compute them without detach, no_grad or argmax"
            yield f"the {what} of {name} have no gradient to its images; {advice}", code


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


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
