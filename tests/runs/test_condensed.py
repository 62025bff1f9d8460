"""The condensed set of a run is what its server trained on, and is published only if every client allows it."""

import json
import shutil
import tomllib
from pathlib import Path
from statistics import fmean, variance

import numpy as np
import pytest
import torch

import fedaf
from fedaf import config as configuration
from fedaf.data import catalog
from fedaf.federation import checkpoint
from fedaf.federation.run_directory import CONFIG, PARTITION
from fedaf.runs.condense import card_file, export_condensed, settings_file
from fedaf.runs.condensed import condensed_run
from fedaf.runs.experiment import prepare
from support.errors import raises
from support.small import SMALL, SMALL_FEDAF, SMALL_PLUS

LAX = 'methods = ["fedaf", "feddm"]\nmax_images_per_sample = 5.0\nmin_local_steps = 1\nmin_samples = 1\n'


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two finished runs: fedaf, and fedaf-plus with a window of two uploads."""
    folder = tmp_path_factory.mktemp("condensed")
    fedaf.run(**SMALL, method="fedaf", **SMALL_FEDAF, out=folder / "fedaf")
    fedaf.run(**SMALL, method="fedaf-plus", **SMALL_PLUS, replay=2, out=folder / "fedaf-plus")
    return folder


def in_memory(run: Path):
    """What the server of a run has, from its checkpoint."""
    experiment = prepare(configuration.build(configuration.read_toml(run / CONFIG)))
    return experiment.method, checkpoint.load(run, experiment.method).server


@pytest.mark.parametrize("format", ["npz", "parquet"])
@pytest.mark.parametrize("method", ["fedaf", "fedaf-plus"])
def test_the_file_holds_what_the_server_trained_on(runs, method, format, tmp_path):
    server_side, server = in_memory(runs / method)
    file, _ = export_condensed(runs / method, format=format, out=tmp_path / f"set.{format}")
    data = catalog.load(f"{format}:{file}", tmp_path, needs_test=False)
    images, labels = server_side.condensed_data(server)
    assert torch.equal(data.train.images, images)
    assert torch.equal(data.train.labels, labels)
    assert data.classes == tuple("0123456789")


def test_clients_rounds_and_weights_belong_to_the_images(runs):
    method, server = in_memory(runs / "fedaf-plus")
    condensed = condensed_run(runs / "fedaf-plus").condensed
    assert set(condensed.rounds.tolist()) == {2, 3}, "a window of two uploads"
    assert torch.equal(condensed.weights, method.condensed_weights(server))
    for client, record in server.memory.condensed.items():
        rows = [row for row, name in enumerate(condensed.clients) if name == client]
        assert torch.equal(condensed.images[rows], record.images.flatten(0, 1))
        assert condensed.rounds[rows].tolist() == record.rounds.repeat_interleave(SMALL_PLUS["ipc"]).tolist()
    assert condensed_run(runs / "fedaf").condensed.weights is None


def test_card_and_settings_say_how_the_set_was_made_and_have_no_path(runs, tmp_path):
    file, found = export_condensed(runs / "fedaf", out=tmp_path / "set.npz")
    card, settings = (path.read_text() for path in (card_file(file), settings_file(file)))
    _, head, body = card.split("---\n", 2)
    facts = {key: json.loads(value) for key, value in (line.split(": ", 1) for line in head.splitlines())}
    result = json.loads((runs / "fedaf" / "result.json").read_text())
    assert facts["images"] == len(found.condensed) == sum(facts["images_per_class"].values())
    assert (facts["server_accuracy"], facts["accuracy_from_scratch"]) == (result["last_accuracy"], None)
    assert (facts["condensed_from"], facts["licence_of_source"], facts["epsilon"]) == ("digits", "CC BY 4.0", None)
    assert f"{result['copy_audit']['psnr_max']:.1f} dB" in body
    assert "no differential privacy" in body
    assert "without a policy" in body
    assert "its loss had a term" in body, "LGKM acts from round 2 on"
    for text in (card, settings):
        assert str(tmp_path) not in text
        assert str(runs) not in text
    trained = tomllib.loads(settings)
    assert trained["data"]["name"] == "npz:set.npz"
    assert (trained["data"]["test"], trained["method"]["name"]) == ("digits", "pooled")
    assert trained["method"]["local_epochs"] == SMALL_FEDAF["server_epochs"]


def test_paths_of_own_data_and_policies_stay_at_home(tmp_path):
    digits = catalog.load("digits", tmp_path)
    splits = {"train": digits.train, "test": digits.test}
    images = {f"x_{name}": split.images.permute(0, 2, 3, 1).numpy() for name, split in splits.items()}
    labels = {f"y_{name}": split.labels.numpy() for name, split in splits.items()}
    np.savez(tmp_path / "secret.npz", **images, **labels)
    policy = tmp_path / "secret.toml"
    policy.write_text(LAX + "allow_publication = true\n")
    name = f"npz:{tmp_path / 'secret.npz'}"
    settings = {**SMALL["settings"], "data.dir": str(tmp_path / "secret")}
    given = {**SMALL, "rounds": 1, "settings": settings, "policy": str(policy)}
    fedaf.run(**given, dataset=name, method="fedaf", **SMALL_FEDAF, out=tmp_path / "run")
    file, _ = export_condensed(tmp_path / "run", out=tmp_path / "set.npz")
    card = card_file(file).read_text()
    assert "secret" not in card + settings_file(file).read_text()
    assert "allow_publication = true" in card
    assert "unknown, ask the source" in card


@pytest.mark.parametrize(
    ("key", "refused"), [("", True), ("allow_publication = false", True), ("allow_publication = true", False)]
)
def test_a_policy_decides_about_publication_and_forbids_it_by_default(key, refused, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text(LAX + key)
    run = tmp_path / "run"
    fedaf.run(**{**SMALL, "rounds": 1}, policy=str(policy), method="feddm", **SMALL_FEDAF, out=run)
    if not refused:
        assert "policies of all 4 clients allow" in export_condensed(run)[1].consent
        return
    with raises("FEDAF-EXPORT-PUBLICATION") as stopped:
        export_condensed(run)
    assert all(f"client-{number}" in str(stopped.value) for number in range(4))
    assert not (run / "condensed" / "condensed.npz").exists()


def test_a_client_that_forbade_it_in_one_round_is_not_published_after_a_resume(tmp_path):
    policy, run = tmp_path / "policy.toml", tmp_path / "run"
    policy.write_text(LAX)
    fedaf.run(**{**SMALL, "rounds": 1}, policy=str(policy), method="feddm", **SMALL_FEDAF, out=run)
    policy.write_text(LAX + "allow_publication = true\n")
    fedaf.resume(run, rounds=2)
    with raises("FEDAF-EXPORT-PUBLICATION"):
        export_condensed(run)


@pytest.mark.parametrize(("change", "refused"), [("network", True), ("process", False)])
def test_an_old_run_was_never_asked(runs, change, refused, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(runs / "fedaf", old)
    latest = old / (old / "LATEST").read_text()
    facts = json.loads((latest / "state.json").read_text())
    del facts["publishable"]
    (latest / "state.json").write_text(json.dumps(facts))
    (latest / "manifest.json").unlink()
    if change == "network":
        (old / PARTITION).unlink()
    if not refused:
        assert len(export_condensed(old)[1].condensed)
        return
    with raises("FEDAF-EXPORT-PUBLICATION") as stopped:
        export_condensed(old)
    assert "older version" in str(stopped.value)


def test_a_run_without_condensed_images_is_refused(tmp_path):
    fedaf.run(**{**SMALL, "rounds": 1}, method="fedavg", local_epochs=1, out=tmp_path / "run")
    with raises("FEDAF-EXPORT-NOT-CONDENSED") as refused:
        export_condensed(tmp_path / "run")
    assert "fedavg" in str(refused.value)
    assert "feddm" in str(refused.value)


def test_a_run_without_a_finished_round_has_no_set(tmp_path):
    with fedaf.start(**SMALL, method="fedaf", **SMALL_FEDAF, out=tmp_path / "run"):
        pass
    with raises("FEDAF-RUN-NO-ROUND"):
        export_condensed(tmp_path / "run")


def test_training_on_the_set_reaches_the_accuracy_of_the_server_within_seed_noise(tmp_path):
    """The tolerance is two standard deviations of a difference between two accuracies, from their spread over seeds."""
    servers, fresh, short = [], [], []
    options = {"ipc": 10, "local_steps": 10, "real_batch": 32, "server_epochs": 60, "server_batch": 50}
    iid = {**SMALL["settings"], "partition.kind": "iid", "partition.clients": 2}
    for seed in range(3):
        run, file = tmp_path / f"run{seed}", tmp_path / f"set{seed}.npz"
        given = {"preset": "quick", "rounds": 1, "seed": seed, "settings": iid}
        servers.append(fedaf.run(**given, method="fedaf", **options, out=run).last_accuracy)
        export_condensed(run, out=file)
        settings = tomllib.loads(settings_file(file).read_text())
        settings["data"]["name"] = f"npz:{file}"
        settings["run"]["seed"] = 100 + seed
        fresh.append(accuracy(settings))
        settings["method"]["local_epochs"] = 3
        short.append(accuracy(settings))
    tolerance = 2 * (variance(fresh) + variance(servers)) ** 0.5
    assert tolerance < 6, (fresh, servers)
    assert abs(fmean(fresh) - fmean(servers)) <= tolerance, (fresh, servers)
    assert fmean(servers) - fmean(short) > 2 * tolerance, "with another protocol it is far outside"


def accuracy(settings) -> float:
    """The accuracy of the run of a TOML file."""
    table = {
        f"{name}.{key}": value for name, values in settings.items() if name != "preset" for key, value in values.items()
    }
    found = fedaf.run(settings=table).last_accuracy
    assert found is not None
    return found
