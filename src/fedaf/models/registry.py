"""The models by name."""

from collections.abc import Callable
from typing import Any

from fedaf.common.registry import Registry
from fedaf.errors import UserError


def _check(name: str, found: object) -> Callable[..., Any]:
    if not callable(found):
        raise UserError(
            f"model {name!r} is {found!r}; expected an nn.Module or a factory of one.", code="FEDAF-MODEL-TYPE"
        )
    return found


#: A built-in entry builds a network from a task and the ``[model]`` table (``builtin.py``); any other entry is a
#: factory that takes (in_channels, image_size, num_classes) (``custom.py``).
MODELS: Registry[Callable[..., Any]] = Registry(
    "model",
    "fedaf.models",
    {
        "convnet": "fedaf.models.convnet:convnet",
        "resnet18": "fedaf.models.resnet:resnet18",
    },
    "module:factory",
    _check,
)
