"""Accuracy of condensation with differential privacy, for several epsilons and splits of the same data.

The features of all images are computed once for each seed, and noise from a seed is added for each epsilon. So the
results are those of ``fedaf run --epsilon E --set privacy.simulate_seed=SEED``, in a fraction of the time. NOT PRIVATE:
use this for experiments on public data only.

    python benchmarks/private_accuracy.py --out results/privacy/digits.json --set data.name=digits
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot
from torch import Tensor

from fedaf import config as configuration
from fedaf.common.source import source_commit
from fedaf.config import Config
from fedaf.engine.allocation import keep_freed_memory
from fedaf.methods.private import PrivateCondense
from fedaf.privacy.accountant import Budget
from fedaf.privacy.noise import seeded_bytes
from fedaf.privacy.release import Release, add_count_noise, add_noise, class_sums
from fedaf.protocol import Client, Key, Payload, Tensors
from fedaf.runs import assembly
from fedaf.runs.experiment import Experiment, prepare
from fedaf.training.evaluate import score

_NO_NOISE = 1e6  # an epsilon that stands for none
Exact = Mapping[str, tuple[Tensor, Tensor]]  # sums and counts by client


class Stored:
    """A vault that returns a given release."""

    def __init__(self, release: Release) -> None:
        self._release = release

    def obtain(self, name: str, **_: Any) -> Tensors:
        return self._release.to_tensors()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file; results are added to it as they come")
    parser.add_argument("--epsilons", default="1,4,8,1e6", help="a very large one stands for no noise")
    parser.add_argument("--splits", default="one,iid,0.1", help="one client, or ten: iid or an alpha")
    parser.add_argument("--ipc", default="10,50")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--method", default="feddm")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="TABLE.KEY=VALUE")
    parser.add_argument("--images", type=Path, help="folder for the condensed images of the first seed, as .pt files")
    parser.add_argument("--picture", type=Path, help="PNG of these images for the first split and IPC")
    given = parser.parse_args()
    kept = [text for text in given.settings if not text.startswith("data.dir=")]  # a path of this machine
    keep_freed_memory()
    rows: list[dict[str, Any]] = json.loads(given.out.read_text()) if given.out.exists() else []
    for seed in map(int, given.seeds.split(",")):
        cells = product(given.splits.split(","), map(int, given.ipc.split(",")), map(float, given.epsilons.split(",")))
        left = [cell for cell in cells if not any(_is_of(row, seed, *cell, kept) for row in rows)]
        if not left:
            continue
        splits = list(dict.fromkeys(split for split, _, _ in left))
        experiments = {split: prepare(_config(given, seed, split, left[0][1], 1.0)) for split in splits}
        started = time.monotonic()
        exact, ask = _exact_sums(experiments)
        seconds = time.monotonic() - started
        for split, ipc, epsilon in left:
            config = _config(given, seed, split, ipc, epsilon)
            row, images = _measure(experiments[split], config, exact[split], ask)
            row |= {"seed": seed, "split": split, "release_seconds": round(seconds, 1), "settings": kept}
            rows.append(row)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(rows, indent=1) + "\n")
            print(f"seed {seed} split {split} ipc {ipc} epsilon {epsilon:g}: {row['accuracy']} %", flush=True)
            if given.images is not None and seed == int(given.seeds.split(",")[0]):
                given.images.mkdir(parents=True, exist_ok=True)
                torch.save(images, given.images / f"{split}-ipc{ipc}-epsilon{epsilon:g}.pt")
    _summary(rows, kept)
    if given.images is not None and given.picture is not None:
        _draw(given.images, f"{given.splits.split(',')[0]}-ipc{given.ipc.split(',')[0]}", given.picture)


def _is_of(row: Mapping[str, Any], seed: int, split: str, ipc: int, epsilon: float, settings: list[str]) -> bool:
    found = row["seed"], row["split"], row["ipc"], row["epsilon"], row["settings"]
    return found == (seed, split, ipc, epsilon, settings)


def _config(given: argparse.Namespace, seed: int, split: str, ipc: int, epsilon: float) -> Config:
    layers = [configuration.parse_setting(text) for text in given.settings]
    fixed = {"method": {"name": given.method, "ipc": ipc}, "run": {"seed": seed}}
    clients = {"clients": 1 if split == "one" else 10}
    partition = {"alpha": float(split)} if split not in ("one", "iid") else {"kind": "iid"}
    privacy = {"epsilon": epsilon, "simulate_seed": seed}
    tables = {"privacy": privacy, "partition": partition | clients}
    return configuration.build(configuration.merge(fixed, tables, *layers))


def _phase(method: Any) -> PrivateCondense:
    phase = method.phases[-1]
    assert isinstance(phase, PrivateCondense)
    return phase


def _exact_sums(experiments: Mapping[str, Experiment]) -> tuple[Mapping[str, Exact], Payload]:
    """Return the sums of all clients without noise for each split, and the server's request."""
    first = next(iter(experiments.values()))
    method, phase, train = first.method, _phase(first.method), first.dataset.train
    assert all(torch.equal(each.dataset.train.labels, train.labels) for each in experiments.values())
    server = method.initial(Key(first.config.run.seed)).next_round(1)
    ask = phase.ask(server, "")
    _, features = phase.releases.features(phase.releases.request(ask, {}), first.engine)
    classes = method.task.num_classes
    rows = {
        (split, client): torch.from_numpy(rows)
        for split, experiment in experiments.items()
        for client, rows in experiment.partition.rows.items()
    }
    sums: dict[tuple[str, str], list[Tensor]] = {owner: [] for owner in rows}
    for block in features.of_images(train.images, method.task):
        for owner, own in rows.items():
            sums[owner].append(class_sums([block[own]], train.labels[own], classes))
    found: dict[str, dict[str, tuple[Tensor, Tensor]]] = {split: {} for split in experiments}
    for (split, client), own in rows.items():
        counts = torch.bincount(train.labels[own], minlength=classes)
        found[split][client] = torch.cat(sums[split, client], dim=1), counts
    return found, ask


def _measure(experiment: Experiment, config: Config, exact: Exact, ask: Payload) -> tuple[dict[str, Any], Tensor]:
    """Add noise, condense, train and test."""
    engine, key, budget = experiment.engine, Key(config.run.seed), Budget.of(config.privacy)
    method = assembly.method_for(config, experiment.task, experiment.method.architecture)
    phase = _phase(method)
    server = method.initial(key).next_round(len(exact))
    clients = []
    for client, (sums, counts) in exact.items():
        source = seeded_bytes(key.derive("noise", client, 1).value)
        noisy = add_noise(sums, budget.sums_noise, source), add_count_noise(counts, budget.counts_noise, source)
        empty = experiment.shards[client]
        vault = Stored(Release(*noisy, None, {}))
        clients.append(Client(client, empty, key.derive("client", client), vault=vault))
    started = time.monotonic()
    outcomes = list(phase.work([ask] * len(clients), clients, engine))
    condensed = time.monotonic()
    server = phase.aggregate(server, {c.id: o.reply for c, o in zip(clients, outcomes, strict=True)})
    loss, accuracy = server.log["losses"]["dm"], None
    if any(len(outcome.reply.tensors["classes"]) for outcome in outcomes):  # else every noisy count was too small
        server = method.finish(server, engine)
        model = method.build_model(key)
        model.load_state_dict(dict(server.model))
        accuracy = round(float(score(model, experiment.dataset.test, (), experiment.task, engine).accuracy), 3)
    trained = time.monotonic()
    row = {
        "dataset": Path(config.data.name).stem,
        "method": config.method_name,
        "clients": len(clients),
        "ipc": config.method.ipc,  # type: ignore[attr-defined]
        "epsilon": config.privacy.epsilon,
        "delta": config.privacy.delta,
        "networks": config.privacy.networks,
        "width": config.model.width,
        "tested_on": "test" if config.data.validation is None else "held-out training images",
        "accuracy": accuracy,
        "loss": round(float(loss), 6),
        "condense_seconds": round(condensed - started, 1),
        "server_seconds": round(trained - condensed, 1),
        "simulated": True,
        "commit": source_commit(),
    }
    return row, torch.cat([outcome.reply.tensors["images"] for outcome in outcomes])


def _summary(rows: Sequence[Mapping[str, Any]], settings: list[str]) -> None:
    """Print the mean and the deviation over seeds."""
    rows = [row for row in rows if row["settings"] == settings]
    for split, ipc, epsilon in sorted({(row["split"], row["ipc"], row["epsilon"]) for row in rows}):
        chosen = [r["accuracy"] for r in rows if (r["split"], r["ipc"], r["epsilon"]) == (split, ipc, epsilon)]
        found = [accuracy for accuracy in chosen if accuracy is not None]
        cell = f"split {split} ipc {ipc} epsilon {epsilon:g}"
        if not found:
            print(f"{cell}: no client sent images")
            continue
        deviation = statistics.stdev(found) if len(found) > 1 else math.nan
        print(f"{cell}: {statistics.fmean(found):.2f} ± {deviation:.2f} ({len(found)} seeds)")


def _draw(folder: Path, cell: str, path: Path) -> None:
    """Draw the first image of each class, one row for each epsilon."""
    found = {float(file.stem.partition("epsilon")[2]): torch.load(file) for file in folder.glob(f"{cell}-epsilon*.pt")}
    figure, axes = pyplot.subplots(len(found), 1, figsize=(8, 0.95 * len(found)), squeeze=False)
    for axis, (epsilon, images) in zip(axes[:, 0], sorted(found.items()), strict=True):
        strip = torch.cat(list(images[:, 0]), dim=-1).permute(1, 2, 0)  # classes side by side
        axis.imshow(strip.squeeze(-1), cmap="gray" if strip.shape[-1] == 1 else None)
        axis.set_xticks([])
        axis.set_yticks([])
        label = f"epsilon {epsilon:g}" if epsilon < _NO_NOISE else "no noise"
        axis.set_ylabel(label, rotation=0, ha="right", va="center")
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    main()
