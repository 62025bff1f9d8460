"""``fedaf.condense``: one owner's data become a small set with a card, and its accuracy is measured."""

import json
import tomllib

import pytest
import torch

import fedaf
from fedaf.data import catalog
from support.errors import raises

TINY = {"preset": "quick", "rounds": 1, "ipc": 5, "local_steps": 2, "server_epochs": 3, "device": "cpu"}
SMALL = {**TINY, "settings": {"model.width": 8}}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return fedaf.condense(**SMALL, dataset="digits", out=tmp_path_factory.mktemp("condense") / "set")


def test_the_folder_has_the_set_in_two_formats_a_card_and_settings(made):
    names = {path.name for path in made.directory.iterdir()}
    assert names == {"condensed.npz", "condensed.parquet", "condensed-card.md", "condensed-train.toml", "run"}
    for format in ("npz", "parquet"):
        data = catalog.load(f"{format}:{made.directory}/condensed.{format}", made.directory, needs_test=False)
        assert torch.equal(data.train.images, made.condensed.images)
    assert made.condensed.per_class == dict.fromkeys("0123456789", 5)
    assert (made.directory / "condensed-card.md").read_text() == made.card


def test_the_accuracy_in_the_card_is_that_of_the_settings_beside_it(made):
    settings = tomllib.loads((made.directory / "condensed-train.toml").read_text())
    settings["data"]["name"] = f"npz:{made.directory}/condensed.npz"
    given = {
        f"{table}.{key}": value for table, keys in settings.items() if table != "preset" for key, value in keys.items()
    }
    assert fedaf.run(settings=given).last_accuracy == made.accuracy
    assert f"accuracy_from_scratch: {json.dumps(made.accuracy)}\n" in made.card


def test_nothing_stays_on_disk_without_a_folder_and_data_may_come_from_python(made):
    digits = catalog.load("digits", made.directory)
    arrays = (digits.train.images, digits.train.labels, digits.test.images, digits.test.labels)
    found = fedaf.condense(**SMALL, dataset=arrays)
    assert found.directory is None
    assert len(found.condensed) == 50
    assert "own data" in found.card
    assert "--test-dataset DATASET" in found.card


def test_with_epsilon_the_release_is_in_the_ledger_and_no_audit_is_in_the_card(tmp_path):
    ledger = tmp_path / "ledger"
    settings = {"model.width": 8, "privacy.epsilon": 50.0, "privacy.ledger": str(ledger), "privacy.networks": 4}
    found = fedaf.condense(**{**TINY, "settings": settings}, method="feddm", out=tmp_path / "set")
    assert len(list(ledger.rglob("ledger*"))), "the release was paid for"
    assert "epsilon: 50.0" in found.card
    assert "epsilon 50, delta 1e-05" in found.card
    assert "Copy audit" not in found.card
    assert "Disclosure" not in found.card
    assert str(ledger) not in found.card


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ({"method": "fedavg"}, "FEDAF-CONDENSE-METHOD", ["fedavg", "feddm"]),
        ({"settings": {"partition.alpha": 0.1}}, "FEDAF-CONDENSE-SETTING", ["partition.alpha", "fedaf run"]),
        ({"settings": {"federation.policy": "default"}}, "FEDAF-CONDENSE-SETTING", ["federation.policy"]),
        ({"clients": 3}, "FEDAF-CONFIG-KEY", ["clients"]),
        ({"method": "fedaf", "ipc": 500}, "FEDAF-CONDENSE-NO-CLASS", ["method.ipc"]),
    ],
)
def test_mistakes_are_refused_before_anything_is_computed(given, code, words):
    with raises(code) as refused:
        fedaf.condense(dataset="digits", **given)
    assert all(word in str(refused.value) for word in words), refused.value
