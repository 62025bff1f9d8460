"""The figures of a run, computed from the metrics of its rounds.

Two accuracies are reported, and each has one definition. ``accuracy`` is over test samples: of the server's test set
(with domains: the mean over domains) or, without one, of all clients' test sets together. ``personal`` is the mean over
clients: each client's personal model on its own test data, every client counting the same. A method without a global
model has only the second one, which is then its ``accuracy``. All other metrics are declared in
``fedaf.federation.metrics``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedaf.federation.metrics import METRICS, curves, of_model

_BY_CLIENT = (
    *("accuracy_by_client", "personal_accuracy", "personal_own_accuracy", "personal_samples"),
    *("disclosure", "client_seconds"),
)


def summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of a run.

    Args:
        rounds: The lines of ``metrics.jsonl``.

    Returns:
        Accuracy (by domain: of the best round), all metrics of the last and of the best round, the curve of every
        metric, the round with the best accuracy on the selection images and its test accuracy (``None`` without such
        images), mean bytes per client and round (evaluation apart; ``None`` for a reference, which has no
        communication), seconds, mean overhead by phase, the copy audit of all images that were sent (that of the last
        round that has one), and the condensed images that clients disclosed.
    """
    curve = [m["accuracy"] for m in rounds]
    asked = sum(len(m["asked"]) for m in rounds)

    def bytes_of(records: Iterable[Mapping[str, Mapping[str, int]]]) -> float:
        return sum(sum(by_client.values()) for record in records for by_client in record.values()) / max(1, asked)

    communicates = any(m["upload_bytes"] for m in rounds)

    known = [m for m in rounds if m["accuracy"] is not None]
    best = max(known, key=lambda m: float(m["accuracy"]), default={})
    scored = [m for m in rounds if m.get("selection_accuracy") is not None]
    selected = max(scored, key=lambda m: float(m["selection_accuracy"]), default={})  # the earlier of equal ones
    audits = [m["copy_audit"] for m in rounds if m.get("copy_audit")]
    return {
        "rounds": len(rounds),
        "best_accuracy": best.get("accuracy"),
        "best_accuracy_by_domain": best.get("accuracy_by_domain"),
        "last_accuracy": curve[-1] if curve else None,
        "selected_round": selected.get("round"),
        "selected_accuracy": selected.get("accuracy"),
        "curve": curve,
        "personal": _personal(rounds),
        "upload_bytes_per_client_round": bytes_of(m["upload_bytes"] for m in rounds) if communicates else None,
        "download_bytes_per_client_round": bytes_of(m["download_bytes"] for m in rounds) if communicates else None,
        "evaluation_bytes_per_client_round": bytes_of(m.get("evaluation_bytes", {}) for m in rounds),
        "seconds": sum(sum(m["seconds"].values()) for m in rounds),
        "overhead_seconds": _mean_overhead([m["overhead"] for m in rounds if m.get("overhead")]),
        "copy_audit": audits[-1] if audits else None,
        "disclosed": _disclosed([m["disclosure"] for m in rounds if m.get("disclosure")]),
        "curves": curves(rounds),
        "metrics": {"last": of_model(rounds[-1]), "best": of_model(best)} if rounds else None,
    }


def flat(metrics: Mapping[str, Any]) -> dict[str, int | float | None]:
    """Return the numbers of a round under flat names, for tables and trackers.

    Nested numbers have names with dots (``losses.ce``). Bytes are sums over phases and clients, ``seconds`` is also
    given as a sum, and ``failures`` and ``asked`` are counts. Lists and whatever is given by client are left out.

    Args:
        metrics: A line of ``metrics.jsonl``.
    """
    found: dict[str, int | float | None] = {}
    for name, value in metrics.items():
        if name in ("asked", "failures"):
            found[name] = len(value)
        elif name in ("upload_bytes", "download_bytes", "evaluation_bytes"):
            found[name] = sum(sum(by_client.values()) for by_client in value.values())
        elif name in _BY_CLIENT:
            continue
        elif isinstance(value, Mapping):
            if name == "seconds":
                found[name] = sum(value.values())
            found |= {f"{name}.{key}": number for key, number in flat(value).items()}
        elif value is None or isinstance(value, int | float):
            found[name] = value
    return found


def _personal(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the accuracy of personal models, as the mean over clients; ``None`` for methods without such models.

    ``own`` is the accuracy on each client's own label distribution, in the same rounds.
    """
    known = [m for m in rounds if m.get("personal_accuracy")]
    if not known:
        return None
    mean, own_mean = (METRICS[name].read for name in ("personal_accuracy", "personal_own_accuracy"))
    best, last = max(known, key=lambda m: mean(m) or 0.0), known[-1]
    return {
        "best_accuracy": mean(best),
        "best_by_client": best["personal_accuracy"],
        "last_accuracy": mean(last),
        "best_own_accuracy": own_mean(best),
        "best_own_by_client": best.get("personal_own_accuracy"),
        "last_own_accuracy": own_mean(last),
    }


def _disclosed(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any] | None:
    """Return the condensed images that clients disclosed; ``None`` for methods that send none.

    Args:
        rounds: By client: its images by class in this round, and its own count of all images that it ever sent.

    Returns:
        By client the images that arrived in this run by class and in total, its own count over all runs (including
        replies that were lost), and the most images of a class per sample of that class by this count, which the client
        rounds up. Also the largest total and the largest ratio of all clients.
    """
    if not rounds:
        return None
    clients: dict[str, dict[str, Any]] = {}
    for name in sorted({client for of_round in rounds for client in of_round}):
        replies = [of_round[name] for of_round in rounds if name in of_round]
        images = sum((Counter(reply["images"]) for reply in replies), Counter[str]())
        clients[name] = {
            "images": {label: images[label] for label in sorted(images, key=int)},
            "total": images.total(),
            "all_runs": max(reply["total"] for reply in replies),
            "per_sample_at_most": max(reply["per_sample_at_most"] for reply in replies),
        }
    return {
        "most_images": max(client["total"] for client in clients.values()),
        "per_sample_at_most": max(client["per_sample_at_most"] for client in clients.values()),
        "clients": clients,
    }


def _mean_overhead(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]] | None:
    """Return the mean over rounds, by phase."""
    phases = {phase: [of[phase] for of in rounds if phase in of] for of in rounds for phase in of}
    means = {
        phase: {name: sum(one[name] for one in found) / len(found) for name in found[0]}
        for phase, found in phases.items()
    }
    return means or None
