"""The membership audit of a configuration: run it with canaries, and guess from the shared images which were in.

The results describe private data. They are returned to the caller and written nowhere; the run's files are in a
temporary directory that is deleted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedaf.config import Config
from fedaf.data.dataset import DataSet, Split
from fedaf.data.partition import numbered
from fedaf.federation.events import EVENTS
from fedaf.federation.observer import Observer
from fedaf.federation.run_directory import METRICS, RESULT
from fedaf.methods.condensing import CondensingMethod
from fedaf.privacy.canaries import Canaries
from fedaf.privacy.half_out import HalfOut, half_out
from fedaf.privacy.membership import Membership, Population, measure, membership_scores
from fedaf.privacy.random_features import RandomFeatures, class_means
from fedaf.protocol import Delivery, Key, Listener, Phase, Request, Tensors, Transport, UserError
from fedaf.protocol.messages import Replied
from fedaf.runs.comparison import COMPARISON
from fedaf.runs.experiment import Experiment, playing, prepare

#: ``outlier``: random black and white images. ``natural``: training images that the run uses or not.
Kind = Literal["outlier", "natural"]

FEWEST_CANARIES = 20
_POPULATION = 2000  # images; a larger covariance would take long and tell little more


@dataclass(frozen=True)
class MembershipAudit:
    """What an audit found.

    Args:
        dataset: Name of the data set.
        method: Name of the method.
        kind: Kind of canaries.
        rounds: Rounds of the run.
        shared_images: Number of images that the client sent in all rounds.
        features: Guesses by the mean features of the shared images.
        nearest: Guesses by the distance of each canary to its nearest shared image, which finds copies.
        half_out_pixels: The half-out test in pixels; only for natural canaries.
        half_out_features: The half-out test in features; only for natural canaries.
        copy_audit: The copy audit of the run; ``None`` with differential privacy.
        accuracy: Test accuracy of the run's last round, in per cent.
    """

    dataset: str
    method: str
    kind: Kind
    rounds: int
    shared_images: int
    features: Membership
    nearest: Membership
    half_out_pixels: HalfOut | None = None
    half_out_features: HalfOut | None = None
    copy_audit: Mapping[str, float] | None = None
    accuracy: float | None = None

    @property
    def best(self) -> Membership:
        """The guesses that give more away."""
        return max(self.features, self.nearest, key=lambda found: (found.epsilon, abs(found.auc - 0.5)))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return asdict(self)


def audit(
    config: Config,
    *,
    canaries: int = 500,
    kind: Kind = "outlier",
    networks: int = 4,
    delta: float | None = None,
    confidence: float = 0.95,
    observer: Observer | None = None,
) -> MembershipAudit:
    """Run a condensing method once with canaries, and measure how well its shared images tell which were in.

    One client holds all training data and the canaries that are in. The test images serve as the population that the
    run has not seen.

    Args:
        config: The configuration; its partition is replaced by a single client.
        canaries: Number of canaries. More canaries can prove more, but they are a larger part of the data.
        kind: ``outlier`` or ``natural``.
        networks: Number of random networks that features come from. The run does not use these networks.
        delta: The delta of the bounds on epsilon; ``None``: ``privacy.delta`` of the configuration.
        confidence: The confidence of each bound.
        observer: Receives the events of the run.

    Raises:
        UserError: The method does not condense, the number or kind of canaries is wrong, or the configuration cannot be
            run.
    """
    check(kind, canaries)
    experiment = prepare(single_client(config))
    return audit_experiment(
        experiment,
        canaries=canaries,
        kind=kind,
        networks=networks,
        delta=delta,
        confidence=confidence,
        observer=observer,
    )


def check(kind: str, canaries: int) -> Kind:
    """Check the canaries that were asked for, before any data are read.

    Returns:
        The kind.

    Raises:
        UserError: The kind is unknown, or there are too few canaries.
    """
    known: Kind | None = next((each for each in get_args(Kind) if each == kind), None)
    if known is None:
        what = f"the kind of canaries is {kind!r}; expected one of {', '.join(get_args(Kind))}."
        raise UserError(what, code="FEDAF-AUDIT-KIND")
    if canaries < FEWEST_CANARIES:
        what = f"{canaries} canaries cannot prove anything; use at least {FEWEST_CANARIES}, better some hundred."
        raise UserError(what, code="FEDAF-AUDIT-CANARIES")
    return known


def single_client(config: Config) -> Config:
    """Return a configuration in which one client holds all training data and takes part in every round.

    It has no trackers: the result of an audit is for the owner of the data.
    """
    partition = config.partition.model_copy(update={"kind": "iid", "clients": 1})
    federation = config.federation.model_copy(update={"participation": 1.0})
    return replace(config.untracked(), partition=partition, federation=federation)


def refuse_run_directory(option: str, path: Path | None) -> None:
    """Check that a file about private data does not come into a run directory, which people send around.

    Raises:
        UserError: The path is in a run directory, in the directory of a comparison, or below one.
    """
    for folder in () if path is None else path.resolve().parents:
        if any((folder / name).is_file() for name in (METRICS, EVENTS, RESULT, COMPARISON)):
            what = f"{option} is {path}, which is in the run directory {folder}; it describes private data"
            raise UserError(f"{what}, so choose a file outside of run directories.", code="FEDAF-AUDIT-FILE")


def audit_experiment(
    experiment: Experiment,
    *,
    canaries: int = 500,
    kind: Kind = "outlier",
    networks: int = 4,
    delta: float | None = None,
    confidence: float = 0.95,
    observer: Observer | None = None,
    look: Callable[[tuple[Tensor, Tensor], tuple[Tensor, Tensor]], None] | None = None,
) -> MembershipAudit:
    """Do the same as ``audit`` for an experiment that was prepared from ``single_client(config)``.

    ``look`` is called with the shared images and their labels, and the private ones and theirs.
    """
    check(kind, canaries)
    method, task, name = experiment.method, experiment.task, experiment.config.method_name
    if not isinstance(method, CondensingMethod):
        what = f"{name} shares no condensed images, so this audit cannot judge it; choose a condensing method"
        raise UserError(f"{what}, such as fedaf-plus, fedaf or feddm.", code="FEDAF-AUDIT-METHOD")
    key = Key(experiment.config.run.seed).derive("membership audit")
    drawn, rest = _draw(experiment, kind, canaries, key)
    with_members = _with_members(experiment, drawn, rest)
    (shared, labels), figures = _run(with_members, observer or Observer())
    if look is not None:
        look((shared, labels), (with_members.dataset.train.images, with_members.dataset.train.labels))
    features = RandomFeatures(method, experiment.engine.device, networks, key.derive("networks"))
    held_out = _some(experiment.dataset.test, key.derive("population"))
    population = Population.of(features(held_out.images), held_out.labels, task.num_classes)
    of_shared, of_canaries = features(shared), features(drawn.images)
    samples = torch.bincount(rest.labels, minlength=task.num_classes).tolist()
    by_mean = membership_scores(
        of_canaries, drawn.labels, population, class_means(of_shared, labels, task.num_classes), samples
    )
    by_distance = -_distances(drawn, shared, labels)
    is_natural = kind == "natural"
    delta = experiment.config.privacy.delta if delta is None else delta
    by_features, by_nearest = (
        measure(scores, drawn.included, delta=delta, confidence=confidence, kinds=2)
        for scores in (by_mean, by_distance)
    )
    return MembershipAudit(
        dataset=experiment.dataset.name,
        method=name,
        kind=kind,
        rounds=experiment.config.run.rounds,
        shared_images=len(labels),
        features=by_features,
        nearest=by_nearest,
        half_out_pixels=_half_out(shared, labels, drawn, drawn.images) if is_natural else None,
        half_out_features=_half_out(of_shared, labels, drawn, of_canaries) if is_natural else None,
        copy_audit=figures["copy_audit"],
        accuracy=figures["last_accuracy"],
    )


def _half_out(shared: Tensor, labels: Tensor, canaries: Canaries, theirs: Tensor) -> HalfOut:
    """Return the half-out test with the canaries as real images, given as images or features."""
    used, unused = ((theirs[rows], canaries.labels[rows]) for rows in (canaries.included, ~canaries.included))
    return half_out((shared, labels), used, unused)


class _Recorder:
    """A transport that keeps the condensed images of all replies."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.images: list[Tensor] = []
        self.labels: list[Tensor] = []

    def clients(self) -> Sequence[str]:
        return self._inner.clients()

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        deliveries = self._inner.deliver(phase, requests, listener)
        for delivery in deliveries.values():
            sent = delivery.payload.tensors if isinstance(delivery, Replied) else {}
            if "images" in sent:
                self.images.append(sent["images"].flatten(0, 1))
                self.labels.append(sent["classes"].repeat_interleave(sent["images"].shape[1]))
        return deliveries

    def checkpoint(self) -> Mapping[str, Tensors]:
        return self._inner.checkpoint()

    def restore(self, records: Mapping[str, Tensors]) -> None:
        self._inner.restore(records)


def _draw(experiment: Experiment, kind: Kind, count: int, key: Key) -> tuple[Canaries, Split]:
    """Return the canaries, and the training images that are always in."""
    train = experiment.dataset.train
    if kind == "outlier":
        return Canaries.black_and_white(experiment.task, count, key), Split(train.images, train.labels)
    if count > len(train):
        what = f"{count} natural canaries are more than the {len(train)} training images; use fewer."
        raise UserError(what, code="FEDAF-AUDIT-CANARIES")
    order = torch.randperm(len(train), generator=key.derive("natural").torch())
    chosen, rest = train.take(order[:count]), train.take(order[count:].sort().values)
    return Canaries.natural(chosen.images, chosen.labels, key), Split(rest.images, rest.labels)


def _with_members(experiment: Experiment, canaries: Canaries, rest: Split) -> Experiment:
    """Return the experiment whose one client holds the canaries that are in, among its other images."""
    data, (images, labels) = experiment.dataset, canaries.members
    train = Split(torch.cat([rest.images, images]), torch.cat([rest.labels, labels]))
    plain = DataSet(
        data.name,
        train,
        Split(data.test.images, data.test.labels),
        data.num_classes,
        data.mean,
        data.std,
        data.classes,
        selection=data.selection,
    )
    changed = replace(experiment, dataset=plain, partition=numbered([np.arange(len(train))]))
    changed.method.check(changed.counts)
    return changed


def _run(experiment: Experiment, observer: Observer) -> tuple[tuple[Tensor, Tensor], Mapping[str, Any]]:
    """Run an experiment and return the images that its client sent in all rounds with their labels, and the result."""
    recorders: list[_Recorder] = []

    def record(transport: Transport) -> Transport:
        recorders.append(_Recorder(transport))
        return recorders[0]

    with (
        TemporaryDirectory(prefix="fedaf-audit-") as folder,
        playing(experiment, Path(folder) / "run", observer, new=True, through=record) as play,
    ):
        figures = play.complete().figures
    return (torch.cat(recorders[0].images), torch.cat(recorders[0].labels)), figures


def _some(split: Split, key: Key) -> Split:
    """Return the images of a split, at most as many as the population needs."""
    return split.take(torch.randperm(len(split), generator=key.torch())[:_POPULATION])


def _distances(canaries: Canaries, shared: Tensor, labels: Tensor) -> Tensor:
    """Return the distance in pixels of each canary to the nearest shared image of its class."""
    nearest = torch.full((len(canaries),), torch.inf, dtype=torch.float64)
    for label in labels.unique().tolist():
        rows = canaries.labels == label
        mine, theirs = (images.flatten(1).double() for images in (canaries.images[rows], shared[labels == label]))
        nearest[rows] = torch.cdist(mine, theirs).amin(1)
    return nearest
