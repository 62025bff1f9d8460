"""Checks that a model fits the task and the federation. Each error says what to change in the model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedaf.common.registry import reason
from fedaf.models.backbone import Backbone
from fedaf.models.custom import first_difference
from fedaf.models.weights import initialise, reset_of
from fedaf.protocol import Architecture, Key, Task, UserError

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
    model = _guarded(
        lambda: architecture.build(_KEY), "the model's weights cannot be initialised", code="FEDAF-MODEL-RESET"
    )
    name = f"the model {type(model).__name__}"
    _check_tensors(model, name)
    _check_resets(model, name)
    again = architecture.build(_KEY)
    difference = first_difference(model, again)
    if difference:
        raise UserError(
            f"two networks of {name} from one key differ in {difference}; draw random numbers in its "
            "reset_parameters with torch only.",
            code="FEDAF-MODEL-RANDOM",
        )
    what = f"{name} cannot be moved to {device}"
    model, again = (_guarded(m.to, what, device, code="FEDAF-MODEL-DEVICE") for m in (model, again))
    images = torch.randn(2, *task.image_shape, generator=_KEY.torch()).to(device)
    _check_forward(model, again, images, task, name)
    _check_features(model, images, task, architecture.classifier, name)
    _check_fresh(again, name)


def _check_tensors(model: nn.Module, name: str) -> None:
    """Check that servers and clients can send, average and restore all parameters and buffers."""
    code = "FEDAF-MODEL-TENSORS"
    for tensor_name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"{name} has {tensor_name} in its state, which is not a tensor and cannot be sent; make it a buffer.",
                code=code,
            )
    for tensor_name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise UserError(
                f"{name} has the uninitialised parameter {tensor_name}; give its layer an input size instead of "
                "making it lazy.",
                code=code,
            )
    for tensor_name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise UserError(
                f"{name} has the parameter {tensor_name} of type {_short(parameter.dtype)}; make it float32, for "
                "example with model.float().",
                code=code,
            )
    for tensor_name, buffer in model.named_buffers():
        if buffer.is_complex() or buffer.layout != torch.strided or buffer.is_quantized:
            raise UserError(
                f"{name} has the buffer {tensor_name}, which is not a dense real tensor; make it one.", code=code
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"{name} has no parameter to train; set requires_grad on at least one.", code=code)
    first: dict[int, str] = {}
    for tensor_name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(parameter.data_ptr(), tensor_name)
        if other != tensor_name and parameter.numel():
            raise UserError(
                f"{name} has one parameter under two names, {other} and {tensor_name}; keep it in one module and call "
                "that module twice.",
                code=code,
            )


def _check_resets(model: nn.Module, name: str) -> None:
    for path, module in model.named_modules():
        parameters = [parameter for parameter, _ in module.named_parameters(recurse=False)]
        if parameters and reset_of(module) is None:
            where = f"its module {path} ({type(module).__name__})" if path else "it"
            raise UserError(
                f"{name} cannot get fresh weights, because {where} has the parameter {parameters[0]} but no "
                "reset_parameters; add reset_parameters(self) that draws it.",
                code="FEDAF-MODEL-RESET",
            )


def _check_fresh(model: nn.Module, name: str) -> None:
    """Check that every parameter is drawn anew, in place, on the device of the run."""
    code = "FEDAF-MODEL-RESET"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    devices = {parameter.device for parameter in model.parameters()}
    _guarded(initialise, f"{name} cannot get fresh weights", model, _KEY, code=code)
    for parameter_name, parameter in model.named_parameters():
        if parameter.isnan().any():
            raise UserError(
                f"reset_parameters of {name} does not change {parameter_name}; draw it there too.", code=code
            )
        if parameter.device not in devices:
            raise UserError(
                f"reset_parameters of {name} puts {parameter_name} on {parameter.device}; change it in place.",
                code=code,
            )


@torch.no_grad()
def _check_forward(model: nn.Module, again: nn.Module, images: Tensor, task: Task, name: str) -> None:
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
        _check_output(output, (len(batch), task.num_classes), f"{name} in {mode} mode")
        result: Tensor = output
        return result

    together = logits(model, images)
    if _differ(together, logits(model, images, draws=1)):
        raise UserError(
            f"{name} gives different logits for the same images in eval mode; switch its randomness off there, as "
            "F.dropout(x, training=self.training) does.",
            code="FEDAF-MODEL-EVAL",
        )
    for image, expected in zip(images.split(1), together.split(1), strict=True):
        if _differ(expected, logits(model, image)):
            raise UserError(
                f"in eval mode, the logits of {name} for an image depend on the other images of its batch; normalise "
                "with running statistics, or each image separately.",
                code="FEDAF-MODEL-EVAL",
            )
    if _differ(logits(model, images, train=True), logits(again, images, train=True)):
        raise UserError(
            f"two passes of {name} in train mode with the same seed differ; draw random numbers in its forward with "
            "torch only.",
            code="FEDAF-MODEL-RANDOM",
        )


def _check_output(output: Any, shape: tuple[int, int], who: str) -> None:
    expected = f"expected finite float32 logits {list(shape)}, one row per image and one column per class"
    if not isinstance(output, Tensor):
        given = f"a {type(output).__name__}"
    elif output.dtype != torch.float32 or tuple(output.shape) != shape:
        given = f"{_short(output.dtype)} {list(output.shape)}"
    elif not output.isfinite().all():
        given = "logits that are not finite"
    else:
        return
    raise UserError(f"{who} gives {given}; {expected}.", code="FEDAF-MODEL-OUTPUT")


def _check_features(model: nn.Module, images: Tensor, task: Task, classifier: str | None, name: str) -> None:
    """Check what FedAF needs: features before the classifier, and gradients through them to the images."""
    code = "FEDAF-MODEL-FEATURES"
    images = images.clone().requires_grad_()
    weights = dict(model.state_dict(keep_vars=True))
    advice = "set model.classifier to the layer after the features"
    features, logits = _guarded(
        lambda: Backbone(model, task, images.device, classifier)(weights, images),
        f"{name} gives no features",
        code=code,
        advice=advice,
    )
    if len(features) != len(images) or not features.is_floating_point():
        raise UserError(
            f"the features of {name} are {_short(features.dtype)} {list(features.shape)} for {len(images)} images; "
            f"expected one row of floats per image; {advice}.",
            code=code,
        )
    for what, values in (("features", features), ("logits", logits)):
        if not values.requires_grad or _gradient(values, images) is None:
            raise UserError(
                f"the {what} of {name} have no gradient to its images; compute them without detach, no_grad or argmax.",
                code=code,
            )


def _gradient(values: Tensor, images: Tensor) -> Tensor | None:
    gradient: Tensor | None = torch.autograd.grad(values.sum(), images, retain_graph=True, allow_unused=True)[0]
    return gradient


def _differ(logits: Tensor, others: Tensor) -> bool:
    return bool((logits - others).abs().max() > _ROUNDING * max(1e-6, float(logits.abs().max())))


def _guarded(
    step: Callable[..., Any], what: str, *arguments: Any, code: str, advice: str = "make that work first"
) -> Any:
    """Call ``step``, and turn any exception of a custom model into a ``UserError``."""
    try:
        return step(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} ({reason(error)}); {advice}.", code=code) from error


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
