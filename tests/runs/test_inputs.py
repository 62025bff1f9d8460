"""Images in every form become what a model was trained on."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedaf.data.catalog import load
from fedaf.runs.inputs import batches
from support.datafiles import pixels, png, write_tree
from support.errors import raises

GREY, COLOUR = (1, 8, 12), (3, 8, 12)
NHWC = pixels(5, 8, 12, 3)
NCHW = torch.from_numpy(NHWC).permute(0, 3, 1, 2)


def read(images, shape) -> torch.Tensor:
    return torch.cat(list(batches(images, shape)))


@pytest.mark.parametrize(
    "images",
    [NHWC, NCHW, NCHW.numpy(), torch.from_numpy(NHWC), list(NHWC), list(NCHW), [Image.fromarray(a) for a in NHWC]],
    ids=["NHWC", "NCHW tensor", "NCHW", "NHWC tensor", "list of HWC", "list of CHW", "Pillow"],
)
def test_images_of_the_models_shape_are_taken_as_they_are(images):
    assert torch.equal(read(images, COLOUR), NCHW)


@pytest.mark.parametrize("shape", [(8, 12), (1, 8, 12), (8, 12, 1), (1, 1, 8, 12), (1, 8, 12, 1)])
def test_one_grey_image_is_the_same_in_every_shape(shape):
    image = pixels(8, 12)
    assert torch.equal(read(image.reshape(shape), GREY), torch.from_numpy(image)[None, None])


def test_an_array_of_grey_images_needs_no_axis_for_channels():
    images = pixels(3, 8, 12)
    assert torch.equal(read(images, GREY), torch.from_numpy(images)[:, None])


def test_three_axes_are_a_colour_image_or_grey_images_by_what_the_model_takes():
    three = pixels(3, 8, 12)
    assert torch.equal(read(three, COLOUR), torch.from_numpy(three)[None])
    assert read(three, GREY).shape == (3, 1, 8, 12)


@pytest.mark.parametrize("shape", [(20, 24, 3), (20, 24, 4), (20, 24), (20, 24, 1), (2, 20, 24, 3), (2, 3, 20, 24)])
@pytest.mark.parametrize("model", [GREY, COLOUR])
def test_other_sizes_and_colours_are_converted(shape, model):
    assert read(np.full(shape, 200, np.uint8), model).shape[1:] == model


def test_arrays_files_and_pillow_images_are_converted_alike_and_as_in_a_folder_of_training_images(tmp_path):
    write_tree(tmp_path / "photos", {"cat": 10, "dog": 10}, shape=(80, 70, 3))
    trained = load(f"folder:{tmp_path / 'photos'}", tmp_path, image_size=16)
    expected = torch.cat([trained.train.images, trained.test.images])
    from_files = read(tmp_path / "photos", (3, 16, 16))
    assert sorted(map(tuple, from_files.flatten(1).tolist())) == sorted(map(tuple, expected.flatten(1).tolist()))
    opened = [Image.open(path) for path in sorted((tmp_path / "photos").rglob("*.png"))]
    assert torch.equal(read(opened, (3, 16, 16)), from_files)
    assert torch.equal(read(np.stack([np.asarray(image) for image in opened]), (3, 16, 16)), from_files)


def test_paths_keep_their_order(tmp_path):
    images = pixels(3, 8, 12)
    files = [png(tmp_path / f"{name}.png", image) for name, image in zip("cab", images, strict=True)]
    assert torch.equal(read(files, GREY), torch.from_numpy(images)[:, None])
    assert torch.equal(read(str(tmp_path), GREY), torch.from_numpy(images[[1, 2, 0]])[:, None])


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((2, 8, 12), np.float32), ["float32", "uint8"]),
        (pixels(3, 20, 20), ["[3, 20, 20]", "CHW or NHW"]),
        (pixels(2, 8, 12, 7), ["[2, 8, 12, 7]", "[N, 8, 12, 1]"]),
        (pixels(8), ["[8]"]),
        (pixels(0, 8, 12), ["[0, 8, 12]"]),
        ([], ["no images"]),
        ([1, 2], ["type int", "paths"]),
        (["a.png", pixels(8, 12)], ["type str"]),
        ([Image.new("F", (12, 8))], ["floating-point"]),
    ],
)
def test_what_is_not_images_is_refused(images, words):
    with raises("FEDAF-PREDICT-IMAGES") as refused:
        read(images, GREY)
    assert all(word in str(refused.value) for word in words)


def test_a_model_of_other_channels_takes_arrays_of_its_shape_only(tmp_path):
    images = pixels(2, 8, 12, 5)
    assert torch.equal(read(images, (5, 8, 12)), torch.from_numpy(images).permute(0, 3, 1, 2))
    for other in (pixels(2, 9, 9, 5), png(tmp_path / "a.png", pixels(8, 12))):
        with raises("FEDAF-PREDICT-IMAGES"):
            read(other, (5, 8, 12))


def test_files_that_cannot_be_read_are_counted_and_named(tmp_path):
    png(tmp_path / "good.png", pixels(8, 12))
    (tmp_path / "text.png").write_text("hello")
    with raises("FEDAF-PREDICT-UNREADABLE") as refused:
        read([tmp_path, tmp_path / "missing.png"], GREY)
    assert all(word in str(refused.value) for word in ("2 of 3", "text.png", "missing.png: the file does not exist"))


def test_a_folder_without_images_is_refused(tmp_path):
    with raises("FEDAF-PREDICT-IMAGES") as refused:
        read(tmp_path, GREY)
    assert str(tmp_path) in str(refused.value)
