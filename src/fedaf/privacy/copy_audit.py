"""The copy audit: how close are shared images to private ones, compared with real images among each other?

It covers all images that a client sent in a run: the client keeps the audit of the rounds so far in its state, adds the
images of the round, and reports the sum.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedaf.protocol import Key, Number, Shard

_SMALLEST_ERROR = 1 / 12  # mean squared error of rounding; an exact copy has 58.9 dB
_HIGHEST = 10 * math.log10(255**2 / _SMALLEST_ERROR)

_PSNR, _SHARE = Number(float, 0, _HIGHEST + 1), Number(float, 0, 1)
_MEASURES = {"images": Number(int, 0, 1 << 32), "psnr_mean": _PSNR, "psnr_max": _PSNR, "from_source": _SHARE}
#: The scalars that a client reports with its images: means and maxima only, nothing per image.
AUDIT_SCALARS: Mapping[str, Number] = {
    f"{who}_{what}": number for who in ("audit", "held_out") for what, number in _MEASURES.items()
}


def copy_audit(
    shared: Tensor,
    sources: Tensor,
    shard: Shard,
    classes: list[int],
    key: Key,
    device: torch.device,
    before: Tensor | None = None,
) -> dict[str, float]:
    """Measure how close shared images are to the client's data, together with those of earlier rounds.

    For each shared image, find the nearest real image of its class. As a baseline, do the same for a sample of real
    images among the other real images (``held_out``).

    Args:
        shared: uint8 images [classes, ipc, C, H, W].
        sources: Rows of the shard that each image was made from, [classes, ipc, n].
        shard: The client's data.
        classes: The classes of ``shared``.
        key: Source of the baseline's sample.
        device: Where to compute.
        before: The audit of earlier rounds, as ``audit_tensor`` returned it.

    Returns:
        The scalars of ``AUDIT_SCALARS``: numbers of images, mean and maximum PSNR to the nearest real image, and the
        share of images whose nearest real image is one of their sources.
    """
    audit: list[tuple[Tensor, Tensor]] = []
    held_out: list[tuple[Tensor, Tensor]] = []
    generator = key.torch()
    for i, label in enumerate(classes):
        rows = shard.rows_of(label)
        real = shard.images[rows].to(device).flatten(1).float()
        audit.append(_nearest(shared[i].to(device).flatten(1).float(), real, rows, sources[i]))
        picks = torch.randperm(len(rows), generator=generator)[: shared.shape[1]]
        if len(rows) > 1:
            held_out.append(_nearest(real[picks.to(device)], real, rows, sources[i][: len(picks)], without=picks))
    found = {**_summary("audit", audit), **_summary("held_out", held_out)}
    return found if before is None else _union([_scalars(before), found])


def audit_tensor(scalars: Mapping[str, Any]) -> Tensor:
    """Return the audit among the scalars of a reply as a tensor, for the state of client and server."""
    return torch.tensor([scalars[name] for name in AUDIT_SCALARS], dtype=torch.float64)


def pool_audits(audits: Iterable[Tensor]) -> dict[str, float]:
    """Return the figures for the report from the audits of several clients; empty if no images were sent.

    Args:
        audits: One per client, as ``audit_tensor`` returned it.
    """
    parts = [scalars for scalars in map(_scalars, audits) if scalars["audit_images"] > 0]
    return {name.removeprefix("audit_"): value for name, value in _union(parts).items()} if parts else {}


def _scalars(audit: Tensor) -> dict[str, float]:
    """Return the scalars that ``audit_tensor`` stored."""
    return {
        name: number.kind(value) for (name, number), value in zip(AUDIT_SCALARS.items(), audit.tolist(), strict=True)
    }


def _union(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine the audits of disjoint sets of images: means weighted by images, maxima over all."""
    union: dict[str, float] = {}
    for who in ("audit", "held_out"):
        images = sum(part[f"{who}_images"] for part in parts)
        union[f"{who}_images"] = images
        union[f"{who}_psnr_max"] = max(part[f"{who}_psnr_max"] for part in parts)
        for name in (f"{who}_psnr_mean", f"{who}_from_source"):
            union[name] = sum(part[name] * part[f"{who}_images"] for part in parts) / max(1, images)
    return union


def _nearest(
    images: Tensor, real: Tensor, rows: Tensor, sources: Tensor, without: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the PSNR of each image to its nearest in ``real``, and whether that one is among the image's sources."""
    distance = torch.cdist(images, real)
    if without is not None:
        distance.scatter_(1, without.to(distance.device).unsqueeze(1), torch.inf)
    nearest = distance.argmin(1)
    error = (images - real[nearest]).square().mean(1).clamp(min=_SMALLEST_ERROR)
    psnr = 10 * torch.log10(255**2 / error)
    from_source = (rows[nearest.cpu()].unsqueeze(1) == sources).any(1)
    return psnr.cpu(), from_source


def _summary(prefix: str, found: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    psnr = torch.cat([p for p, _ in found]) if found else torch.zeros(1)
    hits = torch.cat([h for _, h in found]) if found else torch.zeros(1, dtype=torch.bool)
    return {
        f"{prefix}_images": len(psnr) if found else 0,
        f"{prefix}_psnr_mean": float(psnr.double().mean()),
        f"{prefix}_psnr_max": float(psnr.max()),
        f"{prefix}_from_source": float(hits.double().mean()),
    }
