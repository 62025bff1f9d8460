"""FedGen: the weights of its losses, a generator that learns, and what clients do with it."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.federation.rounds import RoundRules
from fedaf.methods.fedgen import FedGen, Teacher, diversity_loss, label_weights, teacher_loss
from fedaf.protocol import Key, Payload, Refused, ServerState
from support.errors import raises
from support.tiny import CLASSES, ENGINE, EndsInAConvolution, Play, a_client, fit_of, make, of, pixels, shard, worked

SHARDS = {"a": shard(12, (0,), seed=1), "b": shard(12, (0, 1), seed=2), "c": shard(12, (1,), seed=3)}
TINY = {"noise_dim": 4, "hidden_dim": 16, "generator_batch": 8, "generator_steps": 3}


def test_weights_of_a_label_sum_to_one_over_the_clients_that_hold_it():
    counts = [torch.tensor([3, 0, 1, 0]), torch.tensor([1, 5, 0, 0]), torch.tensor([0, 0, 1, 0])]
    weights = label_weights(counts)
    assert weights.tolist() == [[0.75, 0, 0.5, 0], [0.25, 1, 0, 0], [0, 0, 0.5, 0]]
    assert weights.sum(0).tolist() == [1, 1, 1, 0]


def test_weights_of_the_largest_counts_are_finite():
    weights = label_weights([torch.tensor([2**40, 1]), torch.tensor([2**40, 0])])
    assert weights.tolist() == [[0.5, 1], [0.5, 0]]


def test_each_sample_counts_with_the_weights_of_its_own_label():
    """Client 0 has label 0 and client 1 has label 1, so each teaches samples of its own label only. The product of a
    [B] and a [B, 1] tensor, a bug in the authors' code, would let both teach all samples."""
    labels = torch.tensor([0, 0, 0, 1])
    sure, wrong = torch.tensor([10.0, -10.0]), torch.tensor([-10.0, 10.0])
    of_0 = sure.expand(4, 2)  # right for label 0, wrong for label 1
    of_1 = torch.stack([wrong, wrong, wrong, wrong])  # right for label 1 only
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert teacher_loss([of_0, of_1], labels, weights).item() < 1e-6
    assert teacher_loss([of_1, of_0], labels, weights).item() == pytest.approx(20, rel=1e-4)


def test_the_teacher_loss_is_a_weighted_mean_by_hand():
    labels = torch.tensor([0, 1, 1])
    logits = [torch.randn(3, 2, generator=Key(k).torch()) for k in range(2)]
    weights = torch.tensor([[0.75, 0.2], [0.25, 0.8]])
    by_hand = 0.0
    for row, label in enumerate(labels.tolist()):
        for client in range(2):
            probabilities = torch.softmax(logits[client][row], 0)
            by_hand += float(weights[client, label]) * -math.log(float(probabilities[label])) / 3
    assert teacher_loss(logits, labels, weights).item() == pytest.approx(by_hand, rel=1e-5)


def test_the_diversity_loss_by_hand():
    noise, features = torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    squared, absolute = (1 + 4) / 2, (1 + 3) / 2  # means over two dimensions
    assert diversity_loss(noise, features).item() == pytest.approx(math.exp(-2 * squared * absolute / 4))


def test_the_diversity_loss_drives_features_of_different_noise_apart():
    noise = torch.tensor([[0.0], [1.0]])
    features = torch.tensor([[0.0], [0.5]], requires_grad=True)
    loss = diversity_loss(noise, features)
    (gradient,) = torch.autograd.grad(loss, features)
    assert gradient.flatten().tolist() == pytest.approx([0.5 * loss.item(), -0.5 * loss.item()])
    assert diversity_loss(noise, torch.zeros(2, 1)).item() == 1


class OnlyAClassifier(nn.Module):
    """Pixels are the features."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(x.flatten(1))
        return out


def taught(method: FedGen, heads: list[dict[str, Tensor]], counts: list[list[int]], rounds: int) -> ServerState:
    """A server whose generator has learned from these classifiers."""
    server = method.initial(Key(0))
    for _ in range(rounds):
        server = server.next_round(len(heads)).with_log(losses={})
        teachers = [Teacher(head, torch.tensor(held)) for head, held in zip(heads, counts, strict=True)]
        server = method.finish(replace(server, scratch=teachers), ENGINE)
    return server


def head_of(centres: Tensor) -> dict[str, Tensor]:
    """A classifier trained on features around one centre for each class."""
    labels = torch.arange(CLASSES).repeat(40)
    features = centres[labels] + 0.3 * torch.randn(len(labels), 16, generator=Key(4).torch())
    head = nn.Linear(16, CLASSES)
    optimiser = torch.optim.SGD(head.parameters(), lr=0.5)
    for _ in range(50):
        optimiser.zero_grad()
        F.cross_entropy(head(features), labels).backward()
        optimiser.step()
    assert (head(features).argmax(1) == labels).all()
    return {name: t.detach() for name, t in head.state_dict().items()}


def generated(method: FedGen, server: ServerState, labels: Tensor) -> Tensor:
    generator = method.generator(Key(0))
    generator.load_state_dict(server.memory.generator)
    with torch.no_grad():
        features: Tensor = generator.eval()(torch.rand(len(labels), 4, generator=Key(9).torch()), labels)
    return features


CENTRES = 2 * torch.randn(CLASSES, 16, generator=Key(3).torch())
LABELS = torch.arange(CLASSES).repeat(20)


def test_the_generator_learns_what_classifiers_of_separable_features_know():
    method = make("fedgen", of(OnlyAClassifier), **{**TINY, "generator_steps": 60, "generator_lr": 3e-3})
    head, everything = head_of(CENTRES), [[5] * CLASSES]
    loss, right = [], []
    for rounds in (0, 1, 3):
        features = generated(method, taught(method, [head], everything, rounds), LABELS)
        logits = F.linear(features, head["weight"], head["bias"])
        loss.append(F.cross_entropy(logits, LABELS).item())
        right.append(float((logits.argmax(1) == LABELS).float().mean()))
    assert loss[2] < loss[1] < 0.7 * loss[0]
    assert loss[2] < 0.2 * loss[0]
    assert right[2] == 1


def test_the_generator_learns_each_label_from_the_clients_that_have_it():
    """The second client has label 2 only, and its classifier expects every label elsewhere."""
    method = make("fedgen", of(OnlyAClassifier), **{**TINY, "generator_steps": 100, "generator_lr": 3e-3})
    mine, theirs = head_of(CENTRES), head_of(CENTRES[[2, 0, 1]])
    server = taught(method, [mine, theirs], [[6, 6, 0], [0, 0, 6]], 3)
    features = generated(method, server, LABELS)
    by_mine = F.linear(features, mine["weight"], mine["bias"]).argmax(1) == LABELS
    by_theirs = F.linear(features, theirs["weight"], theirs["bias"]).argmax(1) == LABELS
    assert by_mine[LABELS < 2].all()
    assert by_theirs[LABELS == 2].all()
    assert not by_theirs[LABELS < 2].any()


def test_classifiers_as_large_as_the_schema_allows_leave_a_finite_generator():
    method = make("fedgen", of(OnlyAClassifier), **TINY)
    wild = {name: t.sign() * 1e6 for name, t in head_of(CENTRES).items()}
    server = taught(method, [wild, head_of(CENTRES)], [[2**40, 1, 0], [1, 1, 2**40]], 3)
    assert all(bool(torch.isfinite(t).all()) for t in server.memory.generator.values())
    assert all(math.isfinite(server.log["losses"][name]) for name in ("teacher", "diversity"))


def test_labels_that_nobody_holds_are_neither_learned_nor_generated():
    running = Play(make("fedgen", **TINY), SHARDS)
    assert running.server.memory.labels.tolist() == []
    running.round()
    assert running.server.memory.labels.tolist() == [0, 1]


def test_labels_once_seen_stay_known_when_their_holders_are_away():
    running = Play(make("fedgen", **TINY), SHARDS, RoundRules(participation=0.34))
    for _ in range(6):
        running.round()
    assert running.server.memory.labels.tolist() == [0, 1]


def test_clients_use_the_generator_from_round_2_on_with_its_decayed_weight():
    method = make("fedgen", lr=1e-6, **TINY)
    running = Play(method, SHARDS)
    running.round()
    assert running.server.log["losses"].keys() == {"ce", "generated", "distilled", "teacher", "diversity"}
    assert running.server.log["losses"]["generated"] == running.server.log["losses"]["distilled"] == 0
    for number in (2, 3):
        before = running.server
        running.round()
        assert running.server.log["losses"]["generated"] > 0
        terms = {}
        for rounds in (0, number):
            ask = fit_of(method).ask(before.next_round(3), "a")
            ask = Payload(ask.tensors, {**ask.scalars, "round": rounds})
            model = method.build_model(Key(0))
            loss = fit_of(method).loss(model, ask, a_client(SHARDS["a"]), ENGINE)
            with Key(7).seeded():
                terms[rounds] = loss(pixels(SHARDS["a"]), SHARDS["a"].labels)
        assert fit_of(method).ask(running.server, "a").scalars == {"round": number}
        for name in ("generated", "distilled"):
            assert terms[number][name].weight == pytest.approx(0.98**number * terms[0][name].weight)
            assert torch.equal(terms[number][name].term, terms[0][name].term)


def test_the_generated_terms_by_hand():
    """Their weight is 10 * 0.98^2; that of ``generated`` is also scaled by its share of a batch."""
    method = make("fedgen", batch_size=32, **TINY)
    running, held = Play(method, SHARDS), SHARDS["b"]
    running.round()
    ask, client = fit_of(method).ask(running.server.next_round(3), "b"), a_client(held)
    model = method.build_model(Key(0)).train()
    loss = fit_of(method).loss(model, ask, client, ENGINE)
    with Key(7).seeded():
        terms = loss(pixels(held), held.labels)

    draws = Key(7).torch()
    generator = method.generator(Key(0))
    generator.load_state_dict(running.server.memory.generator)
    generator.eval()
    head = model.classifier
    labels = torch.tensor([0, 1])[torch.randint(2, (8,), generator=draws)]
    own = torch.log_softmax(head(generator(torch.rand(8, 4, generator=draws), labels)), 1)
    weight = 10 * 0.98**2
    assert terms["generated"].weight == pytest.approx(weight * 8 / 32)
    assert terms["generated"].term.item() == pytest.approx(-own[range(8), labels].mean().item(), rel=1e-4)
    teacher = torch.softmax(head(generator(torch.rand(12, 4, generator=draws), held.labels)), 1)
    student = torch.softmax(method.build_model(Key(0)).train()(pixels(held)), 1)
    kl = (teacher * (teacher / student).log()).sum() / 12
    assert terms["distilled"].weight == pytest.approx(weight)
    assert terms["distilled"].term.item() == pytest.approx(kl.item(), rel=1e-3)


def test_counts_by_label_are_sent_and_checked():
    method = make("fedgen", **TINY)
    ask = fit_of(method).ask(method.initial(Key(0)), "b")
    reply = worked(method, ask, a_client(SHARDS["b"])).reply
    assert reply.tensors["label_counts"].tolist() == [6, 6, 0]
    schema = fit_of(method).schema(ask)
    schema.validate(reply)
    for wrong in (torch.tensor([6, 6]), torch.tensor([6, -1, 0]), torch.tensor([6.0, 6.0, 0.0])):
        with pytest.raises(Refused, match="label_counts"):
            schema.validate(Payload({**reply.tensors, "label_counts": wrong}, reply.scalars))
    assert not any(name.startswith(("model/", "generator/")) for name in reply.tensors)


def test_what_is_sent_of_a_class_counts_as_disclosed_of_its_samples():
    assert make("fedgen").discloses([30, 0, 4]).fewest_samples == 4
    assert make("fedgen").discloses([0, 0, 0]).fewest_samples == 0


def test_a_classifier_that_is_not_linear_is_an_error():
    with raises("FEDAF-METHOD-CLASSIFIER") as caught:
        make("fedgen", of(EndsInAConvolution, classifier="last")).initial(Key(0))
    assert "'last'" in str(caught.value)
