"""``fedaf.run(dataset=...)`` with data instead of a name, and how such runs are resumed."""

import json

import numpy as np
import pytest
import torch

import fedaf
from fedaf.config import build
from fedaf.federation.observer import Observer
from fedaf.runs.assembly import SharedData
from fedaf.runs.experiment import prepare
from support.datafiles import pixels
from support.errors import raises

SMALL = {
    "method": "fedavg",
    "rounds": 2,
    "device": "cpu",
    "settings": {"model.width": 4, "model.depth": 1, "method.local_epochs": 1},
}


def arrays(seed: int = 0) -> tuple[np.ndarray, ...]:
    labels = np.arange(60) % 3
    images = pixels(60, 8, 8, seed=seed) // 4 + (80 * labels[:, None, None]).astype(np.uint8)
    return images, labels, images[:30], labels[:30]


class Pairs(torch.utils.data.Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        return torch.from_numpy(self.images[number])[None] / 255, int(self.labels[number])


class Stop(Observer):
    """Stops a run after its first round."""

    def round_ended(self, metrics):
        raise KeyboardInterrupt


def test_arrays_and_torch_data_sets_give_the_same_run():
    x_train, y_train, x_test, y_test = arrays()
    one = fedaf.run(dataset=(x_train, y_train, x_test, y_test), clients=3, **SMALL)
    other = fedaf.run(dataset=(Pairs(x_train, y_train), Pairs(x_test, y_test)), clients=3, **SMALL)
    assert one.curve == other.curve
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_sets_of_clients_are_the_partition(tmp_path):
    x, y, x_test, y_test = arrays()
    sets = {"oslo": (x[:20], y[:20]), "rome": Pairs(x[20:], y[20:])}
    fedaf.run(dataset={"clients": sets, "test": (x_test, y_test)}, out=tmp_path / "run", **SMALL)
    saved = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert {client: len(rows) for client, rows in saved["rows"].items()} == {"oslo": 20, "rome": 40}
    assert 'kind = "natural"' in (tmp_path / "run" / "config.toml").read_text()


def test_a_resumed_run_needs_the_same_data_again(tmp_path):
    whole = fedaf.run(dataset=arrays(), clients=3, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        fedaf.run(dataset=arrays(), clients=3, out=tmp_path / "run", observer=Stop(), **SMALL)
    with raises("FEDAF-DATA-FROM-PYTHON") as error:
        fedaf.resume(tmp_path / "run")
    assert "fedaf.resume(DIRECTORY, dataset=...)" in str(error.value)
    with raises("FEDAF-DATA-CHANGED"):
        fedaf.resume(tmp_path / "run", dataset=arrays(seed=1))
    assert fedaf.resume(tmp_path / "run", dataset=arrays()).curve == whole.curve


def test_noise_survives_a_resume(tmp_path):
    options = {**SMALL, "settings": {**SMALL["settings"], "partition.kind": "noise", "partition.noise_level": 0.5}}
    whole = fedaf.run(dataset=arrays(), clients=3, **options)
    with pytest.raises(KeyboardInterrupt):
        fedaf.run(dataset=arrays(), clients=3, out=tmp_path / "run", observer=Stop(), **options)
    resumed = fedaf.resume(tmp_path / "run", dataset=arrays())
    for mine, theirs in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    clean = fedaf.run(
        dataset=arrays(), clients=3, **{**SMALL, "settings": {**SMALL["settings"], "partition.kind": "iid"}}
    )
    pairs = zip(whole.model.parameters(), clean.model.parameters(), strict=True)
    assert not all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_a_name_and_data_exclude_each_other():
    with raises("FEDAF-DATA-CONFLICT"):
        prepare(build({"data": {"name": "digits"}}), shared=SharedData(arrays()))


def test_settings_of_another_partition_are_refused():
    with raises("FEDAF-CONFIG-NO-EFFECT"):
        fedaf.run(dataset="digits", alpha=0.1, settings={"partition.kind": "classes"})
