"""Class-wise knowledge: what clients tell of their data, and how the server matches it. Equations are FedAF's."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def mean_logits(logits: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """v_c, the mean logit of each class (also u_c, on condensed data), and how many samples each class had.

    Rows of classes without samples are zero: mask them by the counts.
    """
    members = F.one_hot(labels, num_classes).float()
    counts = members.sum(0)
    with torch.autocast(logits.device.type, enabled=False):  # a mean in bf16 would be no use
        return members.T @ logits.float() / counts.clamp(min=1).unsqueeze(1), counts


def soft_labels(logits: Tensor, temperature: float) -> Tensor:
    """r_c = softmax(v_c / tau): the softmax of the mean logit, not the mean of softmaxes."""
    return torch.softmax(logits / temperature, dim=-1)


def average_over_owners(shares: Iterable[tuple[Tensor, Tensor]], num_classes: int) -> tuple[Tensor, Tensor]:
    """v_c and r_c on the server: each class averaged equally over the clients that sent it.

    ``shares`` are pairs of class ids [m] and their rows [m, num_classes]. Returns the averages [classes,
    num_classes] and a mask of the classes anyone sent; the other rows are zero.
    """
    total = torch.zeros(num_classes, num_classes)
    owners = torch.zeros(num_classes)
    for classes, rows in shares:
        total[classes] += rows
        owners[classes] += 1
    return total / owners.clamp(min=1).unsqueeze(1), owners > 0


def knowledge_matching(local: Tensor, student: Tensor, shared: Tensor, *, reduction: str = "mean") -> Tensor:
    """L_LGKM = (KL(R || T) + KL(T || R)) / 2 over the classes in the mask ``shared``.

    ``local`` is R and ``student`` is T, both as logarithms of distributions [classes, num_classes].
    """
    local, student = (torch.where(shared.unsqueeze(1), rows, 0.0) for rows in (local, student))  # -inf has no gradient
    total = ((local.exp() - student.exp()) * (local - student)).sum() / 2  # both divergences in one
    return total if reduction == "sum" else total / shared.sum().clamp(min=1)
