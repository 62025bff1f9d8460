"""Decoding images of the common file formats to uint8 pixels, one by one or many in parallel."""

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedaf.common.naming import printable
from fedaf.data.spec import Progress

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")  # some other formats of Pillow start programs
_BATCH = 64  # files that are decoded before they are written, fewer if they need more than
_MEMORY = 64 << 20  # bytes
_SIDEWAYS = {5, 6, 7, 8}  # EXIF orientations that swap width and height
_ORIENTATION = 0x0112

_DEFAULT_SIDE = 64
_MODES: "dict[int, Mode]" = {1: "L", 3: "RGB"}  # by channels

Mode = Literal["L", "RGB"]
Encoded = Path | bytes  # an image file, or its content
Shape = tuple[int, int, int]  # channels, height, width

log = logging.getLogger(__name__)


class Unreadable(Exception):
    """A file cannot be decoded; the message says why."""


@dataclass
class Tally:
    """Counts of image files; ``failures`` has the name of each file that could not be decoded, and the reason.

    Two files may have one name, because unprintable characters are replaced.
    """

    files: int
    done: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)


def decode(encoded: Encoded, *, mode: Mode, size: tuple[int, int]) -> np.ndarray:
    """Decode an image to [height, width] or [height, width, 3], as ``converted`` does."""
    with _opened(encoded) as image:
        return converted(image, mode=mode, size=size)


def converted(image: Image.Image, *, mode: Mode, size: tuple[int, int]) -> np.ndarray:
    """Convert an image to [height, width] or [height, width, 3].

    The image is rotated by its EXIF orientation, put on white where it is transparent, and resized to ``size`` (width,
    height) with antialiasing.

    Raises:
        Unreadable: Its pixels have too many bits.
    """
    upright = ImageOps.exif_transpose(image)
    plain = _plain(upright).convert(mode)
    if plain.size != size:
        plain = plain.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(plain, np.uint8)


def common(images: Iterable[Encoded], *, largest: int) -> tuple[tuple[int, int] | None, Mode]:
    """Return the common size (width, height) of all images, if no side is over ``largest``, and the common mode.

    Reads only headers, and the whole file where its size or mode is new.
    """
    size: tuple[int, int] | None = None
    differ, grey = False, True
    for encoded in images:
        try:
            with _opened(encoded) as image:
                image_size, is_grey = _upright_size(image), _is_grey(image)
                if size is None or image_size != size or is_grey != grey:
                    image.load()  # an unreadable file must not decide for the others
                grey = grey and is_grey
                differ = differ or max(image_size) > largest or (size or image_size) != image_size
                size = image_size
        except Unreadable:
            continue
        if differ and not grey:
            break
    return (None if differ else size), ("L" if grey else "RGB")


def target(
    root: Path, images: Callable[[], Iterable[Encoded]], side: int | None, colour: bool, shape: Shape | None
) -> tuple[tuple[int, int], Mode]:
    """Return the size (width, height) and mode that all images of a data set are converted to.

    Args:
        root: Where the images are, for messages.
        images: Iterates over all images.
        side: Resize to squares of this side; ``None`` keeps the size if all images have the same small size.
        colour: Convert to RGB even if all images are grey.
        shape: Convert to this shape, instead of ``side`` and ``colour``.
    """
    if shape:
        return (shape[2], shape[1]), _MODES[shape[0]]
    if side and colour:
        return (side, side), "RGB"
    size, mode = common(images(), largest=_DEFAULT_SIDE)
    if not (side or size):
        what = f"the images in {root} have different sizes, or sides of more than {_DEFAULT_SIDE} pixels"
        resized = f"they are resized to {_DEFAULT_SIDE} x {_DEFAULT_SIDE}"
        log.warning("%s; %s (data.image_size sets another size: --set data.image_size=128)", what, resized)
    return ((side, side) if side else size or (_DEFAULT_SIDE, _DEFAULT_SIDE)), ("RGB" if colour else mode)


def decode_all(
    images: Iterable[tuple[str, Encoded]], *, mode: Mode, size: tuple[int, int], tally: Tally, progress: Progress
) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Decode named images in order and in parallel: yield arrays [n, H, W] or [n, H, W, 3] with their indices.

    Unreadable images are left out and recorded in the tally by their names.
    """

    def try_to_decode(image: tuple[str, Encoded]) -> np.ndarray | str:
        try:
            return decode(image[1], mode=mode, size=size)
        except Unreadable as reason:
            return str(reason)

    step, first = max(1, min(_BATCH, _MEMORY // (3 * size[0] * size[1]))), 0
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for batch in _batches(images, step):
            some = dict(enumerate(pool.map(try_to_decode, batch), first))
            tally.failures += [
                (printable(batch[row - first][0]), why) for row, why in some.items() if isinstance(why, str)
            ]
            decoded = {row: image for row, image in some.items() if isinstance(image, np.ndarray)}
            tally.done += len(some)
            first += len(some)
            if progress:
                progress(tally.done, tally.files)
            if decoded:
                yield np.stack(list(decoded.values())), list(decoded)


def _batches(images: Iterable[tuple[str, Encoded]], most: int) -> Iterator[list[tuple[str, Encoded]]]:
    """Yield at most ``most`` images at a time, fewer if they are in memory and large."""
    batch: list[tuple[str, Encoded]] = []
    size = 0
    for name, image in images:
        batch.append((name, image))
        size += len(image) if isinstance(image, bytes) else 0
        if len(batch) == most or size >= _MEMORY:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def _opened(encoded: Encoded) -> Iterator[Image.Image]:
    try:
        with Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded, formats=_FORMATS) as image:
            if image.width * image.height > (Image.MAX_IMAGE_PIXELS or 1 << 62):
                raise Image.DecompressionBombError
            yield image
    except Unreadable:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unreadable("it has more pixels than is safe to decode") from None
    except UnidentifiedImageError:
        raise Unreadable("it is not an image of a supported format") from None
    except FileNotFoundError:
        raise Unreadable("the file does not exist") from None
    except Exception as error:  # on damaged files, decoders raise anything from struct.error to MemoryError
        raise Unreadable(f"{printable(str(error)) or type(error).__name__:.100}") from error


def _upright_size(image: Image.Image) -> tuple[int, int]:
    width, height = image.size
    sideways = width != height and image.getexif().get(_ORIENTATION) in _SIDEWAYS
    return (height, width) if sideways else (width, height)


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("1", "L", "LA", "La", "I") or image.mode.startswith("I;16")


def _plain(image: Image.Image) -> Image.Image:
    """Convert to eight bits per channel without transparency; grey stays grey, everything else becomes RGB."""
    if image.mode == "F":
        raise Unreadable("its pixels are floating-point numbers")
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _eight_bits(image)
    if image.has_transparency_data:
        grey = _is_grey(image)
        layered = image.convert("LA" if grey else "RGBA")
        white = Image.new(layered.mode, layered.size, "white")
        return Image.composite(layered, white, layered.getchannel("A")).convert("L" if grey else "RGB")
    return image.convert("L" if _is_grey(image) else "RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert 16-bit grey, which Pillow may also open as 32-bit integers."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise Unreadable("its grey values have more than 16 bits")
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        values[values == clear] = 0xFFFF
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def quietly() -> "warnings.catch_warnings[None]":
    """Suppress Pillow's warnings: a file is decoded, or it is reported as unreadable."""
    return warnings.catch_warnings(action="ignore")
