"""Does a model fit the task and the federation? Each answer of no is one sentence that says what to do."""

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
_ROUNDING = 0.01  # of the largest logit: far above what TF32 rounds, far below what another image changes
_CPU = torch.device("cpu")


def validate(architecture: Architecture, task: Task, *, device: torch.device = _CPU) -> None:
    """Raise ``UserError`` for the first thing about the model that would fail, or go wrong silently, in a run on
    ``device``. A few passes of two images, and no training."""
    model = _guarded(lambda: architecture.build(_KEY), "the model's weights cannot be initialised")
    name = f"the model {type(model).__name__}"
    _check_tensors(model, name)
    _check_resets(model, name)
    again = architecture.build(_KEY)
    difference = first_difference(model, again)
    if difference:
        raise UserError(
            f"two networks of {name} from one key differ in {difference}; draw random numbers in its "
            "reset_parameters with torch alone."
        )
    model, again = (_guarded(m.to, f"{name} cannot be moved to {device}", device) for m in (model, again))
    images = torch.randn(2, *task.image_shape, generator=_KEY.torch()).to(device)
    _check_forward(model, again, images, task, name)
    _check_features(model, images, task, architecture.classifier, name)
    _check_fresh(again, name)


def _check_tensors(model: nn.Module, name: str) -> None:
    """Parameters and buffers must be such that servers and clients can send, average and restore them."""
    for tensor_name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UserError(f"{name} keeps {tensor_name} beside its tensors, which cannot be sent; make it a buffer.")
    for tensor_name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise UserError(
                f"{name} has the uninitialised parameter {tensor_name}; give its layer its input size instead of "
                "making it lazy."
            )
    for tensor_name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise UserError(
                f"{name} has the parameter {tensor_name} of type {_short(parameter.dtype)}; make it float32, for "
                "example with model.float()."
            )
    for tensor_name, buffer in model.named_buffers():
        if buffer.is_complex() or buffer.layout != torch.strided or buffer.is_quantized:
            raise UserError(f"{name} has the buffer {tensor_name}, which is not a plain real tensor; make it one.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"{name} has no parameter that is trained; give it one with requires_grad.")
    first: dict[int, str] = {}
    for tensor_name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(parameter.data_ptr(), tensor_name)
        if other != tensor_name and parameter.numel():
            raise UserError(
                f"{name} has one parameter under two names, {other} and {tensor_name}; keep it in one module and call "
                "that twice."
            )


def _check_resets(model: nn.Module, name: str) -> None:
    for path, module in model.named_modules():
        own = [parameter for parameter, _ in module.named_parameters(recurse=False)]
        if own and reset_of(module) is None:
            where = f"its module {path} ({type(module).__name__})" if path else "it"
            raise UserError(
                f"{name} cannot be given fresh weights, because {where} has the parameter {own[0]} and no "
                "reset_parameters; add reset_parameters(self) that draws it."
            )


def _check_fresh(model: nn.Module, name: str) -> None:
    """Every parameter must be drawn anew, on the device of the run too: none may stay what it was."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(torch.nan)
    devices = {parameter.device for parameter in model.parameters()}
    _guarded(initialise, f"{name} cannot be given fresh weights", model, _KEY)
    for parameter_name, parameter in model.named_parameters():
        if parameter.isnan().any():
            raise UserError(f"reset_parameters of {name} leaves {parameter_name} as it was; draw it there too.")
        if parameter.device not in devices:
            raise UserError(
                f"reset_parameters of {name} puts {parameter_name} on {parameter.device}; change it in place."
            )


@torch.no_grad()
def _check_forward(model: nn.Module, again: nn.Module, images: Tensor, task: Task, name: str) -> None:
    shape = "x".join(map(str, task.image_shape))
    advice = f"its forward must take float images [N, {', '.join(map(str, task.image_shape))}]"

    def logits(network: nn.Module, batch: Tensor, *, train: bool = False, draws: int = 0) -> Tensor:
        mode = "train" if train else "eval"
        what = f"{name} fails on a batch of {len(batch)} images of {shape} in {mode} mode"
        with _KEY.derive("forward", draws).seeded(images.device):
            given = batch.clone()
            output = _guarded(network.train(train), what, given, advice=advice)
        if not torch.equal(given, batch):
            raise UserError(f"{name} changes the images it is given; compute with a copy of them.")
        _check_output(output, (len(batch), task.num_classes), f"{name} in {mode} mode")
        result: Tensor = output
        return result

    together = logits(model, images)
    if _differ(together, logits(model, images, draws=1)):
        raise UserError(
            f"{name} gives other logits for the same images in eval mode; switch its randomness off there, as "
            "F.dropout(x, training=self.training) does."
        )
    for image, expected in zip(images.split(1), together.split(1), strict=True):
        if _differ(expected, logits(model, image)):
            raise UserError(
                f"{name} gives an image other logits in eval mode when other images are in its batch; normalise with "
                "running statistics, or each image alone."
            )
    if _differ(logits(model, images, train=True), logits(again, images, train=True)):
        raise UserError(
            f"two passes of {name} in train mode with the same seed differ; draw random numbers in its forward with "
            "torch alone."
        )


def _check_output(output: Any, shape: tuple[int, int], who: str) -> None:
    wanted = f"it must give float32 logits {list(shape)}, one row for each image and one column for each class"
    if not isinstance(output, Tensor):
        raise UserError(f"{who} gives a {type(output).__name__}; {wanted}.")
    if output.dtype != torch.float32 or tuple(output.shape) != shape:
        raise UserError(f"{who} gives {_short(output.dtype)} {list(output.shape)}; {wanted}.")
    if not output.isfinite().all():
        raise UserError(f"{who} gives logits that are not finite; {wanted}.")


def _check_features(model: nn.Module, images: Tensor, task: Task, classifier: str | None, name: str) -> None:
    """What FedAF takes of a model: features before the classifier, and gradients through them to the images."""
    images = images.clone().requires_grad_()
    weights = dict(model.state_dict(keep_vars=True))
    advice = "set model.classifier to the layer after them"
    features, logits = _guarded(
        lambda: Backbone(model, task, images.device, classifier)(weights, images),
        f"{name} gives no features",
        advice=advice,
    )
    if len(features) != len(images) or not features.is_floating_point():
        raise UserError(
            f"the features of {name} are {_short(features.dtype)} {list(features.shape)} for {len(images)} images, not "
            f"one row of floats for each; {advice}."
        )
    for what, values in (("features", features), ("logits", logits)):
        if not values.requires_grad or _gradient(values, images) is None:
            raise UserError(
                f"the {what} of {name} have no gradient to its images; compute them without detach, no_grad or argmax."
            )


def _gradient(values: Tensor, images: Tensor) -> Tensor | None:
    gradient: Tensor | None = torch.autograd.grad(values.sum(), images, retain_graph=True, allow_unused=True)[0]
    return gradient


def _differ(logits: Tensor, others: Tensor) -> bool:
    return bool((logits - others).abs().max() > _ROUNDING * max(1e-6, float(logits.abs().max())))


def _guarded(step: Callable[..., Any], what: str, *arguments: Any, advice: str = "make that work first") -> Any:
    try:
        return step(*arguments)
    except UserError:
        raise
    except Exception as error:  # the model is the user's, and may raise anything
        raise UserError(f"{what} ({reason(error)}); {advice}.") from error


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
