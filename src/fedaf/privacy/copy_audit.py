"""The copy audit: how close are shared images to private ones, compared with real images among each other?

It covers all images that a client sent in a run: the client keeps the audit of the rounds so far in its state, adds the
images of the round, and reports the sum.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedaf.privacy.copy_distances import DISTANCES, reduced
from fedaf.privacy.copy_measures import Comparison, compare, limits
from fedaf.protocol import Key, Number, Shard

_SMALLEST_ERROR = 1 / 12  # mean squared error of rounding; an exact copy has 58.9 dB
_HIGHEST = 10 * math.log10(255**2 / _SMALLEST_ERROR)
_DECIMALS = 4  # of the figures that a client sends
_HELD_OUT = 300  # real images of a client, over all classes, that set the limits

_Known = Sequence[tuple[float, float]]  # values and the number of images that each is of


class _Figure(NamedTuple):
    """A scalar of the audit: its bounds, the scalar with the number of images it is of, and how to combine it."""

    number: Number
    images: str
    over: Callable[[_Known], float]


def _sum(known: _Known) -> float:
    return sum(value for value, _ in known)


def _mean(known: _Known) -> float:
    if len(known) == 1:
        return known[0][0]  # exactly, whatever the number of images
    return sum(value * images for value, images in known) / sum(images for _, images in known)


def _lowest(known: _Known) -> float:
    return min(value for value, _ in known)


def _highest(known: _Known) -> float:
    return max(value for value, _ in known)


_COUNT, _PSNR, _SHARE = Number(int, 0, 1 << 32), Number(float, 0, _HIGHEST + 1), Number(float, 0, 1)


def _psnr_figures(who: str) -> dict[str, _Figure]:
    images = f"{who}_images"
    return {
        images: _Figure(_COUNT, images, _sum),
        f"{who}_psnr_mean": _Figure(_PSNR, images, _mean),
        f"{who}_psnr_max": _Figure(_PSNR, images, _highest),
        f"{who}_from_source": _Figure(_SHARE, images, _mean),
    }


def _ratio_figures(who: str, last: str) -> dict[str, _Figure]:
    compared = f"{who}_compared"
    figures = {
        compared: _Figure(_COUNT, compared, _sum),
        f"{who}_correlation_mean": _Figure(_SHARE, compared, _mean),
        f"{who}_correlation_max": _Figure(_SHARE, compared, _highest),
    }
    for name in DISTANCES:
        figures[f"{who}_{name}_mean"] = _Figure(_SHARE, compared, _mean)
        figures[f"{who}_{name}_min"] = _Figure(_SHARE, compared, _lowest)
        figures[f"{who}_{name}_{last}"] = _Figure(_SHARE, compared, _mean)
    return figures


# The order is that of ``audit_tensor``. Audits in older checkpoints have the figures of PSNR only, so these come first.
_FIGURES: Mapping[str, _Figure] = {
    **_psnr_figures("audit"),
    **_psnr_figures("held_out"),
    **_ratio_figures("audit", "copied"),
    "audit_copied": _Figure(_SHARE, "audit_compared", _mean),
    **_ratio_figures("held_out", "limit"),
}
#: The scalars that a client reports with its images: numbers, means and extremes only, nothing per image.
AUDIT_SCALARS: Mapping[str, Number] = {name: figure.number for name, figure in _FIGURES.items()}


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

    Each shared image is compared with the real images of its class. As a baseline, samples of real images are compared
    with the other real images (``held_out``). The limits below which an image counts as a copy come from the first
    audit of a run and do not change afterwards, so that rounds add up.

    Args:
        shared: uint8 images [classes, ipc, C, H, W].
        sources: Rows of the shard that each image was made from, [classes, ipc, n].
        shard: The client's data.
        classes: The classes of ``shared``.
        key: Source of the sample for the baseline of PSNR.
        device: Where to compute.
        before: The audit of earlier rounds, as ``audit_tensor`` returned it.

    Returns:
        The scalars of ``AUDIT_SCALARS``: numbers of images; mean and maximum PSNR to the nearest real image, and the
        share of images whose nearest real image is one of their sources; mean and maximum correlation; and for each
        distance in ``DISTANCES`` the mean and minimum of the nearest-neighbour ratio, the limit, and the share of
        images below it. ``audit_copied`` is the share of images below any limit.
    """
    earlier = dict.fromkeys(AUDIT_SCALARS, 0.0) if before is None else _scalars(before)
    audit: list[tuple[Tensor, Tensor]] = []
    held_out: list[tuple[Tensor, Tensor]] = []
    compared: list[Comparison] = []
    baseline: list[Comparison] = []
    generator = key.torch()
    for i, label in enumerate(classes):
        rows = shard.rows_of(label)
        images = shard.images[rows].to(device)
        real = images.flatten(1).float()
        audit.append(_nearest(shared[i].to(device).flatten(1).float(), real, rows, sources[i]))
        picks = torch.randperm(len(rows), generator=generator)[: shared.shape[1]]
        if len(rows) > 1:
            held_out.append(_nearest(real[picks.to(device)], real, rows, sources[i][: len(picks)], without=picks))
        small = reduced(images)
        compared.append(compare(reduced(shared[i].to(device)), small))
        if len(rows) > 1 and not earlier["held_out_compared"]:
            picks = _fixed_sample(label, len(rows), -(-_HELD_OUT // len(classes))).to(device)
            baseline.append(compare(small[picks], small, without=picks))
    found = {**_psnr_summary("audit", audit), **_psnr_summary("held_out", held_out)}
    found |= _ratio_summary("held_out", baseline)
    if earlier["held_out_compared"]:
        limit = torch.tensor([earlier[f"held_out_{name}_limit"] for name in DISTANCES], dtype=torch.float64)
    else:
        limit = limits(_joined(baseline).ratios)
        found |= _by_measure("held_out", "limit", limit)
    found |= _ratio_summary("audit", compared)
    copied = _joined(compared).ratios < limit
    found |= _by_measure("audit", "copied", copied.double().sum(0) / max(1, len(copied)))
    found["audit_copied"] = float(copied.any(1).double().sum() / max(1, len(copied)))
    return _union([earlier, found])


def rounded_audit(scalars: Mapping[str, float]) -> dict[str, float]:
    """Return the audit as a client sends it: four decimals, which need fewer bytes and tell no more than is of use.

    Args:
        scalars: The result of ``copy_audit``.
    """
    return {name: round(scalars[name], _DECIMALS) for name in AUDIT_SCALARS}


def audit_tensor(scalars: Mapping[str, Any]) -> Tensor:
    """Return the audit among the scalars of a reply as a tensor, for the state of client and server."""
    return torch.tensor([scalars[name] for name in AUDIT_SCALARS], dtype=torch.float64)


def pool_audits(audits: Iterable[Tensor]) -> dict[str, float]:
    """Return the figures for the report from the audits of several clients; empty if no images were sent.

    Figures of which no client has any, because all their images are from before the figure existed, are left out.

    Args:
        audits: One per client, as ``audit_tensor`` returned it.
    """
    parts = [scalars for scalars in map(_scalars, audits) if scalars["audit_images"] > 0]
    if not parts:
        return {}
    union = _union(parts)
    known = {name for name, figure in _FIGURES.items() if union["audit_compared"] or "compared" not in figure.images}
    return {name.removeprefix("audit_"): value for name, value in union.items() if name in known}


def _scalars(audit: Tensor) -> dict[str, float]:
    """Return the scalars that ``audit_tensor`` stored; those that an older version did not have are 0, of 0 images."""
    values = audit.tolist() + [0.0] * (len(AUDIT_SCALARS) - len(audit))
    return {name: number.kind(value) for (name, number), value in zip(AUDIT_SCALARS.items(), values, strict=True)}


def _union(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine the audits of disjoint sets of images: means weighted by images, extremes over all."""
    union: dict[str, float] = {}
    for name, figure in _FIGURES.items():
        known = [(part[name], part[figure.images]) for part in parts if part[figure.images]]
        union[name] = figure.over(known) if known else figure.number.kind(0)
    return union


def _fixed_sample(label: int, count: int, number: int) -> Tensor:
    """Return rows of a class that depend on its size only, so that the limits depend on nothing but the data."""
    return torch.randperm(count, generator=Key(0).derive("copy audit", label).torch())[:number]


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


def _psnr_summary(who: str, found: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    psnr = torch.cat([p for p, _ in found]) if found else torch.zeros(1)
    hits = torch.cat([h for _, h in found]) if found else torch.zeros(1, dtype=torch.bool)
    return {
        f"{who}_images": len(psnr) if found else 0,
        f"{who}_psnr_mean": float(psnr.double().mean()),
        f"{who}_psnr_max": float(psnr.max()),
        f"{who}_from_source": float(hits.double().mean()),
    }


def _joined(found: list[Comparison]) -> Comparison:
    nothing = torch.zeros(0, len(DISTANCES), dtype=torch.float64)
    ratios = torch.cat([nothing, *(each.ratios for each in found)])
    return Comparison(ratios, torch.cat([nothing[:, 0], *(each.correlation for each in found)]))


def _by_measure(who: str, what: str, values: Tensor) -> dict[str, float]:
    return {f"{who}_{name}_{what}": value for name, value in zip(DISTANCES, values.tolist(), strict=True)}


def _ratio_summary(who: str, found: list[Comparison]) -> dict[str, float]:
    ratios, correlation = _joined(found)
    if not len(ratios):
        names = [name for name, figure in _FIGURES.items() if figure.images == f"{who}_compared"]
        return {name: _FIGURES[name].number.kind(0) for name in names}
    return {
        f"{who}_compared": len(ratios),
        f"{who}_correlation_mean": float(correlation.mean()),
        f"{who}_correlation_max": float(correlation.max()),
        **_by_measure(who, "mean", ratios.mean(0)),
        **_by_measure(who, "min", ratios.amin(0)),
    }
