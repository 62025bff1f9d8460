"""Samples that a condensing method leaves out, and why: their class is too small, or the client's policy withholds it.

Only the owner of the data knows these numbers. A client on its own machine logs them; nothing of this is sent.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedaf.client.serving import Admission
from fedaf.errors import Refused
from fedaf.protocol import Method

#: The reason of clients that refuse the method altogether.
_REFUSED = "policy"


@dataclass(frozen=True)
class LeftOut:
    """The samples that are left out of condensation in the whole run.

    Args:
        samples: Their number.
        share: Their share of all samples, between 0 and 1.
        by_reason: Their number by the setting that decides: ``method.ipc``, ``method.min_samples``,
            ``method.init_mean_of``, ``policy.max_images_per_sample`` and so on; ``policy`` if the client refuses.
        by_client: For each client that leaves out any, its classes by reason.
    """

    samples: int
    share: float
    by_reason: Mapping[str, int]
    by_client: Mapping[str, Mapping[str, Sequence[int]]]

    def sentence(self, method: str) -> str | None:
        """Describe the samples that are left out, on one line; ``None`` if there are none."""
        if not self.samples:
            return None
        parts = ", ".join(f"{count} {_because(reason)}" for reason, count in self.by_reason.items())
        return f"{method} leaves {self.samples} samples ({100 * self.share:.1f} %) out of condensation: {parts}."


def _because(reason: str) -> str:
    if reason == _REFUSED:
        return "of clients whose policy refuses"
    return f"{'withheld by' if reason.startswith(_REFUSED) else 'in classes too small for'} {reason}"


def left_out(method: Method, counts: Mapping[str, Sequence[int]], admission: Admission | None = None) -> LeftOut | None:
    """Return the samples that a run leaves out of condensation.

    A class counts if none of its images is ever sent. A policy that withholds images only from some later round on does
    not count, because earlier images stay in use.

    Args:
        method: The method of the run.
        counts: Samples per class, by client.
        admission: Applies the clients' policy, if they have one. Images of earlier runs are not counted.

    Returns:
        The samples; ``None`` for methods that do not condense.
    """
    reasons = {client: _reasons(method, of_client, admission) for client, of_client in counts.items()}
    by_reason: Counter[str] = Counter()
    by_client: dict[str, dict[str, list[int]]] = {}
    for client, of_client in reasons.items():
        if of_client is None:
            return None
        for label, reason in sorted(of_client.items()):
            by_reason[reason] += counts[client][label]
            by_client.setdefault(client, {}).setdefault(reason, []).append(label)
    samples, total = by_reason.total(), sum(map(sum, counts.values()))
    return LeftOut(samples, samples / max(1, total), dict(by_reason.most_common()), by_client)


def _reasons(method: Method, counts: Sequence[int], admission: Admission | None) -> dict[int, str] | None:
    """Return the classes that one client leaves out, each with its reason; ``None`` if the method does not condense."""
    found = method.leaves_out(counts)
    if found is None:
        return None
    reasons = {label: f"method.{option}" for label, option in found.items()}
    disclosure = method.discloses(counts)
    if admission is None or disclosure is None:
        return reasons
    try:
        admission.policy.admit(admission.method_name, disclosure)
    except Refused:
        return {label: _REFUSED for label, count in enumerate(counts) if count}
    withheld = admission.policy.withheld(disclosure.images, counts, sent={})
    return {**reasons, **{label: f"policy.{limit}" for label, limit in withheld.items()}}
