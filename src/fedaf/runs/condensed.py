"""The condensed set of a run: what its server trained on in the last round, if the clients allow it to be published."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedaf import config as configuration
from fedaf.condensation.options import CondensationOptions
from fedaf.config import Config
from fedaf.data import catalog
from fedaf.data.condensed_set import CondensedSet
from fedaf.data.spec import NO_DATA, PYTHON
from fedaf.federation import checkpoint, model_folder
from fedaf.federation.checkpoint import Checkpoint
from fedaf.federation.run_directory import PARTITION, read_metrics
from fedaf.federation.summary import summary
from fedaf.methods.condensing import CondensingMethod
from fedaf.methods.registry import METHODS
from fedaf.privacy.statement import guarantee
from fedaf.protocol import Architecture, UserError
from fedaf.runs import assembly
from fedaf.runs.trained import must_be_a_run


@dataclass(frozen=True)
class CondensedRun:
    """A condensed set, with what its card says of the run that it came from.

    Args:
        condensed: The set.
        config: The configuration of the run.
        figures: The figures of the run: those of ``result.json`` that come from its metrics, and ``privacy``.
        loss_terms: The terms of the server's loss in the last round.
        consent: Why the images may be published, as a sentence.
    """

    condensed: CondensedSet
    config: Config
    figures: Mapping[str, Any]
    loss_terms: tuple[str, ...]
    consent: str

    @property
    def options(self) -> CondensationOptions:
        """The options of the run's method."""
        assert isinstance(self.config.method, CondensationOptions)
        return self.config.method


def condensing_methods() -> str:
    """Return the names of the built-in methods that condense, for error messages."""
    return ", ".join(name for name in METHODS.names if issubclass(METHODS.find(name), CondensingMethod))


def condensed_run(path: Path) -> CondensedRun:
    """Return the condensed set of a run, and what a card says of it.

    Args:
        path: The run directory.

    Raises:
        UserError: It is not a run directory, its method shares no condensed images, no round is finished, or a client
            does not allow publication.
    """
    must_be_a_run(path)
    config = assembly.config_of_run(path)
    found = METHODS.find(config.method_name)
    if not issubclass(found, CondensingMethod):
        what = f"the run in {path} is of {config.method_name}, whose clients share no condensed images"
        raise UserError(f"{what}; run one of {condensing_methods()}.", code="FEDAF-EXPORT-NOT-CONDENSED")
    card = model_folder.read_card(path)
    if card is None or not checkpoint.exists(path):
        what = f"the run in {path} has not finished a round with this version of fedaf, so it has no condensed images"
        raise UserError(f"{what}; continue it with fedaf run --resume {path}.", code="FEDAF-RUN-NO-ROUND")
    method = assembly.method_for(config, card.task, Architecture(lambda key: nn.Identity()))
    assert isinstance(method, CondensingMethod)
    saved = checkpoint.load(path, method)
    records = saved.server.memory.in_order
    consent = _consent(path, config, saved, [client for client, record in records.items() if len(record.classes)])
    images, labels = method.condensed_data(saved.server)
    ipc = method.options.ipc
    condensed = CondensedSet(
        images,
        labels,
        card.classes,
        tuple(client for client, record in records.items() for _ in range(ipc * len(record.classes))),
        torch.cat([record.rounds for record in records.values()]).repeat_interleave(ipc),
        method.condensed_weights(saved.server),
    )
    privacy = None if config.privacy.epsilon is None else guarantee(config.privacy)
    rounds = read_metrics(path)[: saved.server.round]
    figures = {"method": config.method_name, **summary(rounds), "privacy": privacy}
    return CondensedRun(condensed, config, figures, tuple(rounds[-1].get("losses", {})), consent)


def _consent(path: Path, config: Config, saved: Checkpoint, clients: list[str]) -> str:
    """Return why the images of these clients may be published.

    Raises:
        UserError: A client's policy forbids it, or a client never said.
    """
    if (path / PARTITION).is_file() and config.federation.policy is None:
        return "The run was made in one process without a policy, by an owner of all data."
    code = "FEDAF-EXPORT-PUBLICATION"
    forbidding = [client for client in clients if saved.publishable.get(client) is False]
    unknown = [client for client in clients if client not in saved.publishable]
    if forbidding:
        what = f"the policy of {', '.join(forbidding)} does not allow the condensed images to be published"
        remedy = "ask the owners of these data to set allow_publication = true in their policy, and run again"
        raise UserError(f"{what}; {remedy}.", code=code)
    if unknown:
        what = f"{', '.join(unknown)} never said whether the condensed images may be published, because the run in"
        remedy = "run it again with this version, so that the clients' policies are asked"
        raise UserError(f"{what} {path} is of an older version of fedaf; {remedy}.", code=code)
    return f"The policies of all {len(clients)} clients allow publication (allow_publication = true)."


def training_config(found: CondensedRun, file: str) -> Config:
    """Return the configuration that trains a fresh model on a condensed set, as the server of its run trained.

    The model, the augmentation, the number of rounds and epochs, the batch size, the learning rate and the momentum are
    those of the server. The loss is cross-entropy. No path of this machine is in it but ``file``.

    Args:
        found: The set and its run.
        file: The set as a data set: ``npz:FILE`` or ``parquet:FILE``.
    """
    config, options, name = found.config, found.options, tested_dataset(found.config)
    height, width = found.condensed.images.shape[2:]
    data: dict[str, Any] = {"name": file, "mean": config.data.mean, "std": config.data.std}
    if name is not None and not catalog.is_path(name):
        data["test"] = name
    if height == width:
        data["image_size"] = height  # else large images in parquet files would be shrunk
    model = config.model.model_dump(mode="json", exclude={"weights", "weights_sha256"})
    given: dict[str, Any] = {
        "run": {"rounds": found.figures["rounds"], "seed": config.run.seed, "device": config.run.device},
        "data": data,
        "partition": {"kind": "iid", "clients": 1},
        "model": model,
        "training": config.training.model_dump(mode="json"),
        "method": {
            "name": "pooled",
            "local_epochs": options.epochs(len(found.condensed)),
            "batch_size": options.server_batch,
            "lr": options.server_lr,
            "momentum": options.server_momentum,
        },
    }
    return configuration.build({name: _without_none(table) for name, table in given.items()})


def tested_dataset(config: Config) -> str | None:
    """Return the name of the data set that a run was tested on; ``None`` if it has none that can be named."""
    name = config.data.test or config.data.name
    return None if name == NO_DATA or name.startswith(PYTHON) else name


def path_free(config: Config) -> dict[str, Any]:
    """Return the settings of a run that may be published: without paths of this machine."""
    tables = tomllib.loads(config.to_toml())
    for table, key in (("data", "dir"), ("model", "weights"), ("privacy", "ledger"), ("partition", "path")):
        tables[table].pop(key, None)
    tables["federation"].pop("policy", None)
    for key in ("name", "test"):
        if catalog.is_path(tables["data"].get(key, "")):
            tables["data"][key] = "own data"
    return tables


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value is not None}
