import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaf.data import pixels
from fedaf.data.pixels import normalise, take, to_uint8

EVERY_VALUE = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(3, 16, 16)

means = st.tuples(*[st.floats(0, 1, width=32)] * 3)
stds = st.tuples(*[st.floats(0.0625, 1, width=32)] * 3)


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    ],
)
def test_every_pixel_value_survives_the_round_trip(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    assert torch.equal(to_uint8(normalise(EVERY_VALUE, mean, std), mean, std), EVERY_VALUE)


@settings(deadline=None)
@given(mean=means, std=stds)
def test_every_pixel_value_survives_the_round_trip_with_any_constants(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    assert torch.equal(to_uint8(normalise(EVERY_VALUE, mean, std), mean, std), EVERY_VALUE)


def test_normalise_follows_its_formula_channel_by_channel() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    normalised = normalise(images, (0.5, 0.1, 0.0), (0.25, 0.5, 2.0))
    assert normalised.dtype == torch.float32
    torch.testing.assert_close(normalised.flatten(), torch.tensor([-2.0, 0.2, 0.5]))


def test_normalise_takes_any_leading_dimensions_and_leaves_its_argument() -> None:
    images = torch.randint(0, 256, (2, 4, 3, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    together = normalise(images, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert torch.equal(images, before)
    assert torch.equal(together[1, 2], normalise(images[1, 2], (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))


def test_values_outside_the_pixel_range_are_clamped() -> None:
    images = torch.tensor([-1e6, -0.1, 1.1, 1e6]).view(1, 1, 4)
    assert to_uint8(images, (0.0,), (1.0,)).flatten().tolist() == [0, 0, 255, 255]


def test_values_between_pixels_are_rounded_not_cut() -> None:
    images = (torch.tensor([9.4, 9.6, 254.6]) / 255).view(1, 1, 3)
    assert to_uint8(images, (0.0,), (1.0,)).flatten().tolist() == [9, 10, 255]


def test_to_uint8_leaves_its_argument() -> None:
    images = torch.full((1, 2, 2), 0.3, requires_grad=True)
    to_uint8(images, (0.5,), (0.25,))
    assert images.detach().eq(0.3).all()


def test_normalised_pixels_lie_in_memory_in_their_order_however_they_are_stored():
    stored = torch.randint(0, 256, (2, 4, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images = stored.permute(0, 3, 1, 2)
    normal = normalise(images, (0.5,) * 3, (0.25,) * 3)
    assert normal.is_contiguous()
    assert torch.equal(normal, normalise(images.contiguous(), (0.5,) * 3, (0.25,) * 3))


def test_picking_images_in_one_pass_is_normalising_those_picked() -> None:
    kernels = pytest.importorskip("fedaf.kernels.pixels")  # on a GPU, else in Triton's interpreter
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mean, std = (0.5, 0.1, 0.0), (0.25, 0.5, 2.0)
    images = torch.randint(0, 256, (9, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([8, 0, 3, 3])
    scale, shift = pixels._affine(mean, std, device)
    taken = kernels.take(images.to(device), rows.to(device), scale, shift)
    torch.testing.assert_close(taken.cpu(), normalise(images[rows], mean, std))
    torch.testing.assert_close(take(images, rows, mean, std), normalise(images[rows], mean, std), rtol=0, atol=0)


def test_without_kernels_for_a_gpu_there_is_a_line_in_the_log_and_pytorch_goes_on(caplog, monkeypatch) -> None:
    kernels = pytest.importorskip("fedaf.kernels.pixels")

    def cannot_build(*arguments: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(kernels, "take", cannot_build)
    pixels.kernels_work.cache_clear()
    try:
        assert not pixels.kernels_work(torch.device("cpu"))
        assert not pixels.kernels_work(torch.device("cpu"))
    finally:
        pixels.kernels_work.cache_clear()
    (record,) = caplog.records
    assert record.getMessage().endswith("RuntimeError: Failed to find C compiler")
