"""Class-wise knowledge: what clients send about their data, and how the server matches it. Equations are FedAF's."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def mean_logits(logits: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean logit of each class and the number of samples per class.

    It is v_kc on real data (Eq. 5) and u_kc on condensed data (Eq. 6). Rows of classes without samples are zero.

    Args:
        logits: Logits [N, num_classes].
        labels: Class ids [N], or class probabilities [N, num_classes] after CutMix; samples mixed with another class
            are left out.
        num_classes: The number of classes.
    """
    members = (labels == 1 if labels.is_floating_point() else F.one_hot(labels, num_classes)).float()
    counts = members.sum(0)
    with torch.autocast(logits.device.type, enabled=False):  # a mean in bf16 would be too coarse
        return members.T @ logits.float() / counts.clamp(min=1).unsqueeze(1), counts


def soft_labels(logits: Tensor, temperature: float) -> Tensor:
    """Return r_kc = softmax(v_kc / tau) (Eq. 11): the softmax of the mean logit, not the mean of softmaxes."""
    return torch.softmax(logits / temperature, dim=-1)


def average_over_owners(shares: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> tuple[Tensor, Tensor]:
    """Average class-wise vectors over clients: v_c (Eq. 8) or r_c (Eq. 12).

    Every class is averaged with equal weights over the clients that sent it. The paper's 1/K with zeros for the other
    clients would shrink v_c, and r_c would not be a distribution.

    Args:
        shares: For each client, class ids [m] and their rows [m, num_classes].
        num_classes: The number of classes.

    Returns:
        The averages [num_classes, num_classes], and a mask of the classes that any client sent. The other rows are 0.
    """
    total = torch.zeros(num_classes, num_classes)
    owners = torch.zeros(num_classes)
    for classes, rows in shares:
        total[classes] += rows
        owners[classes] += 1
    return total / owners.clamp(min=1).unsqueeze(1), owners > 0


def knowledge_matching(local: Tensor, student: Tensor, shared: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return L_LGKM = (KL(R || T) + KL(T || R)) / 2 (Eq. 15).

    Args:
        local: log R, averaged over clients, [classes, num_classes].
        student: log T (Eq. 13), of the model on condensed data, [classes, num_classes].
        shared: Mask of the classes to match.
        reduction: "mean" or "sum" over these classes.
    """
    local, student = (torch.where(shared.unsqueeze(1), rows, 0.0) for rows in (local, student))  # avoids nan from -inf
    total = ((local.exp() - student.exp()) * (local - student)).sum() / 2  # the sum of both divergences
    return total if reduction == "sum" else total / shared.sum().clamp(min=1)
