"""FedAF from scratch: the whole method in one file, on the handwritten digits of scikit-learn.

    python examples/fedaf_from_scratch.py --alpha 0.1 --rounds 5

The method is Wang et al., "An Aggregation-Free Federated Learning for Tackling Data Heterogeneity" (CVPR 2024).
Equation numbers are the paper's. Clients never send a model. In each round

1. clients measure what the global model says about their data, class by class (knowledge),
2. clients condense their data into a few synthetic images per class, and send these (condensation),
3. the server trains the global model on the synthetic images of all clients (server training).

This file needs PyTorch, NumPy and scikit-learn, but not the package. The package does the same with checks,
checkpoints, networks and GPUs: tests/examples/test_from_scratch.py shows that both end with the same weights.
"""

import argparse
import copy
import zlib
from dataclasses import dataclass, fields

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

CLASSES = 10
MEAN, STD = 0.305, 0.376  # of the pixels of digits, between 0 and 1
Rows = dict[int, Tensor]  # tensors by class: a client's images, or rows v_c of V and r_c of R


@dataclass(frozen=True)
class Settings:
    seed: int = 0
    clients: int = 10
    alpha: float = 0.1  # concentration of the Dirichlet split: the smaller, the fewer classes a client has
    rounds: int = 5
    width: int = 64  # filters of the ConvNet
    momentum: float = 0.9  # of SGD, for images and for the model
    # What clients do.
    ipc: int = 10  # condensed images per class
    mean_of: int = 10  # a condensed image starts from the mean of this many real images
    local_steps: int = 50  # condensation steps in a round
    real_batch: int = 64  # real images per class in a step
    image_lr: float = 1.0
    gamma: float = 0.9  # share of the global model in the network of a step (Eq. 17)
    lambda_loc: float = 1e-4  # weight of the CDC loss (Eq. 10)
    temperature: float = 2.0  # tau of the soft labels (Eq. 11)
    # What the server does.
    server_epochs: int = 30
    server_batch: int = 64
    server_lr: float = 0.01
    lambda_glob: float = 0.01  # weight of the LGKM loss (Eq. 14)


class ConvNet(nn.Module):
    """Three blocks of convolution, BatchNorm, ReLU and pooling: the features h_w. A linear classifier makes f_w."""

    def __init__(self, width: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for channels in (1, width, width):
            blocks += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.AvgPool2d(2)]
        self.features = nn.Sequential(*blocks, nn.Flatten())
        self.classifier = nn.Linear(width, CLASSES)  # three poolings leave one pixel of 8x8

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


class Draws:
    """All random numbers of a run, each with a name. A test replaces them by those of the package."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def generator(self, *name: str | int) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(repr((self.settings.seed, *name)).encode()))

    def random_network(self, *name: str | int) -> ConvNet:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.generator(*name).get_state())
            return ConvNet(self.settings.width)

    def first_network(self) -> ConvNet:
        """The global model before round 1. Its BatchNorm statistics are of smooth noise: the server has no data."""
        model = self.random_network("first").train()
        noise = F.avg_pool2d(torch.randn(256, 1, 10, 10, generator=self.generator("noise")), 3, stride=1)
        for _ in range(50):  # running statistics approach those of the noise
            model(noise / noise.std())
        return model


def load_data() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return images (uint8, [N, 1, 8, 8]) and labels to train on, and those to test on: every fifth digit."""
    digits = load_digits()
    pixels = torch.from_numpy((digits.images * (255 / 16)).round().astype(np.uint8)).unsqueeze(1)
    labels, test = torch.from_numpy(digits.target).long(), torch.arange(len(pixels)) % 5 == 0
    return (pixels[~test], labels[~test]), (pixels[test], labels[test])


def dirichlet_split(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    """Split each class by Dirichlet(alpha) over the clients that have less than an equal share so far."""
    for _ in range(200):  # until every client has ten samples
        rows: list[list[int]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            of_class = rng.permutation(np.flatnonzero(labels == label))
            is_open = np.array([len(own) < len(labels) / clients for own in rows])
            shares = rng.dirichlet(np.full(clients, alpha)) * is_open
            if shares.sum() == 0:  # only full clients have a share: one of the others gets the class
                shares[rng.choice(np.flatnonzero(is_open))] = 1
            cuts = np.floor(np.cumsum(shares / shares.sum())[:-1] * len(of_class) + 1e-9).astype(int)
            for own, part in zip(rows, np.split(of_class, cuts), strict=True):
                own.extend(part)
        if min(map(len, rows)) >= 10:
            return [np.sort(own) for own in rows]
    raise SystemExit("no split gives every client ten samples; raise --alpha or lower --clients")


def normalise(pixels: Tensor) -> Tensor:
    return (pixels / 255 - MEAN) / STD


def to_pixels(images: Tensor) -> Tensor:
    return ((images * STD + MEAN) * 255).round().clamp(0, 255).to(torch.uint8)


@torch.no_grad()
def mean_logits(w: ConvNet, data: Rows) -> Rows:
    """V_k: the mean logit v_kc of each class (Eq. 5)."""
    return {c: w.eval()(images).mean(0) for c, images in data.items()}


def soft_labels(v: Rows, temperature: float) -> Rows:
    """R_k (Eq. 11): the softmax of each mean logit, not the mean of softmaxes."""
    return {c: torch.softmax(logit / temperature, dim=-1) for c, logit in v.items()}


def average(of_clients: list[Rows]) -> Rows:
    """V (Eq. 8) or R (Eq. 12): average each class over the clients that have it."""
    known = sorted({c for rows in of_clients for c in rows})
    return {c: torch.stack([rows[c] for rows in of_clients if c in rows]).mean(0) for c in known}


def starting_images(data: Rows, s: Settings, generator: torch.Generator) -> Tensor:
    """Means of random images of a class, [classes, ipc, 1, 8, 8]. To start from single images would reveal these."""
    means = []
    for images in data.values():
        few = min(s.mean_of, max(5, len(images) // 2))
        means += [images[torch.randperm(len(images), generator=generator)[:few]].mean(0) for _ in range(s.ipc)]
    return torch.stack(means).unflatten(0, (-1, s.ipc))


def resample(w: ConvNet, random: ConvNet, gamma: float) -> ConvNet:
    """w <- gamma w + (1 - gamma) w~ (Eq. 17). BatchNorm is in eval mode, with the statistics of w."""
    network = copy.deepcopy(w).eval().requires_grad_(False)
    for parameter, other in zip(network.parameters(), random.parameters(), strict=True):
        parameter.lerp_(other.detach(), 1 - gamma)
    return network


def sliced_wasserstein(u: Tensor, v: Tensor) -> Tensor:
    """F of Eq. 10, of order 2, between single points u and v."""
    # The mean of ((u - v) . theta)^2 over all directions theta is |u - v|^2 / C, so no direction is drawn.
    return ((u - v).square().mean(-1) + 1e-12).sqrt()  # at u = v, the gradient of a bare root would be infinite


def condense(images: Tensor, data: Rows, networks: list[ConvNet], v: Rows, s: Settings, draws: torch.Generator) -> None:
    """Move a client's condensed images to minimise L_loc = L_DM + lambda_loc L_CDC (Eq. 10)."""
    optimizer, targets = torch.optim.SGD([images], s.image_lr, s.momentum), torch.stack([v[c] for c in data])
    for network in networks:
        x = torch.rand(len(data), s.real_batch, generator=draws)  # real images are drawn with replacement
        real = [own[(u * len(own)).long().clamp(max=len(own) - 1)] for u, own in zip(x, data.values(), strict=True)]
        features = network.features(images.flatten(0, 1))
        outputs = (network.features(torch.cat(real)), features, network.classifier(features))
        mu_real, mu_syn, u = (each.unflatten(0, (len(data), -1)).mean(1) for each in outputs)  # Eq. 3 and Eq. 6
        dm = (mu_real - mu_syn).square().sum()  # Eq. 4
        cdc = sliced_wasserstein(u, targets).sum()
        optimizer.zero_grad()
        (dm + s.lambda_loc * cdc).backward()
        optimizer.step()


def knowledge_matching(logits: Tensor, labels: Tensor, r: Rows, temperature: float) -> Tensor:
    """L_LGKM (Eq. 15): the symmetric KL divergence of R and T, averaged over the classes of the batch."""
    classes = labels.unique().tolist()
    means = torch.stack([logits[labels == c].mean(0) for c in classes])
    log_t = torch.log_softmax(means / temperature, dim=-1)  # Eq. 13
    log_r = torch.stack([r[c] for c in classes]).log()
    return ((log_r.exp() - log_t.exp()) * (log_r - log_t)).sum(1).mean() / 2


def train(w: ConvNet, images: Tensor, labels: Tensor, r: Rows, s: Settings, generator: torch.Generator) -> None:
    """Train the global model on all condensed images: L_glob = L_CE + lambda_glob L_LGKM (Eq. 14)."""
    optimizer = torch.optim.SGD(w.train().parameters(), s.server_lr, s.momentum)
    for _ in range(s.server_epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(s.server_batch):
            if len(rows) == 1:  # BatchNorm has no variance for one image
                continue
            logits = w(images[rows])
            loss = F.cross_entropy(logits, labels[rows])
            if r:
                loss = loss + s.lambda_glob * knowledge_matching(logits, labels[rows], r, s.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def run(s: Settings, shards: list[tuple[Tensor, Tensor]], test: tuple[Tensor, Tensor], draws: Draws) -> ConvNet:
    """Play all rounds and return the global model. Shards are the images (uint8) and labels of the clients."""
    data = {  # by client, of the classes that it condenses: a few images summarise only a larger number of images
        k: {c: normalise(pixels[labels == c]) for c in range(CLASSES) if (labels == c).sum() >= max(s.ipc, s.mean_of)}
        for k, (pixels, labels) in enumerate(shards)
    }
    data = {k: own for k, own in data.items() if own}
    if not data:
        raise SystemExit("no client has enough samples of any class; lower --ipc and --mean_of")
    w = draws.first_network()
    condensed = {k: starting_images(own, s, draws.generator("start", k)).requires_grad_() for k, own in data.items()}
    for round in range(1, s.rounds + 1):
        # Knowledge: clients send V_k and R_k; the server averages them and sends V back.
        v_k = [mean_logits(w, own) for own in data.values()]
        v, r = average(v_k), average([soft_labels(each, s.temperature) for each in v_k])
        # Condensation: clients send S_k as 8-bit images, and continue with it in the next round, in full precision.
        random_networks = [draws.random_network("step", round, step) for step in range(s.local_steps)]
        networks = [resample(w, random, s.gamma) for random in random_networks]  # the same for all clients
        for k, own in data.items():
            condense(condensed[k], own, networks, v, s, draws.generator("real", round, k))
        pixels = torch.cat([to_pixels(images.detach()).flatten(0, 1) for images in condensed.values()])
        labels = torch.tensor([c for own in data.values() for c in own]).repeat_interleave(s.ipc)
        # Server training: in round 1 without R, because the soft labels of an untrained model are noise.
        train(w, normalise(pixels), labels, r if round > 1 else {}, s, draws.generator("order", round))
        right = w.eval()(normalise(test[0])).argmax(1) == test[1]
        print(f"round {round}: {len(labels)} condensed images, test accuracy {right.float().mean():.2%}", flush=True)
    return w


def main() -> None:
    parser = argparse.ArgumentParser(description="FedAF on handwritten digits, from scratch.")
    for each in fields(Settings):
        parser.add_argument(f"--{each.name}", type=each.type, default=each.default, help=f"default: {each.default}")
    s = Settings(**vars(parser.parse_args()))
    (pixels, labels), test = load_data()
    rows = dirichlet_split(labels.numpy(), s.clients, s.alpha, np.random.default_rng(s.seed))
    run(s, [(pixels[own], labels[own]) for own in rows], test, Draws(s))


if __name__ == "__main__":
    main()
