"""Images in the forms that users have them in, as the uint8 tensors that a model was trained on."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedaf.data.readers.images import ENDINGS, Mode, Tally, Unreadable, converted, decode_all, quietly
from fedaf.data.readers.trees import image_files
from fedaf.protocol import UserError

#: Files or folders, Pillow images, or uint8 arrays: one of them, or several.
Images = str | Path | Image.Image | np.ndarray | Tensor | Sequence[str | Path | Image.Image | np.ndarray | Tensor]

_Shape = tuple[int, int, int]  # channels, height, width

_MODES: dict[int, Mode] = {1: "L", 3: "RGB"}  # by the channels of the model
_PILLOW_CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency
_LAYOUTS = {2: ("HW",), 3: ("HWC", "CHW", "NHW"), 4: ("NHWC", "NCHW")}  # by the number of axes
_EXAMPLES = 3  # unreadable files that a message names

_refused = partial(UserError, code="FEDAF-PREDICT-IMAGES")


def batches(images: Images, shape: _Shape) -> Iterator[Tensor]:
    """Yield images as uint8 [N, C, H, W], in order.

    Args:
        images: Files or folders, Pillow images, or arrays.
        shape: Channels, height and width of the model's images.

    Raises:
        UserError: There are no images, they are of another kind, or some cannot be read.
    """
    if isinstance(images, np.ndarray | Tensor):
        yield _from_array(images, shape)
        return
    if not isinstance(images, str | Path | Image.Image | list | tuple):
        what = f"the images are an object of type {type(images).__name__}"
        raise _refused(f"{what}; expected paths, Pillow images, uint8 arrays or tensors, or a list of them.")
    items = [images] if isinstance(images, str | Path | Image.Image) else list(images)
    if not items:
        raise _refused("there are no images to predict; give at least one.")
    if not all(isinstance(item, str | Path) for item in items):
        yield torch.cat([_from_item(item, shape) for item in items])
        return
    files = find_files(item for item in items if isinstance(item, str | Path))
    tally = Tally(len(files))
    for _, some in decoded(files, shape, tally):
        yield some
    if tally.failures:
        raise unreadable(tally)


def find_files(paths: Iterable[str | Path]) -> list[str]:
    """Return the image files that paths name: files themselves, and all images below folders.

    Raises:
        UserError: A folder has no images.
    """
    files: list[str] = []
    for path in map(Path, paths):
        if not path.is_dir():
            files.append(str(path))
            continue
        inside = image_files(path)
        if not inside:
            endings = " ".join(sorted(ending[1:] for ending in ENDINGS))
            raise _refused(f"the folder {path} holds no images; expected files that end in {endings}.")
        files += [str(path / name) for name in inside]
    return files


def decoded(files: Sequence[str], shape: _Shape, tally: Tally) -> Iterator[tuple[list[int], Tensor]]:
    """Yield the row numbers and the images of some files at a time, converted as the images of ``folder:DIR`` are.

    Args:
        files: Image files.
        shape: Channels, height and width of the model's images.
        tally: Records the files that cannot be read.

    Raises:
        UserError: The model's images are neither grey nor RGB.
    """
    size, mode = (shape[2], shape[1]), _mode(shape)
    named = ((file, Path(file)) for file in files)
    with quietly():
        for images, rows in decode_all(named, mode=mode, size=size, tally=tally, progress=None):
            yield rows, _stacked(images, shape)


def unreadable(tally: Tally) -> UserError:
    """Return an error that counts the files that cannot be read, and names some of them."""
    count = len(tally.failures)
    some = [f"{name}: {reason}" for name, reason in tally.failures[:_EXAMPLES]]
    more = [f"and {count - _EXAMPLES} more"] if count > _EXAMPLES else []
    what = f"{count} of {tally.files} images cannot be read ({'; '.join([*some, *more])})"
    return UserError(f"{what}; check the paths, repair the files or leave them out.", code="FEDAF-PREDICT-UNREADABLE")


def _mode(shape: _Shape) -> Mode:
    if shape[0] not in _MODES:
        what = f"the model takes images of {shape[0]} channels, and image files have 1 or 3"
        raise _refused(f"{what}; give uint8 arrays [N, {', '.join(map(str, shape))}].")
    return _MODES[shape[0]]


def _from_item(item: object, shape: _Shape) -> Tensor:
    """Return one item of a list that does not only hold paths."""
    if isinstance(item, np.ndarray | Tensor):
        return _from_array(item, shape)
    if isinstance(item, Image.Image):
        return _from_pillow([item], shape)
    what = f"a list of images holds an object of type {type(item).__name__}"
    raise _refused(f"{what}; expected only paths, or only Pillow images and uint8 arrays.")


def _from_pillow(images: Iterable[Image.Image], shape: _Shape) -> Tensor:
    mode = _mode(shape)
    try:
        return _stacked(np.stack([converted(image, mode=mode, size=(shape[2], shape[1])) for image in images]), shape)
    except Unreadable as reason:
        raise _refused(f"an image cannot be used: {reason}; convert it to grey or RGB.") from reason


def _stacked(images: np.ndarray, shape: _Shape) -> Tensor:
    """Return [N, H, W] or [N, H, W, 3] as [N, C, H, W]."""
    return torch.from_numpy(images.reshape(len(images), *shape[1:], shape[0])).permute(0, 3, 1, 2).contiguous()


def _from_array(given: np.ndarray | Tensor, shape: _Shape) -> Tensor:
    array = given.detach().cpu().numpy() if isinstance(given, Tensor) else given
    if array.dtype != np.uint8:
        raise _refused(f"the images are {array.dtype}; expected uint8 pixels from 0 to 255.")
    layout = _layout(array.shape, shape)
    if "N" not in layout:
        array, layout = array[None], f"N{layout}"
    if "C" not in layout:
        array, layout = array[..., None], f"{layout}C"
    if layout == "NCHW":
        array = array.transpose(0, 2, 3, 1)
    if array.shape[1:] == (*shape[1:], shape[0]):
        return _stacked(np.ascontiguousarray(array), shape)
    return _from_pillow(
        (Image.fromarray(np.ascontiguousarray(a[..., 0] if a.shape[2] == 1 else a)) for a in array), shape
    )


def _layout(found: Sequence[int], shape: _Shape) -> str:
    """Return what the axes of an array are: the reading that is closest to the model's images.

    Raises:
        UserError: There is no reading, or several are equally close.
    """
    channels, height, width = shape
    by_distance: dict[int, list[str]] = {}
    for layout in _LAYOUTS.get(len(found), ()) if 0 not in found else ():
        axes = {"N": 1, "C": 1, **dict(zip(layout, found, strict=True))}
        if layout == "NHW" and (found[0] == 1 or found[2] in _PILLOW_CHANNELS):
            continue  # one grey image in any reading; or more likely an image in colour
        same_size = (axes["H"], axes["W"]) == (height, width)
        if same_size and axes["C"] == channels:
            by_distance.setdefault(0, []).append(layout)
        elif axes["C"] in _PILLOW_CHANNELS and channels in _MODES:
            by_distance.setdefault(1 if same_size else 2, []).append(layout)
    closest = by_distance[min(by_distance)] if by_distance else []
    if len(closest) == 1:
        return closest[0]
    what = f"an array of shape {list(found)} " + (f"may be {' or '.join(closest)}" if closest else "holds no images")
    raise _refused(f"{what}; expected uint8 [N, {height}, {width}, {channels}] or [N, {channels}, {height}, {width}].")
