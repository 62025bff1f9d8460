"""The server draws images of larger classes more often; what a client tells about their size."""

import math

import pytest
import torch

from fedaf.protocol import Payload, ServerState
from fedaf.protocol.policy import nearest_power_of_two
from support.replies import FEDAF, FEDAF_PLUS, FEDAF_SERVER, IPC, OWNED, REPLIES
from support.small import SMALL_CONDENSING, Rounds, small_experiment


@pytest.mark.parametrize(
    ("count", "power"), [(1, 1), (2, 2), (3, 4), (5, 4), (6, 8), (50, 64), (90, 64), (91, 128), (5000, 4096)]
)
def test_a_number_of_samples_is_rounded_to_a_power_of_two(count, power):
    assert nearest_power_of_two(count) == power


def test_a_rounded_number_is_within_a_factor_of_the_square_root_of_two():
    for count in range(1, 5000):
        assert abs(math.log2(nearest_power_of_two(count) / count)) <= 0.5


def server_of(*samples: int) -> ServerState:
    """A server with the images of one client for each number: its samples of each of two classes."""
    honest = REPLIES["fedaf-plus condense"].honest[-1]
    replies = {
        f"client-{client}": Payload({**honest.tensors, "samples": torch.full_like(OWNED, count)}, honest.scalars)
        for client, count in enumerate(samples)
    }
    return FEDAF_PLUS.phases[1].aggregate(FEDAF_SERVER, replies)


def test_images_are_drawn_in_proportion_to_the_square_root_of_the_samples():
    weights = FEDAF_PLUS.condensed_weights(server_of(64, 256, 1024))
    assert weights.tolist() == [8.0] * 2 * IPC + [16.0] * 2 * IPC + [32.0] * 2 * IPC


def test_fedaf_draws_all_images_alike():
    assert FEDAF.condensed_weights(server_of(64, 256)) is None


def test_a_client_cannot_claim_the_servers_whole_training():
    honest, dishonest = 64, 2**40
    weights = FEDAF_PLUS.condensed_weights(server_of(honest, honest, honest, dishonest))
    assert float(weights.max() / weights.min()) == 8.0  # of a claim of 2^17 times as much


@pytest.mark.parametrize("method", ["fedaf-plus", "fedaf", "feddm"])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_clients_send_rounded_numbers_only_if_they_are_used(method, power):
    options = {**SMALL_CONDENSING[method], "local_steps": 1, "server_weighting": power}
    rounds = Rounds(small_experiment(method, **options))
    rounds.play()
    for client, record in rounds.server.memory.condensed.items():
        counts = rounds.experiment.counts[client]
        rounded = [nearest_power_of_two(counts[label]) for label in record.classes.tolist()]
        assert record.samples.tolist() == (rounded if power else [1] * len(rounded))
    weights = rounds.method.condensed_weights(rounds.server)
    assert (weights is None) == (power == 0)
    if power:
        assert len(weights) == len(rounds.method.condensed_data(rounds.server)[1])
