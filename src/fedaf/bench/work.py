"""The work that ``fedaf bench`` times, by fedaf ("ours") and by the plain loops ("reference"), on equal random images.

Each method prepares the work and returns the action that is timed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import torch
from torch import Tensor

from fedaf.bench import reference
from fedaf.bench.timing import Action
from fedaf.condensation.condenser import Condensation, Objective, condense
from fedaf.condensation.jobs import Capacity, Job
from fedaf.condensation.resampling import Blended
from fedaf.config.tables import ModelTable
from fedaf.data.pixels import normalise
from fedaf.engine import EagerEngine
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import RoundRules, play_round
from fedaf.methods.fedaf import FedAF, FedAFOptions
from fedaf.models import builtin
from fedaf.models.backbone import Backbone
from fedaf.models.weights import FreshWeights
from fedaf.protocol import FedafError, Key, Shard, Task
from fedaf.training.fit import Training
from fedaf.transports.local import LocalTransport

#: The classes of each client.
Split = Sequence[Sequence[int]]

_KEY = Key(0)
_CLASSES = 10


@dataclass(frozen=True)
class Scale:
    """The size of the work. ``per_class``: a client's images of a class. ``block``: steps that are timed together."""

    per_class: int
    block: int
    round_steps: int
    round_epochs: int
    side: int = 32
    filters: int = 128
    real_batch: int = 256
    ipc: int = 50
    server_batch: int = 256
    local_batch: int = 64


class Work:
    """All work to be timed on one engine, at one scale."""

    def __init__(self, engine: EagerEngine, scale: Scale) -> None:
        self.scale, self._engine, self._device = scale, engine, engine.device
        mean, std = (0.5,) * 3, (0.25,) * 3
        self.task = Task("bench", 3, scale.side, scale.side, _CLASSES, mean, std, reference.AUGMENTATION)
        self.options = FedAFOptions(
            ipc=scale.ipc,
            real_batch=scale.real_batch,
            local_steps=scale.round_steps,
            server_epochs=scale.round_epochs,
            server_batch=scale.server_batch,
        )
        table = ModelTable(width=scale.filters)
        self.method = FedAF(self.options, self.task, builtin.architecture("convnet", self.task, table))

    def our_condensation(self, split: Split) -> Action:
        """A block of condensation steps of all clients, with fresh networks."""
        model = self.method.build_model(_KEY).to(self._device)
        networks = Blended(model.state_dict(), FreshWeights(model), _KEY.derive("networks"), gamma=0)
        jobs = [
            Job(self._shard(classes), list(classes), self._initial_images(classes), _KEY.derive("client", number))
            for number, classes in enumerate(split)
        ]
        work = Condensation(
            Capacity.of(jobs),
            Objective(Backbone(model, self.task, self._device), networks),
            options=self.options,
            task=self.task,
            engine=self._engine,
        )
        work.load(jobs)
        done = count(1)

        def block() -> None:
            for _ in range(self.scale.block):
                step = next(done)
                work.draw(step)
                work.move()
                self._engine.tick(step, step)

        return block

    def reference_condensation(self, split: Split) -> Action:
        clients = [
            (list(self._images_by_class(classes).values()), self._initial_images(classes).to(self._device))
            for classes in split
        ]

        def block() -> None:
            for pools, images in clients:
                reference.condense(
                    pools,
                    images,
                    network=self._plain_network,
                    steps=self.scale.block,
                    batch=self.options.real_batch,
                    lr=self.options.image_lr,
                    momentum=self.options.image_momentum,
                )

        return block

    def small(self) -> FedAFOptions:
        """Return the options of small clients."""
        quick = {"ipc": 5, "real_batch": 8} if self.scale.side < 32 else {"ipc": 10, "real_batch": 32}
        steps = 2 * self.scale.block
        return self.options.model_copy(update={**quick, "local_steps": steps, "min_samples": 10})

    def our_small_clients(self, clients: int) -> Action:
        """The whole condensation of many clients with two small classes each, in chunks that fit the memory budget."""
        options, model = self.small(), self.method.build_model(_KEY).to(self._device)
        networks = Blended(model.state_dict(), FreshWeights(model), _KEY.derive("networks"), gamma=0)
        objective = Objective(Backbone(model, self.task, self._device), networks)
        jobs = [
            Job(
                self._shard(classes, per_class=25),
                classes,
                self._initial_images(classes, options.ipc),
                _KEY.derive("client", number),
            )
            for number, classes in enumerate([number % 10, (number + 1) % 10] for number in range(clients))
        ]

        def condense_all() -> None:
            for _ in condense(jobs, objective, options=options, task=self.task, engine=self._engine):
                pass

        return condense_all

    def reference_small_clients(self, clients: int) -> Action:
        options = self.small()
        pools, start = (
            self._images_by_class([0, 1], per_class=25),
            self._initial_images([0, 1], options.ipc).to(self._device),
        )

        def condense_all() -> None:
            for _ in range(clients):
                reference.condense(
                    list(pools.values()),
                    start,
                    network=self._plain_network,
                    steps=options.local_steps,
                    batch=options.real_batch,
                    lr=options.image_lr,
                    momentum=options.image_momentum,
                )

        return condense_all

    def our_training(self, batch: int) -> Action:
        """One epoch on a block of batches."""
        training = Training(
            self.method.build_model(_KEY),
            *self._batches(batch),
            task=self.task,
            batch_size=batch,
            lr=self.options.server_lr,
            momentum=self.options.server_momentum,
            key=_KEY,
            engine=self._engine,
        )
        return training.epoch

    def reference_training(self, batch: int) -> Action:
        images, labels = self._batches(batch)
        return partial(
            reference.train,
            self._plain_network().requires_grad_(),
            self._normalised(images),
            labels.to(self._device),
            epochs=1,
            batch=batch,
            lr=self.options.server_lr,
            momentum=self.options.server_momentum,
        )

    def our_round(self, split: Split) -> Action:
        """The second round, which is the first with all loss terms; each call starts from the same state."""
        shards = {f"client-{number}": self._shard(classes) for number, classes in enumerate(split)}
        server = replace(self.method.initial(_KEY), round=1)

        def play() -> None:
            _, report = play_round(
                server,
                method=self.method,
                transport=LocalTransport(shards, self._engine),
                clients=list(shards),
                accepted={},
                run="bench",
                rules=RoundRules(),
                engine=self._engine,
                observer=Observer(),
            )
            if report.failures:
                raise FedafError(
                    f"a client of the benchmark failed: {next(iter(report.failures.values()))}.",
                    code="FEDAF-BENCH-FAILED",
                )

        return play

    def reference_round(self, split: Split) -> Action:
        clients = [self._images_by_class(classes) for classes in split]

        def play() -> None:
            model = self._plain_network().requires_grad_()
            reference.fedaf_round(model, clients, fresh=self._plain_network, options=self.options)

        return play

    def _shard(self, classes: Sequence[int], per_class: int | None = None) -> Shard:
        """Return a client's random images of these classes, the same in every call."""
        labels = torch.tensor(classes).repeat_interleave(per_class or self.scale.per_class)
        return Shard(self._images(len(labels)), labels, _CLASSES)

    def _images_by_class(self, classes: Sequence[int], per_class: int | None = None) -> reference.ImagesByClass:
        shard = self._shard(classes, per_class)
        return {label: self._normalised(shard.images[shard.rows_of(label)]) for label in classes}

    def _initial_images(self, classes: Sequence[int], ipc: int | None = None) -> Tensor:
        return torch.randn(len(classes), ipc or self.scale.ipc, *self.task.image_shape, generator=_KEY.torch())

    def _batches(self, batch: int) -> tuple[Tensor, Tensor]:
        """Return images for a block of batches, with random labels."""
        size = self.scale.block * batch
        return self._images(size), torch.randint(_CLASSES, (size,), generator=_KEY.torch())

    def _images(self, size: int) -> Tensor:
        return torch.randint(256, (size, *self.task.image_shape), dtype=torch.uint8, generator=_KEY.torch())

    def _normalised(self, images: Tensor) -> Tensor:
        """Return normalised images on the device."""
        return normalise(images.to(self._device), self.task.mean, self.task.std)

    def _plain_network(self) -> reference.PlainConvNet:
        return reference.new_network(self.task, filters=self.scale.filters, device=self._device)
