"""Single image files of all common formats."""

import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedaf.data.readers.images import Tally, Unreadable, common, decode, decode_all, quietly
from support.datafiles import pixels


def saved(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


def of(path: Path, mode="RGB", size=(2, 2)) -> list:
    with quietly():
        return decode(path, mode=mode, size=size).tolist()


RED, WHITE = [255, 0, 0], [255, 255, 255]


def test_the_orientation_of_a_camera_is_applied(tmp_path):
    array = pixels(4, 6, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate clockwise
    path = saved(tmp_path / "a.png", Image.fromarray(array), exif=exif)
    assert of(path, size=(4, 6)) == np.rot90(array, -1).tolist()
    assert common([path], largest=64) == ((4, 6), "RGB")


def test_a_palette_becomes_colours(tmp_path):
    image = Image.new("P", (2, 2), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    for name in ("a.png", "a.gif", "a.bmp"):
        assert of(saved(tmp_path / name, image)) == [[RED] * 2] * 2


def test_a_transparent_palette_is_laid_on_white(tmp_path):
    image = Image.new("P", (2, 1), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.putpixel((1, 0), 0)
    assert of(saved(tmp_path / "a.png", image, transparency=0), size=(2, 1)) == [[RED, WHITE]]


def test_transparency_is_laid_on_white(tmp_path):
    image = Image.new("RGBA", (2, 1), (255, 0, 0, 255))
    image.putpixel((1, 0), (255, 0, 0, 0))
    assert of(saved(tmp_path / "a.png", image), size=(2, 1)) == [[RED, WHITE]]
    half = Image.new("RGBA", (1, 1), (0, 0, 0, 127))
    assert of(saved(tmp_path / "half.png", half), size=(1, 1)) == [[[128] * 3]]


def test_grey_with_transparency_stays_grey(tmp_path):
    image = Image.new("LA", (2, 1), (40, 255))
    image.putpixel((1, 0), (40, 0))
    path = saved(tmp_path / "a.png", image)
    assert of(path, "L", (2, 1)) == [[40, 255]]
    assert common([path], largest=64)[1] == "L"
    plain = Image.new("L", (2, 1), 40)
    plain.putpixel((1, 0), 9)
    assert of(saved(tmp_path / "key.png", plain, transparency=9), "L", (2, 1)) == [[40, 255]]


def test_sixteen_bits_are_scaled_to_eight(tmp_path):
    deep = np.array([[0, 257, 0x8000, 0xFFFF]], np.uint16)
    for name in ("a.png", "a.tif"):
        path = saved(tmp_path / name, Image.fromarray(deep))
        assert of(path, "L", (4, 1)) == [[0, 1, 128, 255]]
        assert of(path, "RGB", (4, 1)) == [[[0] * 3, [1] * 3, [128] * 3, [255] * 3]]
        assert common([path], largest=64) == ((4, 1), "L")
    (tmp_path / "a.pgm").write_bytes(b"P5 4 1 65535\n" + deep.astype(">u2").tobytes())
    assert of(tmp_path / "a.pgm", "L", (4, 1)) == [[0, 1, 128, 255]]


def test_cmyk_becomes_rgb(tmp_path):
    path = saved(tmp_path / "a.jpg", Image.new("CMYK", (16, 16), (0, 255, 255, 0)), quality=95)
    assert np.abs(np.array(of(path, size=(16, 16))) - RED).max() <= 3
    assert common([path], largest=64)[1] == "RGB"


def test_two_colours_are_grey(tmp_path):
    path = saved(tmp_path / "a.png", Image.fromarray(np.array([[True, False]])))
    assert of(path, "L", (2, 1)) == [[255, 0]]


def test_shrinking_takes_the_mean_of_what_it_covers(tmp_path):
    array = np.kron(np.array([[0, 255], [255, 0]], np.uint8), np.ones((32, 32), np.uint8))
    stripes = np.tile(np.array([0, 255], np.uint8), (64, 32))
    small = np.array(of(saved(tmp_path / "b.png", Image.fromarray(array)), "L", (8, 8)))
    assert small[:3, :3].max() == 0
    assert small[:3, 5:].min() == 255
    striped = np.array(of(saved(tmp_path / "a.png", Image.fromarray(stripes)), "L", (4, 4)))
    assert np.abs(striped - 127.5).max() < 3


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(path: Path, side: int) -> Path:
    """A PNG that declares a huge image."""
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    return path


@pytest.mark.parametrize("side", [10_000, 60_000])
def test_a_bomb_is_unreadable(tmp_path, side):
    with quietly(), pytest.raises(Unreadable, match="pixels"):
        decode(bomb(tmp_path / "a.png", side), mode="L", size=(8, 8))


def test_what_is_no_image_is_unreadable(tmp_path):
    (tmp_path / "a.png").write_text("a letter")
    with pytest.raises(Unreadable, match="format"):
        of(tmp_path / "a.png")
    with pytest.raises(Unreadable, match="exist"):
        of(tmp_path / "b.png")
    whole = saved(tmp_path / "c.jpg", Image.fromarray(pixels(64, 64, 3))).read_bytes()
    (tmp_path / "c.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Unreadable, match="truncated"):
        of(tmp_path / "c.jpg")
    with pytest.raises(Unreadable, match="floating-point"):
        of(saved(tmp_path / "d.tif", Image.fromarray(np.ones((4, 4), np.float32))))
    with pytest.raises(Unreadable, match="16 bits"):
        of(saved(tmp_path / "e.tif", Image.fromarray(np.full((4, 4), 70_000, np.int32))))


def test_a_kind_that_would_start_a_program_is_no_image(tmp_path):
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n")
    with pytest.raises(Unreadable, match="format"):
        of(tmp_path / "a.png")


def test_files_are_decoded_in_order_and_unreadable_ones_left_out(tmp_path):
    names = [f"{number:03d}.png" for number in range(150)]
    for number, name in enumerate(names):
        saved(tmp_path / name, Image.new("L", (3, 3), number))
    (tmp_path / names[70]).write_text("no image")
    tally, seen = Tally(len(names)), []
    named = ((name, tmp_path / name) for name in names)
    pieces = decode_all(
        named, mode="L", size=(3, 3), tally=tally, progress=lambda done, total: seen.append((done, total))
    )
    found = [(row, int(image[0, 0])) for images, rows in pieces for row, image in zip(rows, images, strict=True)]
    assert found == [(number, number) for number in range(150) if number != 70]
    assert [name for name, _ in tally.failures] == ["070.png"]
    assert seen[-1] == (150, 150)
    assert seen == sorted(seen)
    assert len(seen) > 1


PNG_SIZE = 120


@settings(deadline=None)
@given(
    st.integers(0, PNG_SIZE), st.integers(0, 255), st.sampled_from(["png", "gif", "bmp", "tif", "jpg", "webp", "ppm"])
)
def test_a_changed_byte_gives_an_image_or_a_reason(tmp_path_factory, at, byte, ending):
    path = tmp_path_factory.getbasetemp() / f"changed.{ending}"
    Image.fromarray(pixels(5, 5, 3)).save(path)
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] = byte
    path.write_bytes(raw)
    with quietly(), suppress(Unreadable):
        assert decode(path, mode="RGB", size=(4, 4)).shape == (4, 4, 3)
