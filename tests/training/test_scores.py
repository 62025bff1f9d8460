"""Figures of merit: closed forms, and scikit-learn's values on random logits."""

import math
import time

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, log_loss, roc_auc_score
from torch import Tensor

from fedaf.training.scores import (
    Holding,
    accuracy_by_client,
    macro_auc,
    mean_cross_entropy,
    own_accuracy,
    score_logits,
)


def random_logits(samples: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits that know a little about their labels; every class has samples."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (samples,), generator=generator)
    labels[:classes] = torch.arange(classes)
    logits = torch.randn(samples, classes, generator=generator)
    logits[torch.arange(samples), labels] += 1
    return logits, labels


@pytest.mark.parametrize(("samples", "classes"), [(200, 3), (500, 10), (2000, 100)])
def test_on_random_logits_the_figures_are_those_of_scikit_learn(samples, classes):
    logits, labels = random_logits(samples, classes)
    found, truth, predicted = score_logits(logits, labels), labels.numpy(), logits.argmax(1).numpy()
    probabilities = logits.double().softmax(1).numpy()
    assert found.accuracy == pytest.approx(100 * np.mean(truth == predicted))
    assert found.balanced_accuracy == pytest.approx(100 * balanced_accuracy_score(truth, predicted))
    assert found.confusion == confusion_matrix(truth, predicted, labels=range(classes)).tolist()
    assert found.macro_auc == pytest.approx(roc_auc_score(truth, probabilities, multi_class="ovr"), abs=1e-12)
    assert found.loss == pytest.approx(log_loss(truth, probabilities, labels=range(classes)))


def test_two_classes_have_the_auc_of_either():
    logits, labels = random_logits(300, 2)
    expected = roc_auc_score(labels.numpy(), logits.double().softmax(1)[:, 1].numpy())
    assert macro_auc(logits, labels) == pytest.approx(expected, abs=1e-12)


def test_a_perfect_model():
    labels = torch.tensor([0, 1, 2, 2, 1])
    found = score_logits(50.0 * torch.eye(3)[labels], labels)
    assert (found.accuracy, found.balanced_accuracy, found.macro_auc) == (100, 100, 1)
    assert found.by_class == [100, 100, 100]
    assert found.confusion == [[1, 0, 0], [0, 2, 0], [0, 0, 2]]
    assert found.loss == pytest.approx(0, abs=1e-15)


def test_a_model_that_says_the_same_of_every_image_is_at_chance():
    """It predicts class 0, all its scores are equal, and its loss is that of a guess."""
    labels = torch.tensor([0, 0, 0, 1])
    found = score_logits(torch.zeros(4, 2), labels)
    assert (found.accuracy, found.balanced_accuracy) == (75, 50)
    assert found.by_class == [100, 0]
    assert found.macro_auc == 0.5
    assert found.loss == pytest.approx(math.log(2))
    assert found.confusion == [[3, 0], [1, 0]]


def test_equal_scores_count_half():
    """Class 1 has the scores 1, 0 and the other class 0, 0: of four pairs, two are right and two are equal."""
    logits = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    labels = torch.tensor([1, 1, 0, 0])
    assert macro_auc(logits, labels) == pytest.approx((2 + 2 / 2) / 4)
    assert macro_auc(logits, labels) == roc_auc_score(labels.numpy(), logits.softmax(1)[:, 1].numpy())


def test_probabilities_too_small_for_a_float_are_still_ordered():
    logits = torch.tensor([[0.0, -800.0], [0.0, -900.0], [0.0, -1000.0]])
    of_class_0 = 0.5  # its probabilities round to 1
    assert macro_auc(logits, torch.tensor([1, 0, 0])) == (of_class_0 + 1) / 2


def test_a_class_without_test_samples_counts_nowhere():
    labels = torch.tensor([0, 2, 2, 2])
    found = score_logits(torch.eye(3)[[0, 2, 1, 1]], labels)
    assert found.by_class == [100, None, pytest.approx(100 / 3)]
    assert found.balanced_accuracy == pytest.approx((100 + 100 / 3) / 2)
    assert found.confusion == [[1, 0, 0], [0, 0, 0], [0, 2, 1]]
    zero, two = 1.0, (2 * 0.5 + 1) / 3  # of class 2, two scores equal that of the other image
    assert found.macro_auc == pytest.approx((zero + two) / 2)


def test_with_one_class_only_there_is_no_auc():
    found = score_logits(torch.zeros(3, 4), torch.tensor([0, 0, 0]))
    assert found.macro_auc is None
    assert (found.accuracy, found.balanced_accuracy) == (100, 100)


def test_a_loss_that_is_not_finite_is_unknown():
    assert mean_cross_entropy(torch.tensor([[math.inf, 0.0]]), torch.tensor([1])) is None
    assert mean_cross_entropy(torch.tensor([[math.nan, 0.0]]), torch.tensor([1])) is None
    assert score_logits(torch.tensor([[math.nan, 0.0], [0.0, 1.0]]), torch.tensor([1, 0])).macro_auc is not None


def test_domains_change_the_accuracy_and_nothing_else():
    logits, labels = random_logits(300, 5)
    domains = (torch.arange(300) >= 280) * 2
    plain, found = score_logits(logits, labels), score_logits(logits, labels, domains, ("a", "empty", "b"))
    correct = (logits.argmax(1) == labels).double()
    assert found.by_domain == {
        name: pytest.approx(100 * float(part.mean())) for name, part in (("a", correct[:280]), ("b", correct[280:]))
    }
    assert found.accuracy == sum(found.by_domain.values()) / 2 != plain.accuracy
    assert (found.balanced_accuracy, found.macro_auc, found.loss) == (
        plain.balanced_accuracy,
        plain.macro_auc,
        plain.loss,
    )


def test_accuracy_on_a_label_distribution_by_hand():
    by_class = [90.0, None, 60.0, 0.0]
    assert own_accuracy(by_class, [10, 0, 30, 0]) == (10 * 90 + 30 * 60) / 40
    assert own_accuracy(by_class, [10, 1000, 30, 0]) == (10 * 90 + 30 * 60) / 40, "a class that is not tested counts"
    assert own_accuracy(by_class, [0, 0, 0, 5]) == 0
    assert own_accuracy(by_class, [0, 7, 0, 0]) is own_accuracy(by_class, [0, 0, 0, 0]) is None


def test_a_client_with_the_label_distribution_of_the_test_set_has_its_accuracy():
    logits, labels = random_logits(400, 6)
    found = score_logits(logits, labels)
    counts = torch.bincount(labels, minlength=6).tolist()
    assert own_accuracy(found.by_class, counts) == pytest.approx(found.accuracy)
    assert own_accuracy(found.by_class, [1] * 6) == pytest.approx(found.balanced_accuracy)


def test_clients_have_their_label_distribution_or_their_domain():
    logits, labels = random_logits(60, 3)
    found = score_logits(logits, labels, torch.arange(60) % 2, ("photo", "sketch", "no test data"))
    clients = {
        "a": Holding([1, 0, 0]),
        "b": Holding([5, 5, 5], "sketch"),
        "nothing": Holding([0, 0, 0]),
        "untested": Holding([5, 5, 5], "no test data"),
    }
    assert accuracy_by_client(found, clients) == {"a": found.by_class[0], "b": found.by_domain["sketch"]}


def test_all_figures_of_cifar_100_take_a_fraction_of_a_second():
    """Tens of milliseconds on an idle core; ranks by comparing all pairs would take minutes."""
    logits, labels = random_logits(10_000, 100)
    started = time.perf_counter()
    score_logits(logits, labels)
    assert time.perf_counter() - started < 2
