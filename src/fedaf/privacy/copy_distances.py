"""Distances between shared and private images, each of which is small for another kind of copy.

All of them work on images of at most 32 x 32 pixels; larger ones are averaged down first, which keeps a copy a copy. A
distance has the shape [parts, images, real]: ``parts`` are the pieces of an image that can be copied on their own.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.models.convnet import ConvNet
from fedaf.models.weights import initialise
from fedaf.protocol import Key

_SIDE = 32  # larger images are averaged down to this side
_FEATURES = 16  # the side at which features are computed
_COARSE = 10  # the side at which private images are preselected
_CANDIDATES = 64  # private images that are then compared at all shifts
_FLAT = 4 / 255  # a piece with a lower standard deviation has no content to recognise
_CONTENT = 1 / 10  # of the pixels of a piece must carry its contrast
_SMALLEST_PIECE = 5  # pixels; smaller ones are alike by chance
_IMAGES = 512  # private images at a time, to limit memory
_PAIRS = 2048  # images compared at all shifts at a time, to limit memory


def reduced(images: Tensor) -> Tensor:
    """Return uint8 images [n, C, H, W] as floats between -0.5 and 0.5, of at most 32 x 32 pixels."""
    size = [min(_SIDE, side) for side in images.shape[-2:]]
    parts = [_resized(part.float() / 255 - 0.5, size) for part in images.split(_IMAGES)]
    return torch.cat(parts)


def pixel_distance(images: Tensor, real: Tensor) -> Tensor:
    """Return the Euclidean distance of pixels: small for exact and noisy copies."""
    return torch.cdist(images.flatten(1), real.flatten(1)).unsqueeze(0)


def feature_distance(images: Tensor, real: Tensor) -> Tensor:
    """Return the distance of features of one fixed random ConvNet: small for copies with changed details or colours.

    Its weights come from a fixed key, and its input has at most 16 x 16 pixels. It has no normalisation layers; each
    image is standardised on its own before.
    """
    size = [min(_FEATURES, side) for side in images.shape[-2:]]
    network = _network(images.shape[1], *size).to(images.device)
    own, other = (
        torch.cat([network(_standardised(_resized(part, size))) for part in each.split(_IMAGES)])
        for each in (images, real)
    )
    return torch.cdist(own, other).unsqueeze(0)


def shift_distance(images: Tensor, real: Tensor) -> Tensor:
    """Return the distance at the best shift, mirrored or not: small for shifted, mirrored and recoloured copies.

    It is sqrt(2 - 2 r), with r the highest normalised cross-correlation over all shifts by at most a quarter of the
    height and width, of the part in which the two images overlap. It is computed for the 64 private images with the
    highest r at 10 x 10 pixels. The others have an infinite distance.
    """
    images, real = _grey(images), _grey(real)
    queries = torch.cat([images, images.flip(-1)])
    candidates = torch.arange(len(real), device=images.device).expand(len(images), -1)
    if len(real) > _CANDIDATES:
        coarse = [min(_COARSE, side) for side in images.shape[-2:]]
        likeness = _correlation_of_all(_resized(queries, coarse), _resized(real, coarse))
        candidates = torch.maximum(*likeness.tensor_split(2)).topk(_CANDIDATES).indices
    best = torch.maximum(*_correlation_of_some(queries, real, candidates.repeat(2, 1)).tensor_split(2))
    distance = torch.full((len(images), len(real)), torch.inf, device=images.device)
    return distance.scatter_(1, candidates, _from_correlation(best)).unsqueeze(0)


def tile_distance(images: Tensor, real: Tensor) -> Tensor:
    """Return the distance of each of 4 x 4 tiles to the same tile of private images: small for a copied part."""
    height, width = (side // 4 for side in images.shape[-2:])
    if min(height, width) < _SMALLEST_PIECE:
        return images.new_ones(1, len(images), len(real))
    images, real = _grey(images), _grey(real)
    own, flat = _pieces(_tiles(images, height, width))
    parts = [own @ _pieces(_tiles(part, height, width))[0].transpose(1, 2) for part in real.split(_IMAGES)]
    return torch.where(flat | _plain(own), 1, _from_correlation(torch.cat(parts, 2)))


def quarter_distance(images: Tensor, real: Tensor) -> Tensor:
    """Return the distance of each quadrant, mirrored or not, to the nearest of these: the quadrants of a private image,
    and the private image at half size. It is small for a quarter copied to any quadrant, and for a collage of four."""
    height, width = (side // 2 for side in images.shape[-2:])
    if min(height, width) < _SMALLEST_PIECE:
        return images.new_ones(1, len(images), len(real))
    images, real = _grey(images), _grey(real)
    own, flat = _pieces(_quadrants(torch.cat([images, images.flip(-1)]), height, width))
    found = []
    for part in real.split(_IMAGES):
        patterns = [*_quadrants(part, height, width), _resized(part, [height, width])]
        likeness = torch.stack([own @ _pieces(pattern)[0].T for pattern in patterns]).amax(0)
        found.append(likeness.unflatten(1, (2, len(images))))
    correlation = torch.cat(found, 3)
    mirrored = correlation[[1, 0, 3, 2], 1]  # a mirrored image has its left quadrants on the right
    return torch.where(
        (flat | _plain(own))[:, : len(images)], 1, _from_correlation(torch.maximum(correlation[:, 0], mirrored))
    )


#: What is compared, by name.
DISTANCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "pixels": pixel_distance,
    "features": feature_distance,
    "shifts": shift_distance,
    "tiles": tile_distance,
    "quarters": quarter_distance,
}


def _network(channels: int, height: int, width: int) -> nn.Module:
    """Return the layers before the classifier of the fixed ConvNet, deep enough for a map of about 4 x 4."""
    depth = max(0, min(height, width).bit_length() - 3)
    model = ConvNet(channels, height, width, 1, depth=depth, filters=32, norm="none")
    return initialise(model, Key(0).derive("copy audit")).get_submodule("features").requires_grad_(False)


def _resized(images: Tensor, size: Sequence[int]) -> Tensor:
    height, width = size
    return images if images.shape[-2:] == (height, width) else F.adaptive_avg_pool2d(images, (height, width))


def _grey(images: Tensor) -> Tensor:
    """Return the mean of the channels, which hardly depends on the balance of colours."""
    return images.mean(1, keepdim=True)


def _standardised(images: Tensor) -> Tensor:
    """Return images with mean 0 and standard deviation 1 in each channel, which removes brightness, contrast and the
    balance of colours. A flat channel becomes 0."""
    centred = images - images.mean((-2, -1), keepdim=True)
    deviation = centred.square().mean((-2, -1), keepdim=True).sqrt()
    return centred * torch.where(deviation < _FLAT, 0, 1 / deviation.clamp(min=_FLAT))


def _pieces(pieces: Tensor) -> tuple[Tensor, Tensor]:
    """Return grey pieces [..., 1, H, W] as vectors with mean 0 and norm 1, and which of them are flat."""
    centred = (pieces - pieces.mean((-2, -1), keepdim=True)).flatten(-3)
    norm = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
    flat = norm < _FLAT * centred.shape[-1] ** 0.5
    return centred / torch.where(flat, torch.inf, norm), flat


def _plain(pieces: Tensor) -> Tensor:
    """Return which pieces, as vectors of norm 1, have too little content to recognise: few pixels carry the norm."""
    concentration = pieces.pow(4).sum(-1, keepdim=True) * pieces.shape[-1]  # 1 if all pixels carry it alike
    return concentration.gt(1 / _CONTENT)


def _tiles(images: Tensor, height: int, width: int) -> Tensor:
    """Return the 4 x 4 tiles of images, [16, n, C, height, width]."""
    tiles: Tensor = images[..., : 4 * height, : 4 * width].unflatten(3, (4, width)).unflatten(2, (4, height))
    return tiles.permute(2, 4, 0, 1, 3, 5).flatten(0, 1)


def _quadrants(images: Tensor, height: int, width: int) -> Tensor:
    """Return the quadrants of images, [4, n, C, height, width]."""
    halves = (images[..., :height, :], images[..., -height:, :])
    return torch.stack([quadrant for half in halves for quadrant in (half[..., :width], half[..., -width:])])


def _from_correlation(correlation: Tensor) -> Tensor:
    """Return the distance of two vectors of norm 1 with this inner product."""
    return (2 - 2 * correlation).clamp(min=0).sqrt()


def _reach(images: Tensor) -> tuple[int, int]:
    """Return the largest shifts: a quarter of height and width."""
    return images.shape[-2] // 4, images.shape[-1] // 4


def _correlation_of_all(images: Tensor, real: Tensor) -> Tensor:
    """Return the highest correlation over all shifts of each image with each private image, one shift at a time."""
    height, width = images.shape[-2:]
    down, right = _reach(images)
    best = images.new_full((len(images), len(real)), -1.0)
    for y in range(-down, down + 1):
        for x in range(-right, right + 1):
            own, _ = _pieces(images[..., max(0, y) : height + min(0, y), max(0, x) : width + min(0, x)])
            other, _ = _pieces(real[..., max(0, -y) : height + min(0, -y), max(0, -x) : width + min(0, -x)])
            torch.maximum(best, own @ other.T, out=best)
    return best


def _correlation_of_some(images: Tensor, real: Tensor, candidates: Tensor) -> Tensor:
    """Return the highest correlation over all shifts of each image with its candidates, all shifts at once by FFT.

    The sum of products at each shift is a convolution; the sums over the overlapping part, from which its means and
    variances follow, are differences of cumulative sums.
    """
    chosen, candidates = candidates.unique(return_inverse=True)
    images, real = images.squeeze(1), real[chosen].squeeze(1)
    (height, width), (down, right) = images.shape[-2:], _reach(images)
    size = (height + down, width + right)  # zero padding, so that shifts do not wrap around
    rows = torch.arange(-down, down + 1, device=images.device)
    columns = torch.arange(-right, right + 1, device=images.device)
    pixels = (height - rows.abs()).unsqueeze(1) * (width - columns.abs())
    own, other = (torch.fft.rfft2(each, s=size) for each in (images, real))
    own_sums, own_norms = _overlaps(images, rows, columns, pixels)
    sums, norms = _overlaps(real, -rows, -columns, pixels)
    correlation = []
    for i in torch.arange(len(images), device=images.device).split(max(1, _PAIRS // candidates.shape[1])):
        j = candidates[i]
        products = torch.fft.irfft2(own[i].unsqueeze(1) * other[j].conj(), s=size)[..., rows, :][..., columns]
        covariance = products - own_sums[i].unsqueeze(1) * sums[j] / pixels
        correlation.append((covariance / (own_norms[i].unsqueeze(1) * norms[j])).flatten(2).amax(2))
    return torch.cat(correlation).clamp(max=1)


def _overlaps(images: Tensor, rows: Tensor, columns: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum over the part that remains after each shift, and the norm of its deviation from its mean; the norm
    of a flat part is infinite. Both are [n, rows, columns]."""
    height, width = images.shape[-2:]
    top, bottom = rows.clamp(min=0), height + rows.clamp(max=0)
    left, right = columns.clamp(min=0), width + columns.clamp(max=0)

    def sums(values: Tensor) -> Tensor:
        total = F.pad(values.cumsum(-2).cumsum(-1), (1, 0, 1, 0))
        low, high = total[..., top, :], total[..., bottom, :]
        return high[..., right] - high[..., left] - low[..., right] + low[..., left]

    found = sums(images)
    variance = (sums(images.square()) - found.square() / pixels) / pixels
    return found, torch.where(variance < _FLAT**2, torch.inf, (variance * pixels).clamp(min=0).sqrt())
