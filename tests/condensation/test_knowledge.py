import math

import pytest
import torch
from torch import Tensor, nn

from fedaf.condensation.knowledge import average_over_owners, knowledge_matching, mean_logits, soft_labels
from fedaf.engine import EagerEngine
from fedaf.methods.fedaf import FedAF, FedAFOptions
from fedaf.protocol import Architecture, Client, Key, Shard, Task

R = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])
T = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.1, 0.8]])
EVERY = torch.ones(3, dtype=torch.bool)


def symmetric_kl(p: Tensor, q: Tensor) -> float:
    pairs = list(zip(p.tolist(), q.tolist(), strict=True))
    return sum(a * math.log(a / b) + b * math.log(b / a) for a, b in pairs) / 2


def test_mean_logits_are_class_wise_means_with_their_counts() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0], [3.0, -4.0, 1.0], [5.0, 6.0, 7.0]])
    v, counts = mean_logits(logits, torch.tensor([2, 2, 0]), 3)
    assert v.tolist() == [[5.0, 6.0, 7.0], [0.0, 0.0, 0.0], [2.0, -1.0, 0.5]]
    assert counts.tolist() == [1, 0, 2]


def test_mean_logits_ignore_classes_a_client_does_not_own() -> None:
    v, counts = mean_logits(torch.full((4, 5), 3.0), torch.tensor([1, 1, 3, 3]), 5)
    assert counts.tolist() == [0, 2, 0, 2, 0]
    assert v[[0, 2, 4]].eq(0).all()
    assert v[[1, 3]].eq(3).all()


def test_mean_logits_of_nothing_are_zero() -> None:
    v, counts = mean_logits(torch.empty(0, 3), torch.empty(0, dtype=torch.int64), 3)
    assert v.eq(0).all()
    assert counts.eq(0).all()


def test_mean_logits_of_mixed_images_are_those_of_the_images_that_are_not_mixed() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0], [3.0, -4.0, 1.0], [5.0, 6.0, 7.0], [9.0, 9.0, 9.0]])
    labels = torch.tensor([[0, 0, 1.0], [0, 0, 1.0], [1.0, 0, 0], [0.25, 0.0, 0.75]])
    v, counts = mean_logits(logits, labels, 3)
    assert v.tolist() == [[5.0, 6.0, 7.0], [0.0, 0.0, 0.0], [2.0, -1.0, 0.5]]
    assert counts.tolist() == [1, 0, 2]


def test_soft_labels_divide_by_the_temperature_once() -> None:
    r = soft_labels(torch.tensor([[4.0, 0.0], [0.0, 0.0]]), 2.0)
    right = 1 / (1 + math.exp(-2.0))
    torch.testing.assert_close(r, torch.tensor([[right, 1 - right], [0.5, 0.5]]))


def test_soft_labels_of_a_client_are_the_softmax_of_the_mean_logit_not_the_mean_softmax() -> None:
    # The model's logits are the image's two pixels: (100, 0) and (10, 0), mean (55, 0), with tau = 20.
    task = Task("pixels", 1, 1, 2, 2, mean=(0.0,), std=(1 / 255,))
    images = torch.tensor([[100, 0], [10, 0], [0, 7]], dtype=torch.uint8).view(3, 1, 1, 2)
    shard = Shard(images, torch.tensor([0, 0, 1]), 2)
    options = FedAFOptions(ipc=2, init="noise", temperature=20.0)
    method = FedAF(options, task, Architecture(lambda key: nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False))))
    weights = {"1.weight": torch.eye(2)}
    phase = method.phases[0]
    ask = phase.ask(method.initial(Key(0)), "a")
    outcome = phase.work_one(type(ask)(weights), Client("a", shard, Key(1)), EagerEngine(torch.device("cpu")))
    reply = outcome.reply.tensors

    assert reply["classes"].tolist() == [0], "class 1 has fewer samples than ipc: the client does not speak for it"
    torch.testing.assert_close(reply["mean_logits"], torch.tensor([[55.0, 0.0]]), rtol=1e-5, atol=1e-5)
    of_the_mean = 1 / (1 + math.exp(-55 / 20))
    mean_of_softmaxes = (1 / (1 + math.exp(-100 / 20)) + 1 / (1 + math.exp(-10 / 20))) / 2
    assert reply["soft_labels"][0, 0].item() == pytest.approx(of_the_mean, abs=1e-5)
    assert abs(of_the_mean - mean_of_softmaxes) > 0.1
    phase.schema(ask).validate(outcome.reply)


def test_a_class_is_averaged_over_the_clients_that_sent_it_only() -> None:
    shares = [
        (torch.tensor([0, 2]), torch.tensor([[1.0, 2.0, 3.0], [6.0, 0.0, 0.0]])),
        (torch.tensor([2]), torch.tensor([[0.0, 3.0, -2.0]])),
        (torch.empty(0, dtype=torch.int64), torch.empty(0, 3)),
    ]
    v, known = average_over_owners(shares, 3)
    assert v.tolist() == [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [3.0, 1.5, -1.0]]
    assert known.tolist() == [True, False, True]


def test_averaged_soft_labels_are_still_distributions() -> None:
    shares = [(torch.tensor([0, 1, 2]), R), (torch.tensor([1]), T[1:2]), (torch.tensor([1]), T[2:])]
    r, known = average_over_owners(shares, 3)
    assert known.all()
    torch.testing.assert_close(r.sum(1), torch.ones(3))


def test_knowledge_matching_is_half_the_sum_of_both_divergences() -> None:
    loss = knowledge_matching(R.log(), T.log(), EVERY)
    by_hand = sum(symmetric_kl(r, t) for r, t in zip(R, T, strict=True)) / 3
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)


def test_knowledge_matching_is_symmetric() -> None:
    torch.testing.assert_close(knowledge_matching(R.log(), T.log(), EVERY), knowledge_matching(T.log(), R.log(), EVERY))


def test_knowledge_matching_is_zero_at_equality_and_positive_elsewhere() -> None:
    assert knowledge_matching(R.log(), R.log(), EVERY).item() == 0
    assert knowledge_matching(R.log(), T.log(), EVERY).item() > 0


def test_sum_is_mean_times_the_number_of_shared_classes() -> None:
    shared = torch.tensor([True, False, True])
    total = knowledge_matching(R.log(), T.log(), shared, reduction="sum")
    assert total.item() == pytest.approx(symmetric_kl(R[0], T[0]) + symmetric_kl(R[2], T[2]), rel=1e-5)
    torch.testing.assert_close(total, 2 * knowledge_matching(R.log(), T.log(), shared))


def test_masked_classes_have_no_influence_and_no_gradient() -> None:
    shared = torch.tensor([True, False, True])
    nobody_sent = R.clone()
    nobody_sent[1] = torch.finfo(torch.float32).tiny  # what the server makes of a row of zeros before its logarithm
    student = T.log().requires_grad_()
    loss = knowledge_matching(nobody_sent.log(), student, shared)
    (gradient,) = torch.autograd.grad(loss, student)
    torch.testing.assert_close(loss.detach(), knowledge_matching(R.log(), T.log(), shared))
    assert gradient.isfinite().all()
    assert gradient[1].eq(0).all()
    assert gradient[[0, 2]].ne(0).any()


def test_knowledge_matching_without_shared_classes_is_zero_with_a_zero_gradient() -> None:
    student = T.log().requires_grad_()
    loss = knowledge_matching(R.log(), student, torch.zeros(3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert student.grad is not None
    assert student.grad.eq(0).all()


def test_knowledge_matching_gradient_reaches_the_student_through_both_divergences() -> None:
    student = T.double().log().requires_grad_()
    local = R.double().log()
    (gradient,) = torch.autograd.grad(knowledge_matching(local, student, EVERY, reduction="sum"), student)
    t, r = T.double(), R.double()
    torch.testing.assert_close(gradient, (-r + t * (t.log() - r.log() + 1)) / 2)
