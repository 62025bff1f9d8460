"""FedDM: what differs from FedAF."""

import pytest
import torch

from fedaf.methods import fedaf, feddm
from fedaf.methods.condensing import CondensePhase
from fedaf.models.backbone import Backbone
from fedaf.models.statistics import estimate_statistics, reference_images
from fedaf.models.weights import FreshWeights
from fedaf.protocol import Key, Payload
from support.small import SMALL_FEDAF, OneByOne, Rounds, local, small_experiment

PARAMETERS = ("weight", "bias")


def experiment_of(**options):
    return small_experiment("feddm", **{**SMALL_FEDAF, **options})


def networks(round: int, *, rho: float = 5.0):
    """The global model of a small experiment, and the networks of a round's steps."""
    method = experiment_of(rho=rho).method
    (phase,) = method.phases
    model = method.build_model(Key(7))
    weights = model.state_dict()
    ask = Payload(weights, {"resample_key": 1, "round": round})
    backbone = Backbone(model, method.task, torch.device("cpu"))
    steps = phase.networks(ask, weights, FreshWeights(model), Key(1), backbone)

    def at(step: int):
        steps.draw(step)
        return steps.weights()

    return weights, at


def distance(a, b) -> float:
    names = [name for name in a if name.endswith(PARAMETERS)]
    return float(torch.cat([(a[name] - b[name]).flatten().double() for name in names]).norm())


@pytest.mark.parametrize("rho", [0.5, 5.0])
def test_from_round_two_on_every_step_has_a_network_at_distance_rho(rho):
    weights, at = networks(2, rho=rho)
    first, second = ({name: t.clone() for name, t in at(step).items()} for step in (0, 1))
    for network in (first, second):
        assert distance(network, weights) == pytest.approx(rho, rel=1e-5)
        assert all(torch.equal(network[n], t) for n, t in weights.items() if not n.endswith(PARAMETERS))
    # Two random directions of so many dimensions are nearly at right angles.
    assert distance(first, second) == pytest.approx(rho * 2**0.5, rel=0.1)


def test_in_round_one_every_step_has_a_fresh_network():
    weights, at = networks(1)
    first = {name: t.clone() for name, t in at(0).items()}
    assert distance(first, at(1)) > 1
    assert distance(first, weights) > 1
    assert distance(first, at(0)) == 0


def test_in_round_one_the_statistics_are_those_of_the_fresh_weights_on_reference_images():
    weights, at = networks(1)
    method = experiment_of().method
    model = method.build_model(Key(7))
    for step in (0, 1):
        drawn = at(step)
        model.load_state_dict(drawn)
        estimate_statistics(model, [reference_images(method.task, Key(1).derive("statistics"))])
        for name, tensor in model.state_dict().items():
            if "running" in name:
                torch.testing.assert_close(drawn[name], tensor, rtol=1e-4, atol=1e-5)
                assert not torch.isclose(drawn[name], weights[name]).all()


def test_it_condenses_the_same_images_together_and_one_at_a_time():
    for options in ({}, {"match_logits": True}, {"shared_resampling": False}):
        experiment = experiment_of(**options)
        together, single = Rounds(experiment), Rounds(experiment, OneByOne(local(experiment)))
        for rounds in (together, single):
            rounds.play()
            rounds.play()
        for name, record in together.transport.checkpoint().items():
            other = single.transport.checkpoint()[name]
            torch.testing.assert_close(record["pending/images"], other["pending/images"], rtol=1e-3, atol=1e-3)


def test_matching_logits_changes_the_images():
    images = []
    for match in (False, True):
        rounds = Rounds(experiment_of(match_logits=match))
        rounds.play()
        images.append(rounds.transport.checkpoint()["client-0"]["pending/images"])
    assert not torch.equal(*images)


def test_the_client_says_which_classes_it_condensed_and_nothing_is_asked_of_peers():
    rounds = Rounds(experiment_of())
    report = rounds.play()
    assert list(report.upload) == ["condense"]
    assert "cdc" not in rounds.server.log["losses"]
    assert set(rounds.server.log["losses"]) == {"dm", "ce"}
    for client, counts in rounds.experiment.counts.items():
        sent = rounds.server.memory.condensed[client].classes.tolist()
        assert sent == rounds.method.condensed_classes(counts)


def test_its_options_are_the_papers():
    options = feddm.FedDMOptions()
    assert (options.rho, options.image_lr, options.image_clip, options.match_logits) == (5.0, 1.0, 2.0, False)


def test_it_shares_the_exchange_and_the_server_with_fedaf():
    for phase in (fedaf.Condense, feddm.Condense):
        assert phase.work is CondensePhase.work
        assert phase.aggregate is CondensePhase.aggregate
    assert fedaf.FedAF.condensed_data is feddm.FedDM.condensed_data
