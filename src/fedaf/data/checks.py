"""The check of a data set that custom code made."""

from dataclasses import replace

import torch
from torch import Tensor

from fedaf.data.dataset import DataSet, Split
from fedaf.data.labels import as_array, grouped, one_per_image, resolve, unique_names
from fedaf.data.problems import wrong_classes, wrong_shape
from fedaf.errors import UserError

_PLACE = " in the DataSet"


def checked(data: DataSet) -> DataSet:
    """Return a data set whose labels, domains and clients are int64; those of ``data`` may be any whole numbers.

    Raises:
        UserError: If images, labels, domains, clients, names or normalisation constants do not fit each other.
    """
    classes = unique_names("classes", data.classes)
    if data.num_classes < 2 or len(classes) not in (0, data.num_classes):
        what = f"the DataSet has num_classes {data.num_classes} and {len(classes)} names in classes"
        raise wrong_classes(f"{what}; expected at least 2 classes, and a name for each of them or no names.")
    parts = {"train": data.train, "test": data.test}
    if data.selection is not None:
        parts["selection"] = data.selection
    for part, split in parts.items():
        _check_images(part, split.images, data.train.images)
    _check_normalisation(data, data.train.images.shape[1])
    labels = {part: _labels(part, split, data, classes) for part, split in parts.items()}
    counts = {"train": len(data.train.images), "test": len(data.test.images)}
    given = {
        "domain_train": data.train.domains,
        "domain_test": data.test.domains,
        "client_train": data.train.clients,
    }
    groups = {key: as_array(numbers) for key, numbers in given.items() if numbers is not None}
    domains, domain_names = grouped("domain", groups, unique_names("domains", data.domains), counts, _PLACE)
    of_train = {"train": counts["train"]}
    clients, client_names = grouped("client", groups, unique_names("clients", data.clients), of_train, _PLACE)
    return replace(
        data,
        train=Split(data.train.images, labels["train"], *(found[0] if found else None for found in (domains, clients))),
        test=Split(data.test.images, labels["test"], domains[1] if domains else None),
        classes=classes,
        domains=domain_names,
        clients=client_names,
        selection=None if data.selection is None else replace(data.selection, labels=labels["selection"]),
    )


def _check_images(part: str, images: Tensor, of_train: Tensor) -> None:
    if not isinstance(images, Tensor):
        found = f"a {type(images).__module__}.{type(images).__qualname__}"
        raise wrong_shape(f"the {part} images of the DataSet are {found}; expected a tensor uint8 [N, C, H, W].")
    if images.dtype != torch.uint8 or images.ndim != 4 or 0 in images.shape:
        found = f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
        raise wrong_shape(f"the {part} images of the DataSet are {found}; expected uint8 [N, C, H, W].")
    if images.shape[1:] != of_train.shape[1:]:
        shapes = f"{list(images.shape[1:])}, but the train images {list(of_train.shape[1:])}"
        raise wrong_shape(f"the {part} images of the DataSet have [C, H, W] of {shapes}; give the same size.")


def _check_normalisation(data: DataSet, channels: int) -> None:
    if len(data.mean) != channels or len(data.std) != channels or min(data.std) <= 0:
        what = f"the DataSet has the mean {tuple(data.mean)} and the std {tuple(data.std)}"
        expected = f"expected {channels} values of each, one per channel, with std above 0"
        raise UserError(f"{what}; {expected}.", code="FEDAF-DATA-NORMALISATION")


def _labels(part: str, split: Split, data: DataSet, classes: tuple[str, ...]) -> Tensor:
    where = f"the {part} labels of the DataSet"
    values = one_per_image(where, as_array(split.labels), len(split.images))
    (numbers,), _ = resolve("label", {where: values}, classes, data.num_classes)
    return numbers
