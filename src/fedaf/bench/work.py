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
_SMALL_CLASS = 25  # images of a class of a small client


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
        jobs = self._jobs(split, self.scale.per_class, self.options.ipc)
        capacity, objective = Capacity.of(jobs), self._objective()
        work = Condensation(capacity, objective, options=self.options, task=self.task, engine=self._engine)
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
        options = self.options.model_copy(update={"local_steps": self.scale.block})
        clients = [self._plain_client(classes, self.scale.per_class, options.ipc) for classes in split]
        return partial(self._condense_plainly, clients, options)

    def small(self) -> FedAFOptions:
        """Return the options of small clients."""
        quick = {"ipc": 5, "real_batch": 8} if self.scale.side < 32 else {"ipc": 10, "real_batch": 32}
        steps = 2 * self.scale.block
        return self.options.model_copy(update={**quick, "local_steps": steps, "min_samples": 10})

    def our_small_clients(self, clients: int) -> Action:
        """The whole condensation of many clients with two small classes each, in chunks that fit the memory budget."""
        options, objective = self.small(), self._objective()
        split = [[number % 10, (number + 1) % 10] for number in range(clients)]
        jobs = self._jobs(split, _SMALL_CLASS, options.ipc)

        def condense_all() -> None:
            for _ in condense(jobs, objective, options=options, task=self.task, engine=self._engine):
                pass

        return condense_all

    def reference_small_clients(self, clients: int) -> Action:
        options = self.small()
        client = self._plain_client([0, 1], _SMALL_CLASS, options.ipc)
        return partial(self._condense_plainly, [client] * clients, options)

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
        options = self.options.model_copy(update={"server_epochs": 1, "server_batch": batch})
        network = self._plain_network().requires_grad_()
        return partial(reference.train, network, self._normalised(images), labels.to(self._device), options)

    def our_round(self, split: Split) -> Action:
        """The second round, which is the first with all loss terms; each call starts from the same state."""
        shards = {f"client-{n}": self._shard(classes, self.scale.per_class) for n, classes in enumerate(split)}
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
                failure = next(iter(report.failures.values()))
                raise FedafError(f"a client of the benchmark failed: {failure}.", code="FEDAF-BENCH-FAILED")

        return play

    def reference_round(self, split: Split) -> Action:
        clients = [self._images_by_class(classes, self.scale.per_class) for classes in split]

        def play() -> None:
            model = self._plain_network().requires_grad_()
            reference.fedaf_round(model, clients, fresh=self._plain_network, options=self.options)

        return play

    def _objective(self) -> Objective:
        model = self.method.build_model(_KEY).to(self._device)
        networks = Blended(model.state_dict(), FreshWeights(model), _KEY.derive("networks"), gamma=0)
        return Objective(Backbone(model, self.task, self._device), networks)

    def _jobs(self, split: Split, per_class: int, ipc: int) -> list[Job]:
        keys = (_KEY.derive("client", number) for number in count())
        return [
            Job(self._shard(classes, per_class), list(classes), self._initial_images(classes, ipc), key)
            for classes, key in zip(split, keys, strict=False)
        ]

    def _plain_client(self, classes: Sequence[int], per_class: int, ipc: int) -> tuple[list[Tensor], Tensor]:
        """Return the real images of each class and the initial condensed images."""
        pools = self._images_by_class(classes, per_class)
        return list(pools.values()), self._initial_images(classes, ipc).to(self._device)

    def _condense_plainly(self, clients: Sequence[tuple[list[Tensor], Tensor]], options: FedAFOptions) -> None:
        for pools, images in clients:
            reference.condense(pools, images, network=self._plain_network, options=options)

    def _shard(self, classes: Sequence[int], per_class: int) -> Shard:
        """Return a client's random images of these classes, the same in every call."""
        labels = torch.tensor(classes).repeat_interleave(per_class)
        return Shard(self._images(len(labels)), labels, _CLASSES)

    def _images_by_class(self, classes: Sequence[int], per_class: int) -> reference.ImagesByClass:
        shard = self._shard(classes, per_class)
        return {label: self._normalised(shard.images[shard.rows_of(label)]) for label in classes}

    def _initial_images(self, classes: Sequence[int], ipc: int) -> Tensor:
        return torch.randn(len(classes), ipc, *self.task.image_shape, generator=_KEY.torch())

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
