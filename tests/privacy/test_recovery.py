"""How far an attacker gets who keeps the images of all rounds. docs/explanation/what-leaks.md has larger images."""

from functools import cache, partial
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from fedaf.condensation.clusters import clusters_of
from fedaf.methods.fedaf import FedAF, FedAFOptions
from fedaf.protocol import Architecture, Key, Shard, Task
from support.recovery import denoised, means, random_members, score, solved, unmixed
from support.tiny import Play
from support.zoo import build

SAMPLES, K, IPC, ROUNDS = 50, 10, 25, 20
TASK = Task("digits", 1, 8, 8, 10, mean=(0.3,), std=(0.37,))


@cache
def digits() -> tuple[Tensor, Tensor]:
    """All threes and fives as uint8, in random order, and their labels."""
    data = load_digits()
    labels = torch.from_numpy(data.target).long()
    rows = torch.cat([(labels == label).nonzero().squeeze(1) for label in (3, 5)])
    rows = rows[torch.randperm(len(rows), generator=Key(0).torch())]
    images = torch.from_numpy(data.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    return images[rows], labels[rows]


def threes() -> tuple[Tensor, Tensor]:
    """Private images of a class, and others of the class that the client does not hold."""
    images, labels = digits()
    flat = images[labels == 3].flatten(1).float()
    return flat[:SAMPLES], flat[SAMPLES:]


def members(rounds: int, k: int = K) -> Tensor:
    return random_members(SAMPLES, k, rounds, IPC, Key(1).torch())


@cache
def condensed(local_steps: int, **more: Any) -> tuple[Tensor, Tensor]:
    """The images of a class that a client of FedAF sends in all rounds, each from new images; and their sources."""
    images, labels = digits()
    held = torch.cat([(labels == label).nonzero().squeeze(1)[:SAMPLES] for label in (3, 5)])
    options = FedAFOptions(
        ipc=IPC,
        local_steps=local_steps,
        init_mean_of=K,
        continue_images=False,
        real_batch=64,
        server_epochs=10,
        server_batch=64,
        **more,
    )
    architecture = Architecture(partial(build, "convnet", TASK, depth=2, width=32, norm="batch"))
    play = Play(FedAF(options, TASK, architecture), {"client-0": Shard(images[held], labels[held], 10)})
    shared, sources = [], []
    for _ in range(ROUNDS):
        play.round()
        shared.append(play.server.memory.condensed["client-0"].latest.images[0].flatten(1).float())
        sources.append(play.kept("client-0")["sources"][0])
    return torch.stack(shared), torch.stack(sources)


def test_real_images_that_are_sent_are_recovered():
    private, others = threes()
    found = score(private, others, means(private, members(ROUNDS, k=1)).flatten(0, 1))
    assert found.recovered == 1
    assert found.median > 58


def test_images_that_the_client_does_not_hold_are_not_recovered():
    private, others = threes()
    candidates = means(private, members(ROUNDS, k=1)).flatten(0, 1)
    half = len(others) // 2
    assert score(others[:half], others[half:], candidates).recovered <= 0.05  # 0.02; 0.01 by definition


@pytest.mark.parametrize("attack", [lambda shared: shared.flatten(0, 1), lambda shared: denoised(shared, K)])
def test_single_means_and_their_neighbours_are_not_private_images(attack):
    private, others = threes()
    assert score(private, others, attack(means(private, members(ROUNDS)))).recovered <= 0.06  # 0.0 for both


def test_who_knows_the_members_of_enough_means_recovers_every_image():
    private, others = threes()
    found = score(private, others, solved(means(private, members(ROUNDS)), members(ROUNDS), SAMPLES))
    assert found.recovered == 1
    assert found.median > 45  # 52.3 dB


def test_the_means_of_many_rounds_give_images_away_without_any_other_knowledge():
    private, others = threes()
    found = score(private, others, unmixed(means(private, members(ROUNDS)), SAMPLES, K))
    assert found.recovered > 0.9  # 1.0
    assert found.median > 40  # 50.9 dB


def test_half_as_many_means_as_samples_do_not():
    private, others = threes()
    few = members(rounds=1)
    shared = means(private, few)
    assert score(private, others, unmixed(shared, SAMPLES, K)).recovered <= 0.06  # 0.0
    assert score(private, others, solved(shared, few, SAMPLES)).recovered <= 0.15  # 0.06, although members are known


@pytest.mark.parametrize("local_steps", [0, 10, 100])
def test_images_from_fixed_clusters_are_not_recovered_although_the_members_are_known(local_steps):
    """If an image is always averaged with the same others, further rounds tell nothing new."""
    private, others = threes()
    shared, sources = condensed(local_steps, init="clusters", image_lr=0.2, match_spread=1.0, resampling="distance")
    assert score(private, others, unmixed(shared, SAMPLES, K)).recovered <= 0.06
    assert score(private, others, solved(shared, sources, SAMPLES)).recovered <= 0.06


def test_the_means_of_fixed_clusters_are_not_private_images():
    """These means are all that the starting images of any number of rounds can tell."""
    private, others = threes()
    clusters = clusters_of(Shard(private.view(-1, 1, 8, 8), torch.zeros(SAMPLES, dtype=torch.int64), 1), K)
    found = torch.stack([private[clusters == number].mean(0) for number in range(int(clusters.max()) + 1)])
    assert len(found) == SAMPLES // K
    assert score(private, others, found).recovered <= 0.06


def test_images_without_condensation_steps_are_recovered():
    private, others = threes()
    shared, _ = condensed(local_steps=0)
    assert score(private, others, unmixed(shared, SAMPLES, K)).recovered > 0.9  # 1.0


def test_few_condensation_steps_do_not_protect_from_who_knows_the_members():
    private, others = threes()
    shared, sources = condensed(local_steps=10)
    assert score(private, others, solved(shared, sources, SAMPLES)).recovered > 0.9  # 1.0, median 26.9 dB


def test_images_that_condensation_moved_far_from_their_means_are_not_recovered():
    private, others = threes()
    shared, sources = condensed(local_steps=100, image_lr=10.0)
    assert score(private, others, unmixed(shared, SAMPLES, K)).recovered <= 0.06  # 0.0
    assert score(private, others, solved(shared, sources, SAMPLES)).recovered <= 0.2  # 0.0, although members are known
