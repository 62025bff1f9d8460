"""The fused block gives the results of PyTorch's layers, on a GPU or else in Triton's interpreter."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from fedaf.kernels import fused
from fedaf.models.convnet import ConvNet

pytest.importorskip("triton")

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
CLOSE = {"rtol": 1e-4, "atol": 1e-5, "check_dtype": False}
first_blocks = pytest.mark.parametrize(
    ("shape", "padding"),
    [((3, 3, 8, 8), 1), ((3, 1, 4, 6), 3), ((1, 2, 4, 2), 1), ((2, 4, 6, 4), 1)],
    ids=["colour", "grey-padded", "one-image", "four-channels"],
)
norms = pytest.mark.parametrize("norm", ["batch", "none"])


@pytest.fixture(autouse=True)
def _exact(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if not CUDA:  # Triton 3.6 converts arrays to loop bounds in a way that NumPy 2.4 rejects
        from triton.runtime import interpreter

        patch = interpreter._patch_lang_tensor

        def patch_bounds_too(tensor, scope):
            patch(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

        monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_bounds_too)


def layers(inputs, norm, *, filters=16, padding=1, train=False):
    """Make a convolution and a norm with random weights and statistics."""
    torch.manual_seed(0)
    conv = nn.Conv2d(inputs, filters, 3, padding=padding)
    layer = nn.Identity()
    if norm == "batch":
        layer = nn.BatchNorm2d(filters, momentum=0.3)
        for tensor in (layer.weight, layer.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)
        for tensor in (layer.bias, layer.running_mean):
            nn.init.normal_(tensor)
    block = nn.ModuleList([conv, layer]).train(train).to(DEVICE)
    return block if train or norm == "none" else block.requires_grad_(False)


def plain(images, conv, norm):
    return F.avg_pool2d(F.relu(norm(conv(images))), 2)


def draw(*shape, requires_grad=False):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator).to(DEVICE).requires_grad_(requires_grad)


def supported(images, conv, norm):
    assert fused.supports(images, conv, norm)
    return fused.conv_norm_relu_pool(images, conv, norm)


def twice(block, images, fast=supported, slow=plain):
    """Return output, image gradient and modules after a backward pass, of ``fast`` and of ``slow`` in float64."""
    exact, exact_images = copy.deepcopy(block).double(), images.detach().double().requires_grad_(images.requires_grad)
    with fused.allowed():
        ours = fast(images, *block)
    theirs = slow(exact_images, *exact)
    if theirs.requires_grad:
        weights = torch.linspace(-1, 1, theirs.numel(), device=DEVICE, dtype=torch.float64).reshape(theirs.shape)
        (theirs * weights).sum().backward()
        (ours * weights.to(ours.dtype)).sum().backward()
    return (ours, images.grad, block), (theirs, exact_images.grad, exact)


def assert_same(ours, theirs):
    for mine, its in zip(ours[:2], theirs[:2], strict=True):
        assert (mine is None) == (its is None)
        if its is not None:
            torch.testing.assert_close(mine, its.to(mine.dtype), **CLOSE)
    expected = dict(theirs[2].named_parameters())
    for name, parameter in ours[2].named_parameters():
        assert (parameter.grad is None) == (expected[name].grad is None), name
        if parameter.grad is not None:
            assert parameter.grad.dtype == parameter.dtype
            torch.testing.assert_close(parameter.grad, expected[name].grad.float(), **CLOSE)
    expected = dict(theirs[2].named_buffers())
    for name, buffer in ours[2].named_buffers():
        torch.testing.assert_close(buffer, expected[name].to(buffer.dtype), **CLOSE)


@norms
@first_blocks
def test_the_first_block_gives_pooled_maps_and_the_gradient_of_its_images(shape, padding, norm):
    block = layers(shape[1], norm, padding=padding)
    images = draw(*shape, requires_grad=True)
    ours, theirs = twice(block, images)
    assert_same(ours, theirs)
    assert ours[0].is_contiguous(memory_format=torch.channels_last)


@norms
@first_blocks
def test_the_first_block_trains_as_its_layers_do(shape, padding, norm):
    block = layers(shape[1], norm, padding=padding, train=True)
    assert_same(*twice(block, draw(*shape)))


@norms
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("shape", [(3, 16, 8, 8), (5, 8, 2, 6)], ids=["square", "wide"])
def test_a_later_block_computes_as_its_layers_do(shape, train, norm):
    block = layers(shape[1], norm, train=train)
    images = draw(*shape, requires_grad=True)
    assert_same(*twice(block, images))


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_a_convolution_without_bias_is_supported(train):
    block = layers(3, "batch", train=train)
    block[0].bias = None
    assert_same(*twice(block, draw(2, 3, 4, 4, requires_grad=not train)))


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_images_and_filters_may_be_laid_out_in_any_way(train):
    block = layers(3, "batch", train=train).to(memory_format=torch.channels_last)
    images = draw(2, 3, 8, 4).to(memory_format=torch.channels_last)[:, :, ::2].requires_grad_(not train)
    assert_same(*twice(block, images))
    if train:
        assert block[0].weight.grad.stride() == block[0].weight.stride()


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_convnet_of_fused_blocks_is_the_same_network(depth, train):
    torch.manual_seed(0)
    model = ConvNet(3, 8, 8, 5, depth=depth, filters=16).to(DEVICE).train(train).requires_grad_(train)

    def chained(images, model):
        maps = images
        for conv, norm in zip(model.features[:-1:4], model.features[1:-1:4], strict=True):
            maps = supported(maps, conv, norm)
        return model.classifier(maps.flatten(1))

    images = draw(3, 3, 8, 8, requires_grad=not train)
    assert_same(*twice(nn.ModuleList([model]), images, chained, lambda images, model: model(images)))


@pytest.mark.parametrize("inputs", [3, 16])
def test_half_precision_gradients_point_the_same_way(inputs):
    autocast = torch.autocast("cuda", torch.bfloat16) if CUDA else nullcontext()
    half = torch.bfloat16 if CUDA else torch.float16  # the interpreter has no products of bfloat16

    def fast(images, conv, norm):
        with autocast:
            pooled = supported(images if CUDA else images.to(half), conv, norm)
        assert pooled.dtype == half
        return pooled.float()

    for train in (False, True):
        block = layers(inputs, "batch", train=train)
        images = draw(4, inputs, 8, 8, requires_grad=not train or inputs == 16)
        ours, theirs = twice(block, images, fast)
        pairs = [(ours[0], theirs[0]), (ours[1], theirs[1])] if images.requires_grad else [(ours[0], theirs[0])]
        if train:
            pairs += [
                (block[0].weight.grad, theirs[2][0].weight.grad),
                (block[1].weight.grad, theirs[2][1].weight.grad),
            ]
        for mine, its in pairs:
            assert mine.dtype == torch.float32
            assert (mine - its).norm() <= 0.06 * its.norm()
            assert F.cosine_similarity(mine.double().flatten(), its.flatten(), 0) >= 0.998


@pytest.mark.skipif(not CUDA, reason="no CUDA device here; the interpreter would take hours")
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("inputs", [3, 128])
def test_sums_over_many_tiles_are_complete(inputs, train):
    block = layers(inputs, "batch", filters=128, train=train)
    images = draw(96, inputs, 32, 32, requires_grad=not train or inputs == 128)
    ours, theirs = twice(block, images)
    pairs = [(ours[0], theirs[0])]
    if images.requires_grad:
        pairs.append((ours[1], theirs[1]))
    if train:
        learnt = [(block[0], theirs[2][0]), (block[1], theirs[2][1])]
        pairs += [(mine.weight.grad, its.weight.grad) for mine, its in learnt]
        pairs.append((block[1].running_var, theirs[2][1].running_var))
    for mine, its in pairs:  # near zero, rounding may flip a ReLU; a missing tile would be a thousandth of the batch
        assert (mine - its).norm() <= 5e-3 * its.norm()


def test_weights_and_statistics_that_are_substituted_are_used():
    class Fused(nn.Module):
        def __init__(self, conv, norm):
            super().__init__()
            self.conv, self.norm = conv, norm

        def forward(self, images):
            return supported(images, self.conv, self.norm)

    own = Fused(*layers(3, "batch", train=True))
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    given = {name: 2 * tensor.detach() + 1 for name, tensor in own.state_dict().items()}
    block = copy.deepcopy(own)
    block.load_state_dict(given)
    images = draw(2, 3, 4, 4)
    with fused.allowed():
        pooled = functional_call(own, given, (images,))
    torch.testing.assert_close(pooled, plain(images, block.conv, block.norm), **CLOSE)
    for name, tensor in block.state_dict().items():
        torch.testing.assert_close(given[name], tensor, **CLOSE)
        assert torch.equal(own.state_dict()[name], before[name])


@pytest.mark.parametrize("inputs", [3, 16])
def test_nan_is_propagated(inputs):
    images = draw(2, inputs, 4, 4)
    images[0, 0, 1, 1] = torch.nan
    for train in (False, True):
        block = layers(inputs, "batch", train=train)
        with fused.allowed():
            pooled = supported(images, *block)
        assert torch.equal(pooled.isnan(), plain(images, *layers(inputs, "batch", train=train)).isnan())


def test_blocks_are_fused_only_where_that_is_allowed():
    images, block = draw(2, 3, 4, 4), layers(3, "batch")
    assert not fused.supports(images, *block)
    with fused.allowed():
        with fused.allowed():
            assert fused.supports(images, *block)
        assert fused.supports(images, *block)
    assert not fused.supports(images, *block)


def conv(**options):
    return nn.Conv2d(**{"in_channels": 3, "out_channels": 16, "kernel_size": 3, "padding": 1, **options}).to(DEVICE)


@pytest.mark.parametrize(
    "layer",
    [
        conv(kernel_size=5),
        conv(stride=2),
        conv(dilation=2),
        conv(padding=(1, 2)),
        conv(padding="same"),
        conv(padding_mode="circular"),
        conv(out_channels=24),
        conv(out_channels=8),
        conv(out_channels=512),
        conv(out_channels=3 * 16, groups=3),
        conv().double(),
    ],
    ids=str,
)
def test_other_convolutions_are_left_to_pytorch(layer):
    with fused.allowed():
        assert fused.supports(draw(2, 3, 4, 4), conv(), nn.Identity())
        assert not fused.supports(draw(2, 3, 4, 4), layer, nn.Identity())


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 3, 4, 5), (0, 3, 4, 4), (3, 4, 4), (2, 1, 4, 4)], ids=str)
def test_other_images_are_left_to_pytorch(shape):
    with fused.allowed():
        assert not fused.supports(draw(*shape), conv(), nn.Identity())


@pytest.mark.parametrize(
    "norm",
    [
        nn.GroupNorm(16, 16),
        nn.BatchNorm2d(16, affine=False),
        nn.BatchNorm2d(16, track_running_stats=False),
        nn.BatchNorm2d(16, momentum=None),
    ],
    ids=str,
)
def test_other_norms_are_left_to_pytorch(norm):
    with fused.allowed():
        assert not fused.supports(draw(2, 3, 4, 4), conv(), norm.to(DEVICE))


def test_gradients_that_no_kernel_computes_are_left_to_pytorch():
    images, learns = draw(2, 3, 4, 4), draw(2, 3, 4, 4, requires_grad=True)
    with fused.allowed():
        assert not fused.supports(learns, *layers(3, "batch", train=True))
        assert fused.supports(images, *layers(3, "batch", train=True))
        assert not fused.supports(images, *layers(3, "batch").requires_grad_())
        with torch.no_grad():
            assert fused.supports(learns, *layers(3, "batch", train=True))
            assert fused.supports(images, *layers(3, "batch").requires_grad_())
