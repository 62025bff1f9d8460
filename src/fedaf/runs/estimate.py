"""Estimates how long a run will take on this device, from a short measurement of its model."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fedaf.protocol import Key
from fedaf.runs.experiment import Experiment

_BATCH = {"cpu": 64, "cuda": 512, "mps": 256}
_REPEATS = 3


@dataclass(frozen=True)
class Pace:
    """Measured seconds per image that passes through a model.

    Args:
        forward: Without a backward pass.
        backward: With one.
    """

    forward: float
    backward: float


def measure(experiment: Experiment) -> Pace:
    """Measure the pace of an experiment's model on its device; this takes some batches."""
    engine, task = experiment.engine, experiment.task
    model = experiment.method.build_model(Key(0)).to(engine.device).train()
    draws = Key(0).torch(engine.device)
    images = torch.randn(_BATCH[engine.device.type], *task.image_shape, generator=draws, device=engine.device)

    def forward() -> None:
        with torch.no_grad(), engine.autocast():
            model(images)

    def backward() -> None:
        with engine.autocast():
            loss = model(images).square().mean()
        torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad], allow_unused=True)

    with Key(0).seeded(engine.device):  # dropout must not advance the caller's generators
        return Pace(*(_rate(engine.capture(step), images) for step in (forward, backward)))


def seconds(experiment: Experiment, pace: Pace | None = None) -> float | None:
    """Return the estimated seconds of a run: the method's workload times the measured seconds per image.

    Args:
        experiment: The run.
        pace: The pace of its model; measured if it is not given.

    Returns:
        The estimate, or ``None`` if the method does not know its workload.
    """
    work = experiment.method.workload(experiment.counts)
    if work is None:
        return None
    table = experiment.config
    pace = pace or measure(experiment)
    rounds = table.run.rounds * (1.0 if experiment.method.reference else table.federation.participation)
    return rounds * (work.forward * pace.forward + work.backward * pace.backward)


def _rate(step: Callable[[], None], images: torch.Tensor) -> float:
    """Return the seconds per image."""
    best = float("inf")
    for _ in range(_REPEATS + 1):  # the first one warms up
        started = time.perf_counter()
        step()
        if images.device.type == "cuda":
            torch.cuda.synchronize(images.device)
        best = min(best, time.perf_counter() - started)
    return best / len(images)
