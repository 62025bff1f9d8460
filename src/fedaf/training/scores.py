"""The figures of merit of a model, computed from its logits on a test set.

Accuracies are in per cent, the AUC is between 0 and 1, and the loss is in nats.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

#: What a client sends for a figure that is not defined on its data: scalars of a message are numbers.
UNDEFINED = -1.0


@dataclass(frozen=True)
class Scores:
    """The figures of merit of one model on one test set.

    Args:
        accuracy: Share of correct predictions; with domains the mean over domains, each with equal weight.
        by_domain: Accuracy on each domain that has test samples; empty without domains.
        by_class: Accuracy on each class; ``None`` for a class without test samples.
        balanced_accuracy: Mean of ``by_class`` over the classes with test samples.
        macro_auc: Mean over classes of the area under the ROC curve, one class against the rest; ``None`` if no class
            has both positive and negative samples.
        loss: Mean cross-entropy; ``None`` if it is not finite.
        confusion: Number of test samples by true class (rows) and predicted class (columns).
    """

    accuracy: float
    by_domain: Mapping[str, float]
    by_class: Sequence[float | None]
    balanced_accuracy: float
    macro_auc: float | None
    loss: float | None
    confusion: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Holding:
    """What is known of a client's data when its accuracy is computed.

    Args:
        counts: Samples per class.
        domain: The client's domain, if every domain is one client.
    """

    counts: Sequence[int]
    domain: str | None = None


def score_logits(logits: Tensor, labels: Tensor, domains: Tensor | None = None, names: Sequence[str] = ()) -> Scores:
    """Compute all figures of merit from one pass over a test set.

    Args:
        logits: [N, classes], on any device.
        labels: int64 [N].
        domains: int64 [N], the domain of each sample, if there are domains.
        names: Names of the domains.
    """
    predicted, logits = logits.argmax(1).cpu(), logits.cpu()  # equal logits may have another argmax on another device
    correct = predicted == labels
    confusion = confusion_matrix(predicted, labels, logits.shape[1])
    by_class = class_accuracies(confusion)
    by_domain: dict[str, float] = {}
    if domains is not None:
        rows = {name: domains == number for number, name in enumerate(names)}
        by_domain = {name: percent(correct[of_domain]) for name, of_domain in rows.items() if bool(of_domain.any())}
    return Scores(
        accuracy=percent(correct) if domains is None else sum(by_domain.values()) / len(by_domain),
        by_domain=by_domain,
        by_class=by_class,
        balanced_accuracy=fmean(accuracy for accuracy in by_class if accuracy is not None),
        macro_auc=macro_auc(logits, labels),
        loss=mean_cross_entropy(logits, labels),
        confusion=confusion.tolist(),
    )


def percent(correct: Tensor) -> float:
    """Return the share of true values, in per cent."""
    return 100 * int(correct.sum()) / len(correct)


def confusion_matrix(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the number of samples by true class (rows) and predicted class (columns), int64 [classes, classes]."""
    return torch.bincount(labels * classes + predicted, minlength=classes * classes).view(classes, classes)


def class_accuracies(confusion: Tensor) -> list[float | None]:
    """Return the accuracy on each class, from a confusion matrix; ``None`` for a class without samples."""
    rows = zip(confusion.diagonal().tolist(), confusion.sum(1).tolist(), strict=True)
    return [100 * correct / samples if samples else None for correct, samples in rows]


def macro_auc(logits: Tensor, labels: Tensor) -> float | None:
    """Return the mean over classes of the area under the ROC curve, one class against the rest.

    The area of class c is the probability that a sample of c has a higher softmax probability of c than a sample of
    another class; equal probabilities count half. Classes without positive or without negative samples are left out.

    Args:
        logits: [N, classes], on the CPU.
        labels: int64 [N].

    Returns:
        The mean area, or ``None`` if no class has both positive and negative samples.
    """
    scores = F.log_softmax(logits.double(), 1).T.contiguous().numpy()  # ordered as the probabilities, without underflow
    truth, areas = labels.numpy(), []
    for label, of_class in enumerate(scores):
        positive = of_class[truth == label]
        negative = np.sort(of_class[truth != label])
        if len(positive) and len(negative):
            below = np.searchsorted(negative, positive, "left") + np.searchsorted(negative, positive, "right")
            areas.append(float(below.sum()) / (2 * len(positive) * len(negative)))
    return fmean(areas) if areas else None


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> float | None:
    """Return the mean cross-entropy of logits on the CPU; ``None`` if it is not finite."""
    loss = float(F.cross_entropy(logits.double(), labels))
    return loss if math.isfinite(loss) else None


def own_accuracy(by_class: Sequence[float | None], counts: Sequence[int]) -> float | None:
    """Return the accuracy on a client's own label distribution: sum_c p_kc a_c.

    a_c is the accuracy on class c and p_kc the share of class c among the client's samples, both over the classes with
    test samples.

    Args:
        by_class: Accuracy on each class; ``None`` for a class without test samples.
        counts: The client's samples per class.

    Returns:
        The accuracy, or ``None`` if the client has no samples of a class with test samples.
    """
    tested = [(count, a) for count, a in zip(counts, by_class, strict=True) if a is not None]
    total = sum(count for count, _ in tested)
    return sum(count * a for count, a in tested) / total if total else None


def accuracy_by_client(scores: Scores, clients: Mapping[str, Holding]) -> dict[str, float]:
    """Return the accuracy of one model on the data of each client.

    It is the accuracy on the client's own label distribution or, if every domain is one client, on the test samples of
    its domain. Clients for which it is not defined are left out.
    """
    found = {
        name: own_accuracy(scores.by_class, held.counts) if held.domain is None else scores.by_domain.get(held.domain)
        for name, held in clients.items()
    }
    return {name: accuracy for name, accuracy in found.items() if accuracy is not None}
