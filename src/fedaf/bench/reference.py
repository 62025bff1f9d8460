"""The plain PyTorch loops that ``fedaf bench`` compares with.

Condensation follows the public code of distribution matching (Zhao and Bilen, WACV 2023): a new network in every step,
and one class after the other. The loops avoid overhead that the public code has: images are on the device and already
normalised, the pass of real images has no gradient, rows are drawn on the device, nothing is logged, copied or waited
for, and TF32 is on. As in fedaf, BatchNorm uses running statistics during condensation.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.condensation.knowledge import average_over_owners, knowledge_matching, mean_logits, soft_labels
from fedaf.condensation.matching import sliced_wasserstein
from fedaf.condensation.options import CondensationOptions
from fedaf.engine.precision import settings
from fedaf.methods.fedaf import FedAFOptions
from fedaf.protocol import Task

#: One client's real images by class, normalised, on the device.
ImagesByClass = Mapping[int, Tensor]

#: The augmentation that ``augment`` computes, as ``fedaf.data.augmentation`` names it.
AUGMENTATION = ("flip", "shift", "scale", "brightness", "contrast")

#: Enables TF32 within a block, so that PyTorch's defaults do not slow the reference down.
tf32 = partial(settings, "tf32", benchmark=False)

_TEST_BATCH = 1000


class PlainConvNet(nn.Module):
    """The ConvNet of the public code, with BatchNorm, in PyTorch's default memory format.

    Its parameters have the same names as those of ``fedaf.models.convnet``.
    """

    def __init__(self, task: Task, filters: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (task.channels, filters, filters):
            convolution = nn.Conv2d(channels, filters, 3, padding=1)
            layers += [convolution, nn.BatchNorm2d(filters), nn.ReLU(inplace=True), nn.AvgPool2d(2)]
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.classifier = nn.Linear(filters * (task.height // 8) * (task.width // 8), task.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


def condense(
    real: Sequence[Tensor],
    images: Tensor,
    *,
    network: Callable[[], PlainConvNet],
    options: CondensationOptions,
    guide: Tensor | None = None,
    lambda_loc: float = 0.0,
) -> Tensor:
    """Condense the data of one client.

    Args:
        real: Its real images of each class.
        images: The initial condensed images [classes, ipc, C, H, W].
        network: Makes the network of a step.
        options: Number of steps, batch size, learning rate and momentum.
        guide: FedAF's class-wise mean logits of all clients; ``None`` leaves their loss term out.
        lambda_loc: Weight of that loss term.

    Returns:
        The condensed images.
    """
    images = images.clone().requires_grad_()
    optimiser = torch.optim.SGD([images], lr=options.image_lr, momentum=options.image_momentum)
    for _ in range(options.local_steps):
        drawn = [pool[torch.randint(len(pool), (options.real_batch,), device=pool.device)] for pool in real]
        loss = matching_loss(network(), drawn, images, guide, lambda_loc)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return images.detach()


def matching_loss(
    network: PlainConvNet, real: Sequence[Tensor], images: Tensor, guide: Tensor | None = None, lambda_loc: float = 0.0
) -> Tensor:
    """Return the loss of a step: squared distances of mean features, summed over classes, and the guide's term."""
    loss = torch.zeros((), device=images.device)
    for label, real_of_class in enumerate(real):
        with torch.no_grad():
            target = network.features(real_of_class).mean(0)
        features = network.features(images[label])
        loss = loss + (target - features.mean(0)).square().sum()
        if guide is not None:
            logits = network.classifier(features).mean(0, keepdim=True)
            loss = loss + lambda_loc * sliced_wasserstein(logits, guide[label : label + 1])
    return loss


def new_network(task: Task, *, filters: int, device: torch.device) -> PlainConvNet:
    """Make a network with fresh weights as the public code does: drawn on the CPU, then moved to the device."""
    return PlainConvNet(task, filters).to(device).eval().requires_grad_(False)


def resampled(model: PlainConvNet, fresh: PlainConvNet, gamma: float) -> PlainConvNet:
    """Return FedAF's network of a step: ``fresh``, blended in place with the global model."""
    for parameter, old in zip(fresh.parameters(), model.parameters(), strict=True):
        parameter.mul_(1 - gamma).add_(old.detach(), alpha=gamma)
    for statistic, known in zip(fresh.buffers(), model.buffers(), strict=True):
        statistic.copy_(known)
    return fresh


def train(
    network: PlainConvNet,
    images: Tensor,
    labels: Tensor,
    options: CondensationOptions,
    penalty: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> None:
    """Train in place as the server does, with augmentation; ``penalty`` (of logits and labels) is added to the loss."""
    optimiser = torch.optim.SGD(network.parameters(), lr=options.server_lr, momentum=options.server_momentum)
    network.train()
    for _ in range(options.server_epochs):
        for rows in torch.randperm(len(labels), device=labels.device).split(options.server_batch):
            logits = network(augment(images[rows]))
            loss = F.cross_entropy(logits, labels[rows])
            if penalty is not None:
                loss = loss + penalty(logits, labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def augment(images: Tensor) -> Tensor:
    """Apply five augmentations with the strengths of ``fedaf.data.augmentation``, one after the other."""
    count, channels, height, width = images.shape
    device = images.device

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, 1, device=device)

    images = torch.where(uniform(0, 1) < 0.5, images.flip(3), images)

    limit = height // 8
    top, left = torch.randint(2 * limit + 1, (2, count, 1, 1, 1), device=device)
    each = torch.arange(count, device=device).view(-1, 1, 1, 1)
    channel = torch.arange(channels, device=device).view(-1, 1, 1)
    row, column = torch.arange(height, device=device).view(-1, 1), torch.arange(width, device=device)
    images = F.pad(images, (limit, limit, limit, limit))[each, channel, top + row, left + column]

    zoom = torch.diag_embed(1 / 1.2 + (1.2 - 1 / 1.2) * torch.rand(count, 2, device=device))
    affine = torch.cat([zoom, torch.zeros(count, 2, 1, device=device)], 2)
    images = F.grid_sample(images, F.affine_grid(affine, list(images.shape), align_corners=False), align_corners=False)

    images = images + uniform(-0.5, 0.5)
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + (images - mean) * uniform(0.5, 1.5)


def fedaf_round(
    model: PlainConvNet, clients: Sequence[ImagesByClass], *, fresh: Callable[[], PlainConvNet], options: FedAFOptions
) -> None:
    """Run one round of FedAF, client after client, and train ``model`` in place.

    ``fresh`` makes the networks that are blended with ``model`` in each step of condensation.
    """
    classes, device = model.classifier.out_features, model.classifier.weight.device
    shares = [_knowledge(model, pools) for pools in clients]
    guide, known = average_over_owners([(c.cpu(), v.cpu()) for c, v in shares], classes)
    local, _ = average_over_owners([(c.cpu(), soft_labels(v, options.temperature).cpu()) for c, v in shares], classes)
    guide, local, known = (t.to(device) for t in (guide, local, known))

    images, labels = [], []
    for pools, (owned, _) in zip(clients, shares, strict=True):
        size = options.ipc, options.init_mean_of
        initial = [pool[torch.randint(len(pool), size, device=device)].mean(1) for pool in pools.values()]
        condensed = condense(
            list(pools.values()),
            torch.stack(initial),
            network=lambda: resampled(model, fresh(), options.gamma),
            options=options,
            guide=guide[owned],
            lambda_loc=options.lambda_loc,
        )
        images.append(condensed.flatten(0, 1))
        labels.append(owned.repeat_interleave(options.ipc))

    log_local = local.log()

    def penalty(logits: Tensor, labels: Tensor) -> Tensor:
        v, counts = mean_logits(logits, labels, classes)
        student = torch.log_softmax(v / options.temperature, dim=-1)
        return options.lambda_glob * knowledge_matching(log_local, student, known & (counts > 0))

    train(model, torch.cat(images), torch.cat(labels), options, penalty)


@torch.no_grad()
def _knowledge(model: PlainConvNet, pools: ImagesByClass) -> tuple[Tensor, Tensor]:
    """Return a client's classes and its mean logits of each class."""
    model.eval()
    means = [torch.cat([model(part) for part in pool.split(_TEST_BATCH)]).mean(0) for pool in pools.values()]
    return torch.tensor(list(pools), device=means[0].device), torch.stack(means)
