"""Typed records as named tensors and back."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from fedaf.methods.condensed import CondensedMemory, CondensedRecord
from fedaf.methods.feddyn import FedDynMemory
from fedaf.methods.fedgen import FedGenMemory
from fedaf.protocol.payload import pack, unpack
from fedaf.protocol.records import formerly, from_tensors, to_tensors


@dataclass(frozen=True)
class Inner:
    images: Tensor
    round: int


@dataclass(frozen=True)
class Outer:
    total: Tensor
    scale: float
    weights: Mapping[str, Tensor]
    inner: Mapping[str, Inner]
    counts: Mapping[str, int] = field(default_factory=dict)
    later: int = 7


RECORD = Outer(
    torch.ones(2),
    0.1,
    {"layer.0/weight": torch.zeros(3)},
    {"client-0": Inner(torch.zeros(1, dtype=torch.uint8), 3), "client-1": Inner(torch.ones(0), 2**40)},
    {"client-0": 5},
    later=8,
)


def test_a_record_survives_a_safetensors_file():
    again = from_tensors(Outer, unpack(pack(to_tensors(RECORD)))[0])
    assert torch.equal(again.total, RECORD.total)
    assert torch.equal(again.weights["layer.0/weight"], RECORD.weights["layer.0/weight"])
    assert {name: inner.round for name, inner in again.inner.items()} == {"client-0": 3, "client-1": 2**40}
    assert again.inner["client-0"].images.dtype == torch.uint8
    assert (again.scale, again.counts, again.later) == (0.1, {"client-0": 5}, 8)
    assert type(again.counts["client-0"]) is int


def test_names_of_tensors_follow_from_the_fields():
    assert set(to_tensors(RECORD)) == {
        *("total", "scale", "weights/layer.0/weight", "counts/client-0", "later"),
        *(f"inner:client-{number}/{name}" for number in (0, 1) for name in ("images", "round")),
    }
    assert to_tensors(None) == {}


def test_a_missing_field_takes_its_default_and_without_one_is_an_error():
    tensors = to_tensors(RECORD)
    del tensors["later"]
    assert from_tensors(Outer, tensors).later == 7
    del tensors["total"]
    with pytest.raises(KeyError, match="total"):
        from_tensors(Outer, tensors)


def test_a_field_is_found_under_its_former_name_but_rather_under_its_own():
    @dataclass(frozen=True)
    class Renamed:
        labels: Tensor = field(metadata=formerly("old/labels"))

    old, new = torch.zeros(1), torch.ones(1)
    assert from_tensors(Renamed, {"old/labels": old}).labels is old
    assert from_tensors(Renamed, {"old/labels": old, "labels": new}).labels is new


def test_what_cannot_be_told_apart_or_stored_is_an_error():
    with pytest.raises(ValueError, match="a/b"):
        to_tensors(CondensedMemory({"a/b": Inner(torch.ones(1), 1)}))

    @dataclass(frozen=True)
    class Odd:
        name: str = "x"

    with pytest.raises(TypeError, match="str"):
        to_tensors(Odd())
    with pytest.raises(RuntimeError):
        from_tensors(Inner, {"images": torch.ones(1), "round": torch.ones(2)})


def test_the_memory_of_condensing_methods_survives_its_tensors():
    images = torch.arange(3 * 2 * 16, dtype=torch.uint8).view(3, 2, 1, 4, 4)
    record = CondensedRecord(torch.tensor([1, 4, 1]), images, torch.tensor([8, 4, 8]), torch.tensor([2, 2, 5]), seen=6)
    memory = CondensedMemory({"client-3": record}, {"client-3": torch.ones(4), "client-7": torch.zeros(4)})
    again = from_tensors(CondensedMemory, to_tensors(memory))
    found = again.condensed["client-3"]
    assert (found.classes.tolist(), found.rounds.tolist(), found.seen) == ([1, 4, 1], [2, 2, 5], 6)
    assert torch.equal(found.images, images)
    assert again.audits.keys() == {"client-3", "client-7"}


def test_the_memories_of_averaging_methods_are_read_under_the_names_of_version_0_1():
    w = torch.ones(2)
    dyn = from_tensors(FedDynMemory, {"sent/a.w": w, "drift/a.w": 2 * w, "samples/client-0": torch.tensor(9.0)})
    assert (dyn.sent["a.w"] is w, dyn.samples) == (True, {"client-0": 9.0})
    gen = from_tensors(FedGenMemory, {"generator/layers.0.weight": w, "labels/labels": torch.tensor([0, 4])})
    assert (gen.generator["layers.0.weight"] is w, gen.labels.tolist()) == (True, [0, 4])
