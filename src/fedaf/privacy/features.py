"""What a release describes: outputs of public networks, centred and clipped without private data."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fedaf.condensation.matching import distribution_matching
from fedaf.condensation.resampling import Networks
from fedaf.condensation.terms import Pairs
from fedaf.data.pixels import normalise
from fedaf.models.backbone import Backbone
from fedaf.models.convnet import ConvNet
from fedaf.protocol import Engine, Key, Task, Tensors

_RADIUS = 0.7  # of the median norm of the reference images' features; chosen without private data
_BATCH = 128  # images, always as many: the rounding of an image's features must not depend on how many there are
_TINY = 1e-12
_DEPTH = 3  # blocks of a release's networks; fewer for images below 8 x 8
_FREQUENCIES = 256  # of a characteristic function
_FREQUENCY = 3.0  # their standard deviation, for features of norm 1; chosen on held-out images


def release_network(task: Task, width: int) -> ConvNet:
    """Return the network of a first release: a small ConvNet, whatever model is trained.

    Narrow networks describe a class as well as wide ones do, and cost a fraction of the time.

    Args:
        task: The shape of images and the number of classes.
        width: Filters per block.
    """
    depth = max(1, min(_DEPTH, int(math.log2(min(task.height, task.width)))))
    return ConvNet(*task.image_shape, task.num_classes, depth=depth, filters=width)


def release_cost(model: nn.Module, task: Task, width: int) -> float:
    """Return the arithmetic of a first release's network, as a share of a model's.

    Args:
        model: The model.
        task: The shape of images and the number of classes.
        width: Filters per block of the release's network.
    """
    own, other = _flops(release_network(task, width), task), _flops(model, task)
    return own / max(1, other)


def _flops(model: nn.Module, task: Task) -> int:
    from torch.utils.flop_counter import FlopCounterMode  # takes 0.2 s, and few runs need it

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.zeros(1, *task.image_shape))
    flops: int = counter.get_total_flops()
    return flops


class BoundedOutputs:
    """Outputs phi_m(x) = clip((f_m(x) - centre_m) / radius_m) of ``count`` networks, each of norm at most 1.

    ``centre_m`` is the mean output for public reference images, and ``radius_m`` a fraction of the median distance to
    it. Real and condensed images pass through the same function, so clipping does not bias the match. The class is also
    the ``Networks`` of a condensation: step t uses network t modulo ``count``.

    With ``distribution`` a > 0 the output is (phi, a psi) / sqrt(1 + a^2), where psi has the components
    cos(t . phi + b) / sqrt(T) for T random frequencies t and phases b. The mean of phi describes where a class is, the
    mean of psi also how it spreads. Both have norm at most 1, and so has the output.

    Args:
        networks: The networks, by number.
        count: How many of them are used.
        backbone: Calls the networks.
        reference: Public images, normalised.
        engine: Computes.
        logits: Whether f_m are the logits of a network, instead of its features.
        distribution: Weight a of the second part.
    """

    def __init__(
        self,
        networks: Networks,
        count: int,
        backbone: Backbone,
        reference: Tensor,
        engine: Engine,
        *,
        logits: bool = False,
        distribution: float = 0.0,
    ) -> None:
        self.count, self._logits = count, logits
        self._networks, self._backbone, self._engine = networks, backbone, engine.in_fp32()
        reference = reference.to(engine.device)
        centres, radii = [], []
        for number in range(count):
            networks.draw(number)
            found = self._raw(networks.weights(), reference)
            centres.append(found.mean(0))
            radii.append((_RADIUS * (found - centres[-1]).norm(dim=1).median()).clamp(min=_TINY))
        self._centres, self._radii = torch.stack(centres), torch.stack(radii)
        self._centre, self._radius = self._centres[0].clone(), self._radii[0].clone()
        self._distribution, generator = distribution, Key(0).derive("frequencies").torch()
        frequencies = _FREQUENCY * torch.randn(len(self._centre), _FREQUENCIES, generator=generator)
        phases = 2 * math.pi * torch.rand(_FREQUENCIES, generator=generator)
        self._frequencies, self._phases = frequencies.to(engine.device), phases.to(engine.device)

    def draw(self, step: int) -> None:
        """Select the network of a step."""
        number = step % self.count
        self._networks.draw(number)
        self._centre.copy_(self._centres[number])
        self._radius.copy_(self._radii[number])

    def weights(self) -> Tensors:
        """Return the weights of the selected network."""
        return self._networks.weights()

    def bounded(self, outputs: Tensor) -> Tensor:
        """Centre and clip outputs [..., D] of the selected network; the result has a norm of at most about 1."""
        centred = (outputs.float() - self._centre) / self._radius
        phi: Tensor = centred / centred.norm(dim=-1, keepdim=True).clamp(min=1)
        if not self._distribution:
            return phi
        psi = torch.cos(phi @ self._frequencies + self._phases) / math.sqrt(_FREQUENCIES)
        return torch.cat([phi, self._distribution * psi], -1) / math.sqrt(1 + self._distribution**2)

    def unbounded(self, means: Tensor) -> Tensor:
        """Return released means in the units of the selected network's outputs."""
        return means.to(self._centre) * self._radius + self._centre

    def distance(self, pairs: Pairs) -> Tensor:
        """L_DM against a release: the squared distance of the mean bounded feature from the released one."""
        return distribution_matching(pairs.real_features, self.bounded(pairs.features))

    @torch.no_grad()
    def of_images(self, images: Tensor, task: Task) -> Iterator[Tensor]:
        """Yield the bounded outputs [N, D] for uint8 images, on the CPU, for one network after another.

        An image's outputs are the same bits whatever other images there are: batches have a fixed size, filled up with
        empty images, and there are no batch statistics.
        """
        size = min(_BATCH, next(self._engine.chunks(_BATCH, self._backbone.activation_bytes)).stop)
        for number in range(self.count):
            self.draw(number)
            weights, parts = self.weights(), []
            for part in images.split(size):
                batch = torch.zeros(size, *images.shape[1:], dtype=images.dtype)
                batch[: len(part)] = part
                inputs = normalise(batch.to(self._engine.device), task.mean, task.std)
                parts.append(self.bounded(self._raw(weights, inputs))[: len(part)].cpu())
            yield torch.cat(parts) if parts else self.bounded(self._centres[:0]).cpu()
            self._engine.tick(number + 1, self.count)

    def _raw(self, weights: Tensors, images: Tensor) -> Tensor:
        with torch.no_grad(), self._engine.autocast():
            if self._logits:
                return self._backbone(weights, images)[1].float()
            return self._backbone.features(weights, images).float()
