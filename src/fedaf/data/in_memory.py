"""Data that are given from Python, or returned by ``module:factory``: arrays, tensors, torch data sets, clients' sets.

``as_dataset`` lists the accepted forms. Everything is copied to uint8 in memory once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Subset

from fedaf.common.registry import reason
from fedaf.data.checks import checked
from fedaf.data.dataset import DataSet, Split
from fedaf.data.labels import as_array, grouped, note_missing, one_per_image, resolve, unified, unique_names
from fedaf.data.problems import table, wrong_classes, wrong_shape
from fedaf.data.spec import PYTHON, custom_spec
from fedaf.data.storage.form import OPTIONAL, OTHER_NAMES
from fedaf.errors import UserError

_MAX_CHANNELS = 4
_FORMS = (
    "(x_train, y_train, x_test, y_test), (train, test), {'train': ..., 'test': ...}, {'x_train': ..., 'y_train': ..., "
    "'x_test': ..., 'y_test': ...}, {'clients': {'name': ...}, 'test': ...}, or a fedaf DataSet"
)
_ITEMS = "a torch Dataset of (image, label), or a pair (images, labels)"


def name_of(given: object) -> str:
    """Return the name under which a configuration saves data that are given from Python: the type of the first set."""
    while isinstance(given, tuple | list | Mapping) and given:
        given = next(iter(given.values() if isinstance(given, Mapping) else given))
    return f"{PYTHON}{type(given).__module__}.{type(given).__qualname__}"


def as_dataset(given: Any, name: str) -> DataSet:
    """Return data from Python as a data set.

    A set is a pair ``(images, labels)`` of arrays or tensors, or a torch ``Dataset`` whose items are
    ``(image, label)`` or ``{"image": image, "label": label}``; an image is a PIL image, an array or a tensor.

    Args:
        given: One of

            - ``(x_train, y_train, x_test, y_test)``,
            - a mapping of arrays with the keys of an .npz file: ``x_train``, ``y_train``, ``x_test``, ``y_test`` and
              optionally ``classes``, ``domain_train``, ``domain_test``, ``domains``, ``client_train``, ``clients``,
            - ``(train, test)`` or ``{"train": train, "test": test}``, both of them sets,
            - ``(clients, test)`` or ``{"clients": clients, "test": test}``: a list of sets, or a mapping from the
              client's name to its set. They are the natural partition,
            - a ``DataSet``.
        name: The name of the data set.

    Raises:
        UserError: If it is none of these, or images or labels are wrong.
    """
    if isinstance(given, DataSet):
        return checked(given)
    return _from_arrays(_by_key(given, name), name)


@dataclass(frozen=True)
class _Set:
    """Images uint8 [N, C, H, W], labels as given, and class names if the set has them."""

    images: Tensor
    labels: np.ndarray
    classes: tuple[str, ...] = ()


def _by_key(given: Any, name: str) -> dict[str, Any]:
    """Return the arrays of any of the accepted forms, by the keys of an .npz file."""
    if isinstance(given, Mapping):
        arrays = {key: given[other] for key, other in OTHER_NAMES.items() if other in given}
        arrays |= {key: given[key] for key in (*OTHER_NAMES, *OPTIONAL) if key in given}
        if OTHER_NAMES.keys() <= arrays.keys():
            return arrays
        if given.keys() >= {"clients", "test"}:
            return _clients(given["clients"], given["test"])
        if given.keys() >= {"train", "test"}:
            return _pair(given["train"], given["test"])
        raise _unknown(f"a {type(given).__name__} with the keys {', '.join(map(str, list(given)[:8]))}", name)
    if isinstance(given, tuple | list) and len(given) == 4 and _is_array(given[0]):
        return dict(zip(("x_train", "y_train", "x_test", "y_test"), given, strict=True))
    if isinstance(given, tuple) and len(given) == 2:
        first, test = given
        if isinstance(first, list | Mapping):
            return _clients(first, test)
        return _pair(first, test)
    raise _unknown(f"a {type(given).__name__}" + (f" of {len(given)}" if hasattr(given, "__len__") else ""), name)


def _unknown(found: str, name: str) -> UserError:
    return UserError(f"the data {name!r} are {found}; expected {_FORMS}.", code="FEDAF-DATA-FORM")


def _pair(train: Any, test: Any) -> dict[str, Any]:
    sets = {part: _set(given, part) for part, given in (("train", train), ("test", test))}
    labels, classes = _labels(sets)
    arrays = {"x_train": sets["train"].images, "x_test": sets["test"].images}
    return {**arrays, "y_train": labels["train"], "y_test": labels["test"], **classes}


def _labels(sets: "Mapping[str, _Set]") -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return labels that mean the same classes in all sets, and the class names if there are any."""
    keys = {where: f"the labels of {where}" for where in sets}
    labels, names = unified(
        {keys[where]: each.labels for where, each in sets.items()},
        {keys[where]: each.classes for where, each in sets.items()},
    )
    return {where: labels[key] for where, key in keys.items()}, {"classes": names} if names else {}


def _clients(clients: Any, test: Any) -> dict[str, Any]:
    """Join the sets of all clients."""
    if not isinstance(clients, list | tuple | Mapping) or not clients:
        what = f"the clients' sets are a {type(clients).__name__}"
        raise UserError(f"{what}; expected a list of sets, or a mapping from names to sets.", code="FEDAF-DATA-FORM")
    width = len(str(len(clients) - 1))
    if not isinstance(clients, Mapping):
        clients = {f"client-{number:0{width}d}": each for number, each in enumerate(clients)}
    sets = {str(name): _set(each, f"client {name}") for name, each in clients.items()}
    first = next(iter(sets))
    for name, each in sets.items():
        if each.images.shape[1:] != sets[first].images.shape[1:]:
            shapes = [list(found.images.shape[1:]) for found in (each, sets[first])]
            raise wrong_shape(f"client {name} has images [C, H, W] of {shapes[0]}, but client {first} of {shapes[1]}.")
    last = _set(test, "test")
    labels, classes = _labels({**{f"client {name}": each for name, each in sets.items()}, "test": last})
    return {
        "x_train": torch.cat([each.images for each in sets.values()]),
        "y_train": np.concatenate([labels[f"client {name}"] for name in sets]),
        "client_train": np.repeat(np.arange(len(sets)), [len(each.labels) for each in sets.values()]),
        "clients": list(sets),
        "x_test": last.images,
        "y_test": labels["test"],
        **classes,
    }


def _set(given: Any, where: str) -> _Set:
    """Return a pair of arrays or a torch data set."""
    if isinstance(given, tuple | list) and len(given) == 2 and _is_array(given[0]):
        images = as_images(given[0], f"the images of {where}")
        return _Set(images, one_per_image(f"the labels of {where}", as_array(given[1]), len(images)))
    listed = hasattr(given, "__len__") and hasattr(given, "__getitem__") and not isinstance(given, Mapping)
    if _is_array(given) or not listed or len(given) == 0:
        found = "empty" if listed and len(given) == 0 else f"a {type(given).__name__}"
        raise UserError(f"{where} is {found}; expected {_ITEMS}, with a length.", code="FEDAF-DATA-FORM")
    return _from_items(given, where)


def _from_items(given: Any, where: str) -> _Set:
    """Read every item of a torch data set once."""
    images, labels = [], []
    for number in range(len(given)):
        at = f"item {number} of {where}"
        try:
            item = given[number]
        except Exception as error:  # a user's data set may raise anything
            raise UserError(
                f"{at} cannot be read ({reason(error)}); fix the data set.", code="FEDAF-DATA-ITEM"
            ) from error
        image, label = _image_and_label(item, at)
        images.append(_one_image(image, at))
        labels.append(label)
        if images[-1].shape != images[0].shape:
            shapes = f"[C, H, W] of {list(images[-1].shape)}, but item 0 is {list(images[0].shape)}"
            raise wrong_shape(f"{at} is an image {shapes}; resize the images in the data set.")
    numbers = one_per_image(f"the labels of {where}", np.array(labels), len(images))
    return _Set(torch.stack(images), numbers, _class_names(given, where))


def _class_names(given: Any, where: str) -> tuple[str, ...]:
    """Return the class names that a torch data set has, or the one that it is a ``Subset`` of."""
    while isinstance(given, Subset) and not hasattr(given, "classes"):
        given = given.dataset
    names = getattr(given, "classes", ())
    if not isinstance(names, Sequence) or isinstance(names, str) or not all(isinstance(each, str) for each in names):
        return ()
    return unique_names(f"the data set of {where}", names)


def _image_and_label(item: Any, at: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        image = next((item[key] for key in ("image", "img", "pixel_values") if key in item), None)
        label = item.get("label")
    elif isinstance(item, tuple | list) and len(item) == 2:
        image, label = item
    else:
        image = label = None
    if image is None or label is None:
        found = f"the keys {', '.join(map(str, item))}" if isinstance(item, Mapping) else f"a {type(item).__name__}"
        raise UserError(f"{at} is {found}; expected (image, label).", code="FEDAF-DATA-ITEM")
    if isinstance(label, Tensor):
        label = label.numpy(force=True)
    if isinstance(label, np.generic | np.ndarray) and label.size == 1:
        label = label.item()
    if not isinstance(label, int | str):
        shown = f"{label!r:.40}"
        raise UserError(f"{at} has the label {shown}; expected a whole number or a name.", code="FEDAF-DATA-LABELS")
    return image, label


def _one_image(image: Any, at: str) -> Tensor:
    """Return one image as uint8 [C, H, W]."""
    if isinstance(image, Image.Image):
        grey = image.mode in ("1", "L")
        pixels = np.array(image.convert("L" if grey else "RGB"))
        return torch.from_numpy(pixels[..., None] if grey else pixels).permute(2, 0, 1)
    if not _is_array(image):
        raise wrong_shape(f"{at} has a {type(image).__name__} as image; expected a PIL image, an array or a tensor.")
    return as_images(image[None], f"the image of {at}")[0]


def as_images(given: Any, where: str) -> Tensor:
    """Return images as uint8 [N, C, H, W].

    The axis of the channels is the one with at most 4 entries, the last or the second. If both are that small, arrays
    have channels last and tensors have channels first. Floats must be in [0, 1] and become ``round(255 * x)``.

    Args:
        given: Array or tensor, uint8 or float, [N, H, W], [N, H, W, C] or [N, C, H, W].
        where: What they are, for messages.

    Raises:
        UserError: If the type, the shape or a value is another.
    """
    images = given.detach().cpu() if isinstance(given, Tensor) else torch.from_numpy(_plain(given, where))
    found = f"{where} are {str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
    if images.ndim == 2:
        raise table(found)
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise wrong_shape(f"{found}; expected [N, H, W], [N, H, W, C] or [N, C, H, W].")
    if images.ndim == 3:
        images = images[:, None]
    else:
        first, last = (images.shape[axis] <= _MAX_CHANNELS for axis in (1, 3))
        if not (first or last):
            raise wrong_shape(f"{found}; expected 1 to {_MAX_CHANNELS} channels, first or last.")
        if last and not (first and isinstance(given, Tensor)):
            images = images.permute(0, 3, 1, 2)
    if images.is_floating_point():
        low, high = images.min().item(), images.max().item()
        if not (low >= 0 and high <= 1):  # also not a number
            cause = "give pixels before normalisation" if low < 0 else "convert them to uint8"
            raise wrong_shape(f"{found} with values from {low:g} to {high:g}; expected uint8, or [0, 1]: {cause}.")
        return (images * 255).round().to(torch.uint8).contiguous()
    if images.dtype != torch.uint8:
        raise wrong_shape(f"{found}; expected uint8, or floats in [0, 1]: convert them with astype('uint8').")
    return images.contiguous()


def _plain(given: Any, where: str) -> np.ndarray:
    array = np.asarray(given)
    if array.dtype.kind not in "buif" or array.dtype.itemsize > 8:
        raise wrong_shape(f"{where} are {array.dtype} {list(array.shape)}; expected uint8, or floats in [0, 1].")
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return native.astype(np.int64) if array.dtype.kind == "u" and array.dtype.itemsize > 1 else native


def _from_arrays(arrays: Mapping[str, Any], name: str) -> DataSet:
    images = {part: as_images(arrays[f"x_{part}"], f"x_{part}") for part in ("train", "test")}
    first, second = (list(images[part].shape[1:]) for part in ("train", "test"))
    if first != second:
        raise wrong_shape(f"x_train has images [C, H, W] of {first}, but x_test of {second}; give the same size.")
    names = {key: unique_names(key, arrays.get(key, ())) for key in ("classes", "domains", "clients")}
    counts = {part: len(found) for part, found in images.items()}
    values = {f"y_{part}": one_per_image(f"y_{part}", as_array(arrays[f"y_{part}"]), counts[part]) for part in counts}
    labels, classes = resolve("label", values, names["classes"])
    if len(classes) < 2:
        raise wrong_classes(f"the data {name!r} have images of one class only; at least two are needed.")
    note_missing(name, classes, *labels)
    groups = {key: as_array(arrays[key]) for key in OPTIONAL if "_" in key and key in arrays}
    domains, domain_names = grouped("domain", groups, names["domains"], counts)
    clients, client_names = grouped("client", groups, names["clients"], {"train": counts["train"]})
    train = Split(images["train"], labels[0], *(found[0] if found else None for found in (domains, clients)))
    test = Split(images["test"], labels[1], domains[1] if domains else None)
    channels, height, width = first
    spec = custom_spec((channels, height, width), classes)
    return DataSet(name, train, test, len(classes), spec.mean, spec.std, classes, domain_names, clients=client_names)


def _is_array(given: object) -> bool:
    return isinstance(given, np.ndarray | Tensor)
