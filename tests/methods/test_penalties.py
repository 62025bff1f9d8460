"""The term that each method adds to cross-entropy: its gradient against a closed form, and a local step with it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.models.backbone import Tap
from fedaf.protocol import Client, Key, Payload, Tensors
from fedaf.training.fit import weighted_sum
from support.tiny import (
    ENGINE,
    TASK,
    Play,
    a_client,
    assert_close,
    fit_of,
    gradients,
    make,
    parameters,
    pixels,
    shard,
    worked,
)

HELD = shard(12, seed=1)
ORDER = torch.randperm(12, generator=a_client(HELD).key.derive("order").torch())
IMAGES, LABELS = pixels(HELD)[ORDER], HELD.labels[ORDER]  # the batch of the first step, in its order
LR = 0.1


def weights_of(method, seed: int) -> dict[str, Tensor]:
    return dict(method.initial(Key(seed)).model)


def features_of(model: nn.Module, images: Tensor) -> Tensor:
    tap = Tap(model, TASK, ENGINE.device)
    model(images)
    return tap.take()


class Case:
    """A method, a request and a client state for which its term is active, and the gradient of the weighted term."""

    name: str
    options: dict
    #: The term is zero where local training starts, so only the second step shows it.
    from_rest = False

    def __init__(self) -> None:
        self.method = make(self.name, lr=LR, **self.options)

    def ask(self) -> Payload:
        return Payload(weights_of(self.method, 0))

    def state(self) -> Tensors:
        return {}

    def client(self) -> Client:
        return a_client(HELD, self.state())

    def gradient(self, model: nn.Module) -> dict[str, Tensor]:
        raise NotImplementedError


class Prox(Case):
    name, options, from_rest = "fedprox", {"mu": 5.0}, True

    def gradient(self, model):
        w = self.ask().tensors
        return {name: 5 * (p.detach() - w[name]) for name, p in model.named_parameters()}


class Dyn(Case):
    name, options = "feddyn", {"alpha": 0.1}

    def ask(self):
        return Payload(weights_of(self.method, 0), {"mean_samples": 6.0})

    def state(self):
        return {name: -2 * t for name, t in parameters(self.method, weights_of(self.method, 2)).items()}

    def gradient(self, model):
        w, h = self.ask().tensors, self.state()
        return {name: 0.1 * 6 / 12 * (h[name] - w[name] + p.detach()) for name, p in model.named_parameters()}


class Moon(Case):
    name, options = "moon", {"mu": 2.0, "temperature": 0.4}

    def state(self):
        return weights_of(self.method, 2)

    def gradient(self, model):
        frozen = []
        for weights in (self.ask().tensors, self.state()):
            other = self.method.build_model(Key(0)).eval()
            other.load_state_dict(weights)
            frozen.append(F.normalize(features_of(other, IMAGES).detach()))
        live = copy.deepcopy(model)
        z = F.normalize(features_of(live, IMAGES))
        towards = ((z * frozen[1]).sum(1) - (z * frozen[0]).sum(1)) / 0.4
        return gradients(2 * torch.log1p(towards.exp()).mean(), live)


class Gen(Case):
    name = "fedgen"
    options = {"noise_dim": 4, "hidden_dim": 16, "generator_batch": 8, "generator_steps": 3, "weight": 3.0}  # noqa: RUF012

    def ask(self):
        running = Play(self.method, {"a": HELD})
        running.round()
        ask = fit_of(self.method).ask(running.server.next_round(1), "a")
        return Payload({**ask.tensors, **{f"model/{n}": t for n, t in weights_of(self.method, 0).items()}}, ask.scalars)

    def gradient(self, model):
        ask, draws = self.ask(), self.client().key.derive("forward").torch()
        weight, live = 3 * 0.98**2, copy.deepcopy(model)
        generator = self.method.generator(Key(0)).eval()
        generator.load_state_dict(
            {n.removeprefix("generator/"): t for n, t in ask.tensors.items() if n.startswith("generator/")}
        )
        with torch.no_grad():
            labels = ask.tensors["labels"][torch.randint(3, (8,), generator=draws)]
            made = generator(torch.rand(8, 4, generator=draws), labels)
            teacher = torch.softmax(live.classifier(generator(torch.rand(12, 4, generator=draws), LABELS)), 1)
        own = torch.softmax(live.classifier(made), 1)[range(8), labels].log().mean()
        student = torch.softmax(live(IMAGES), 1).log()
        return gradients(-weight * 8 / 64 * own - weight * (teacher * student).sum() / 12, live)


CASES = {case.name: case for case in (Prox, Dyn, Moon, Gen)}
of_every_method = pytest.mark.parametrize("name", CASES)


def largest(tensors: Tensors) -> float:
    return max(float(t.abs().max()) for t in tensors.values())


@of_every_method
def test_the_gradient_differs_from_cross_entropys_by_the_closed_form(name):
    case = CASES[name]()
    model = case.method.build_model(Key(5)).train()
    reference = copy.deepcopy(model)
    loss = fit_of(case.method).loss(model, case.ask(), case.client(), ENGINE)
    with case.client().key.derive("forward").seeded():  # as training does
        terms = loss(IMAGES, LABELS)
    assert set(terms) == set(fit_of(case.method).loss_names)
    whole = gradients(weighted_sum(terms), model)
    ce = gradients(F.cross_entropy(reference(IMAGES), LABELS), reference)
    added = case.gradient(reference)
    assert_close(whole, {n: ce[n] + added[n] for n in ce})
    assert largest(added) > 1e-2


@of_every_method
def test_a_local_step_follows_the_gradient_of_both(name):
    """If the term is zero at the start, the second step is checked instead of the first."""
    case = CASES[name]()
    steps = 2 if case.from_rest else 1
    method = make(case.name, lr=LR, local_epochs=steps, **case.options)
    ask = case.ask()
    model = method.build_model(Key(0)).train()
    model.load_state_dict(fit_of(method).weights(ask))
    for _ in range(steps):
        added = case.gradient(model)
        ce = gradients(F.cross_entropy(model(IMAGES), LABELS), model)
        with torch.no_grad():
            for n, p in model.named_parameters():
                p -= LR * (ce[n] + added[n])
    assert LR * largest(added) > 1e-3
    reply = worked(method, ask, case.client()).reply
    assert_close(parameters(method, reply.tensors), parameters(method, model.state_dict()), atol=1e-4 * LR)


@pytest.mark.parametrize(
    ("name", "weight"), [("fedprox", "mu"), ("feddyn", "alpha"), ("moon", "mu"), ("fedgen", "weight")]
)
def test_clients_report_the_terms_of_the_first_step_without_their_weights(name, weight):
    case = CASES[name]()
    ask, client = case.ask(), case.client()
    once, twice = (
        worked(make(name, lr=LR, **{**case.options, weight: factor * case.options[weight]}), ask, client).reply.scalars
        for factor in (1, 2)
    )
    assert once == twice
    assert case.from_rest or all(once[f"loss_{loss}"] for loss in fit_of(case.method).loss_names)
