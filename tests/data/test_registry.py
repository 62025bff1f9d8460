"""Data sets, partitions and augmentations by name: built in, or custom as module:NAME."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedaf.data import catalog
from fedaf.data.augmentation import Augmentation, augment, augmentation_parameters, draws_of
from fedaf.data.dataset import DataSet, Split
from fedaf.data.registry import AUGMENTATIONS, DATASETS, PARTITIONS
from fedaf.data.spec import DatasetSpec
from fedaf.protocol import Key
from support.datafiles import pixels
from support.errors import raises

CUSTOM = """
import torch
from fedaf.data.augmentation import Augmentation
from fedaf.data.dataset import DataSet, Split
from fedaf.data.partition import Partition, PartitionKind
from fedaf.data.spec import DatasetSpec

def load(data_dir):
    split = Split(torch.zeros(8, 1, 4, 4, dtype=torch.uint8), torch.arange(8) % 2)
    return DataSet("blank", split, split, 2, (0.5,), (0.25,), ("a", "b"))

FIELDS = dict(num_classes=2, mean=(0.5,), std=(0.25,), classes=("a", "b"), name="blank")
SPEC = DatasetSpec(shape=(1, 4, 4), load=load, **FIELDS)
WRONG = DatasetSpec(shape=(1, 5, 5), load=load, **FIELDS)
FILE = DatasetSpec(shape=(1, 4, 4), **FIELDS)
NOTHING = 3

INVERT = Augmentation(1, apply=lambda images, draws: torch.where(draws[:, :, None, None] < 0.5, -images, images))
WHOLE = PartitionKind((), lambda data, options, key: Partition({"all": torch.arange(len(data.train)).numpy()}))
"""


@pytest.fixture
def custom(tmp_path, monkeypatch) -> str:
    """The name of a module of custom entries."""
    (tmp_path / "blank_set.py").write_text(CUSTOM)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "blank_set"
    sys.modules.pop("blank_set", None)


@pytest.mark.parametrize("name", DATASETS.names)
def test_every_built_in_data_set_is_complete(name):
    spec = DATASETS.find(name)
    assert spec.name == name
    assert spec.title
    assert spec.samples
    assert spec.reader or spec.load
    assert spec.files or spec.homepage or spec.origin
    assert len(spec.mean) == len(spec.std) == spec.shape[0]
    assert set(spec.paper) <= {"run", "training", "condensing", "averaging", "fedaf", "fedaf-plus"}


def test_digits_do_not_import_scikit_learn(tmp_path):
    code = (
        "import sys; from pathlib import Path; from fedaf.data import catalog;"
        "catalog.load('digits', Path()); print('sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_custom_data_set_is_loaded_by_its_own_function(custom, tmp_path):
    data = catalog.load(f"{custom}:SPEC", tmp_path)
    assert (data.name, len(data.train), data.classes) == ("blank", 8, ("a", "b"))
    assert catalog.locate(f"{custom}:SPEC", tmp_path) is None
    with raises("FEDAF-DATA-IMAGE-SIZE"):
        catalog.load(f"{custom}:SPEC", tmp_path, image_size=7)


def test_a_custom_data_set_without_a_reader_is_an_npz(custom, tmp_path):
    with raises("FEDAF-DATA-NOT-FOUND") as error:
        catalog.load(f"{custom}:FILE", tmp_path)
    assert str(tmp_path / "blank.npz") in str(error.value)
    images, labels = pixels(6, 4, 4), np.arange(6) % 2
    np.savez(tmp_path / "blank.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    assert len(catalog.load(f"{custom}:FILE", tmp_path).train) == 6
    assert catalog.locate(f"{custom}:FILE", tmp_path) == tmp_path / "blank.npz"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("WRONG", "FEDAF-DATA-SPEC"),
        ("NOTHING", "FEDAF-DATA-SPEC"),
        ("INVERT", "FEDAF-DATA-SPEC"),
        ("MISSING", "FEDAF-CUSTOM-LOAD"),
    ],
)
def test_a_custom_data_set_that_is_none_is_named(custom, tmp_path, name, code):
    with raises(code) as error:
        catalog.load(f"{custom}:{name}", tmp_path)
    assert name in str(error.value)


def test_an_unknown_name_is_an_error_with_a_suggestion(tmp_path):
    with raises("FEDAF-DATA-SET-UNKNOWN") as error:
        catalog.load("cifar11", tmp_path)
    assert all(word in str(error.value) for word in ("'cifar11'", "'cifar10'", "npz:FILE"))


@pytest.mark.parametrize(
    ("name", "spec"), [("npz:x.npz", False), ("folder:x", False), ("none", False), ("mnist", True)]
)
def test_paths_have_no_specification(name, spec):
    assert isinstance(catalog.find_spec(name), DatasetSpec) == spec


def test_custom_partitions_and_augmentations_are_checked(custom):
    assert PARTITIONS.find(f"{custom}:WHOLE").uses == ()
    assert isinstance(AUGMENTATIONS.find(f"{custom}:INVERT"), Augmentation)
    with raises("FEDAF-PARTITION-TYPE"):
        PARTITIONS.find(f"{custom}:INVERT")
    with raises("FEDAF-AUGMENTATION-TYPE"):
        AUGMENTATIONS.find(f"{custom}:WHOLE")


OPTIONS = {"clients": 3, "alpha": 5.0, "min_size": 1, "max_redraws": 10, "shards_per_client": 2}


@pytest.mark.parametrize("kind", ["dirichlet", "domain", "iid", "shards"])
def test_a_partition_reads_no_other_settings_than_it_names(kind):
    split = Split(torch.zeros(30, 1, 2, 2, dtype=torch.uint8), torch.arange(30) % 3, torch.arange(30) % 2)
    data = DataSet("black", split, split, 3, (0.5,), (0.25,), domains=("north", "south"))
    found = PARTITIONS.find(kind)
    options = SimpleNamespace(**{name: OPTIONS[name] for name in found.uses})
    partition = found.split(data, options, Key(0))
    assert len(partition.rows) == (2 if kind == "domain" else 3)


def test_a_partition_by_domain_needs_domains():
    split = Split(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.arange(4) % 2)
    data = DataSet("black", split, split, 2, (0.5,), (0.25,))
    with raises("FEDAF-PARTITION-DOMAINS"):
        PARTITIONS.find("domain").split(data, SimpleNamespace(), Key(0))


def test_a_partition_file_needs_a_path_and_is_read_as_it_was(tmp_path):
    split = Split(torch.zeros(6, 1, 2, 2, dtype=torch.uint8), torch.arange(6) % 2)
    data = DataSet("black", split, split, 2, (0.5,), (0.25,))
    with raises("FEDAF-PARTITION-PATH"):
        PARTITIONS.find("file").split(data, SimpleNamespace(path=None), Key(0))
    saved = PARTITIONS.find("iid").split(data, SimpleNamespace(clients=2), Key(0))
    Path(tmp_path / "partition.json").write_text(saved.to_json(data))
    read = PARTITIONS.find("file").split(data, SimpleNamespace(path=str(tmp_path / "partition.json")), Key(1))
    assert {k: v.tolist() for k, v in read.rows.items()} == {k: v.tolist() for k, v in saved.rows.items()}


def test_a_custom_augmentation_is_applied_after_the_built_in_ones(custom):
    images = torch.randn(16, 3, 8, 8, generator=Key(0).torch())
    names = ("shift", f"{custom}:INVERT", "contrast")
    assert draws_of(names) == 2 + 1 + 1
    draws = torch.rand(16, 4, generator=Key(1).torch())
    found = augment(images, names, augmentation_parameters(names, draws))
    plain = ("shift", "contrast")
    built_in = augment(images, plain, augmentation_parameters(plain, draws[:, [0, 1, 3]]))
    expected = torch.where(draws[:, 2].view(-1, 1, 1, 1) < 0.5, -built_in, built_in)
    assert torch.equal(found, expected)
    assert not torch.equal(found, built_in)


@pytest.mark.parametrize("given", [{}, {"set_parameters": print, "apply": print}])
def test_an_augmentation_is_either_fused_or_applied(given):
    with pytest.raises(ValueError, match="either"):
        Augmentation(1, **given)


def test_flip_and_scale_do_not_depend_on_their_order():
    images = torch.randn(8, 1, 9, 9, generator=Key(0).torch())
    draws = torch.rand(8, 3, generator=Key(1).torch())
    one = augment(images, ("flip", "scale"), augmentation_parameters(("flip", "scale"), draws))
    other = augment(images, ("scale", "flip"), augmentation_parameters(("scale", "flip"), draws[:, [1, 2, 0]]))
    assert torch.equal(one, other)
