"""MOON against its closed form, and whose models it contrasts."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedaf.federation.rounds import RoundRules
from fedaf.methods.moon import model_contrast
from fedaf.models.backbone import Tap
from fedaf.protocol import Architecture, Key, Payload, Task
from support.errors import raises
from support.tiny import (
    CONVNET,
    ENGINE,
    TASK,
    EndsInAConvolution,
    Play,
    a_client,
    fit_of,
    gradients,
    make,
    of,
    pixels,
    shard,
)
from support.zoo import build

SHARDS = {name: shard(12, seed=number) for number, name in enumerate("abcd")}


def unit(degrees: float) -> list[float]:
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_it_is_log_2_when_both_cosines_agree(temperature):
    z = torch.tensor([unit(0), unit(10), unit(90)])
    left, right = torch.tensor([unit(60), unit(70), unit(150)]), torch.tensor([unit(-60), unit(-50), unit(30)])
    assert model_contrast(z, left, 3 * right, temperature).item() == pytest.approx(math.log(2))
    assert model_contrast(z, right, right, temperature).item() == pytest.approx(math.log(2))


def test_its_closed_form_is_a_softplus_of_the_difference_of_cosines():
    z = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    z_global, z_previous = torch.tensor([unit(60), unit(90)]), torch.tensor([unit(180), unit(0)])
    tau = 0.5
    cosines = [(0.5, -1.0), (1.0, 0.0)]
    expected = sum(math.log(1 + math.exp((previous - near) / tau)) for near, previous in cosines) / 2
    assert model_contrast(z, z_global, z_previous, tau).item() == pytest.approx(expected)


def ask_of(method) -> Payload:
    return Payload(method.initial(Key(0)).model)


def state_of(method, seed: int) -> dict:
    return dict(method.initial(Key(seed)).model)


def live(method, seed: int = 5) -> nn.Module:
    """A network during local training."""
    return method.build_model(Key(seed)).train()


def test_the_contrast_is_log_2_with_weight_mu_where_the_previous_model_is_the_global_one():
    method = make("moon", mu=3.0)
    ask, held = ask_of(method), shard(6)
    loss = fit_of(method).loss(live(method), ask, a_client(held, state_of(method, 0)), ENGINE)
    con = loss(pixels(held), held.labels)["con"]
    assert con.term.item() == pytest.approx(math.log(2), rel=1e-5)
    assert con.weight == 3


def test_the_frozen_networks_are_in_eval_mode_and_keep_their_statistics():
    method = make("moon", temperature=0.7)
    ask, held, state, model = ask_of(method), shard(6), state_of(method, 9), live(method)
    before = {name: t.clone() for name, t in {**ask.tensors, **state}.items()}
    terms = fit_of(method).loss(model, ask, a_client(held, state), ENGINE)(pixels(held), held.labels)
    assert {**ask.tensors, **state}.keys() == before.keys()
    assert all(torch.equal(t, before[name]) for name, t in {**ask.tensors, **state}.items())

    def features(weights, training: bool) -> torch.Tensor:
        network = method.build_model(Key(0)).train(training)
        network.load_state_dict(weights)
        tap = Tap(network, TASK, ENGINE.device)
        network(pixels(held))
        return tap.take()

    z = features(live(method).state_dict(), training=True)
    near, far = (F.cosine_similarity(z, features(weights, training=False)) for weights in (ask.tensors, state))
    expected = -torch.log(torch.sigmoid((near - far) / 0.7)).mean()
    assert terms["con"].term.item() == pytest.approx(expected.item(), rel=1e-4)
    assert model.training


def test_gradients_flow_to_the_live_model_only_and_not_to_its_classifier():
    method = make("moon")
    ask, held, state, model = ask_of(method), shard(6), state_of(method, 9), live(method)
    for tensor in (*ask.tensors.values(), *state.values()):
        if tensor.is_floating_point():
            tensor.requires_grad_(True)
    con = fit_of(method).loss(model, ask, a_client(held, state), ENGINE)(pixels(held), held.labels)["con"].term
    assert all(t.grad is None for t in (*ask.tensors.values(), *state.values()))
    found = gradients(con, model)
    con.backward()
    assert all(t.grad is None for t in (*ask.tensors.values(), *state.values()))
    assert float(next(iter(found.values())).abs().max()) > 1e-4
    assert all(not found[name].any() for name in found if name.startswith("classifier"))


def test_a_clients_first_participation_has_no_contrast_whenever_it_is():
    """One of four clients per round, so most take part for the first time in a later round."""
    method = make("moon", local_epochs=2, lr=0.05)
    running = Play(method, SHARDS, RoundRules(participation=0.5))
    met: set[str] = set()
    late = 0
    for _ in range(6):
        state = {name: running.kept(name) for name in SHARDS}
        asked = running.round().asked
        for name in asked:
            assert bool(state[name]) == (name in met)
            loss = fit_of(method).loss(live(method), ask_of(method), a_client(SHARDS[name], state[name]), ENGINE)
            assert (loss is None) == (name not in met)
        late += len(set(asked) - met) if met else 0
        met |= set(asked)
        assert all(bool(running.kept(name)) == (name in met) for name in SHARDS)
        con = running.server.log["losses"]["con"]
        assert (con > 0) == any(state[name] for name in asked)
    assert late > 0, "every client took part from the first round on"


def test_the_previous_model_is_the_one_a_client_sent_in_its_last_accepted_round():
    running = Play(make("moon", lr=0.05), SHARDS, RoundRules(participation=0.5))
    sent: dict[str, dict] = {}
    deliver = running.transport.deliver

    def recorded(phase, requests, listener):
        deliveries = deliver(phase, requests, listener)
        sent.update({name: dict(delivery.payload.tensors) for name, delivery in deliveries.items()})
        return deliveries

    running.transport.deliver = recorded
    for _ in range(5):
        running.round()
        for name, model in sent.items():
            kept = running.kept(name)
            assert kept.keys() == model.keys()
            assert all(torch.equal(kept[n], model[n]) for n in model)


PAPER = Task("cifar10", 3, 32, 32, 10, mean=(0.5,) * 3, std=(0.25,) * 3)


def paper_convnet(key: Key) -> nn.Module:
    return build("convnet", PAPER, key, depth=3, width=128, norm="batch")


def test_without_a_head_the_model_is_the_papers():
    moon = type(make("moon"))
    plain = moon(moon.Options(), PAPER, Architecture(paper_convnet)).build_model(Key(0))
    assert sum(p.numel() for p in plain.parameters()) == 320_010


@pytest.mark.parametrize(("width", "features", "hidden"), [(128, 2048, 256), (8, 128, 128)])
def test_a_projection_head_has_the_stated_layers(width, features, hidden):
    moon = type(make("moon"))
    architecture = Architecture(lambda key: build("convnet", PAPER, key, depth=3, width=width, norm="batch"))
    method = moon(moon.Options(projection_dim=40), PAPER, architecture)
    head = method.build_model(Key(0)).classifier
    shapes = [(layer.in_features, layer.out_features) for layer in head if isinstance(layer, nn.Linear)]
    assert shapes == [(features, hidden), (hidden, 40), (40, 10)]
    assert [type(layer) for layer in head] == [nn.Linear, nn.ReLU, nn.Linear, nn.Linear]
    again, other = (method.build_model(Key(seed)).state_dict() for seed in (0, 1))
    assert torch.equal(head[0].weight, again["classifier.0.weight"])
    assert not torch.equal(head[0].weight, other["classifier.0.weight"])


@pytest.mark.parametrize("named", [None, "classifier"])
def test_with_a_head_the_contrast_is_on_its_output(named):
    architecture = Architecture(CONVNET.build, named)
    method = make("moon", architecture, projection_dim=5)
    model = live(method)
    tap = Tap(model, TASK, ENGINE.device, method.classifier)
    assert tap.classifier == "classifier.3"
    model(pixels(shard(6)))
    assert tap.take().shape == (6, 5)
    running = Play(method, SHARDS)
    for _ in range(2):
        running.round()
    assert running.server.log["losses"]["con"] > 0


def test_a_head_needs_a_linear_classifier_and_no_head_does_not():
    architecture = of(EndsInAConvolution, classifier="last")
    with raises("FEDAF-METHOD-CLASSIFIER"):
        make("moon", architecture, projection_dim=5).build_model(Key(0))
    running = Play(make("moon", architecture), SHARDS)
    for _ in range(2):
        running.round()
    assert running.server.log["losses"]["con"] > 0
