"""Schemas: a reply is used only if every rule holds, and what breaks one is refused, never raised."""

import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, settings

from fedaf.protocol import Field, Number, Payload, Refused, Schema, like
from support.errors import raises

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy

FLOATS = Schema({"x": Field(torch.float32, (2,), low=-1, high=1)})
PAIRS = Schema(
    {"a": Field(torch.int64, ("n",)), "b": Field(torch.float32, ("n", 3)), "c": Field(torch.uint8, ("m",))},
    lengths={"n": (1, 4), "m": (0, 2)},
)
SCALARS = Schema({}, {"count": Number(int, 0, 10), "loss": Number(float, 0), "any": Number(float)})


def pairs(a=2, b=(2, 3), c=1) -> Payload:
    return Payload({"a": torch.zeros(a, dtype=torch.int64), "b": torch.zeros(b), "c": torch.zeros(c).byte()})


def scalars(**given) -> Payload:
    return Payload({}, {"count": 1, "loss": 0.5, "any": -2.0, **given})


def x(values, dtype=torch.float32) -> Payload:
    return Payload({"x": torch.tensor(values, dtype=dtype)})


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (Schema(), Payload()),
        (FLOATS, x([-1.0, 1.0])),
        (PAIRS, pairs()),
        (PAIRS, pairs(a=1, b=(1, 3), c=0)),
        (PAIRS, pairs(a=4, b=(4, 3), c=2)),
        (SCALARS, scalars()),
        (SCALARS, scalars(count=0, loss=0)),
        (SCALARS, scalars(count=10, any=10**30)),
        (SCALARS, scalars(any=-1e30)),
        (Schema({"x": Field(torch.int64, (2,), among=torch.tensor([3, 4, 7]))}), x([7, 3], torch.int64)),
        (Schema({"x": Field(torch.float32, ())}), x(0.5)),
        (Schema({"x": Field(torch.float32, (0, 5), low=0, high=1)}), Payload({"x": torch.empty(0, 5)})),
    ],
)
def test_what_keeps_every_rule_is_accepted(schema, payload):
    schema.validate(payload)


@pytest.mark.parametrize(
    ("schema", "payload", "code", "words"),
    [
        (FLOATS, Payload(), "FEDAF-REPLY-NAMES", "x"),
        (FLOATS, Payload({**x([0, 0]).tensors, "y": torch.zeros(1)}), "FEDAF-REPLY-NAMES", "'y'"),
        (Schema(), Payload({"y" * 1000: torch.zeros(1)}), "FEDAF-REPLY-NAMES", f"'{'y' * 80}'"),
        (FLOATS, x([0, 0], torch.float64), "FEDAF-REPLY-TYPE", "x torch.float64 torch.float32"),
        (FLOATS, x([[0, 0]]), "FEDAF-REPLY-SHAPE", "x 2 1"),
        (FLOATS, x(0), "FEDAF-REPLY-SHAPE", "x 0 1"),
        (FLOATS, x([0, 0, 0]), "FEDAF-REPLY-SHAPE", "x 3 0 2"),
        (FLOATS, x([]), "FEDAF-REPLY-SHAPE", "x 0 0 2"),
        (FLOATS, x([0, math.nan]), "FEDAF-REPLY-NOT-FINITE", "x"),
        (FLOATS, x([0, math.inf]), "FEDAF-REPLY-NOT-FINITE", "x"),
        (FLOATS, x([-math.inf, 0]), "FEDAF-REPLY-NOT-FINITE", "x"),
        (FLOATS, x([0, -1.001]), "FEDAF-REPLY-RANGE", "x -1"),
        (FLOATS, x([1.001, 0]), "FEDAF-REPLY-RANGE", "x 1"),
        (PAIRS, pairs(a=0, b=(0, 3)), "FEDAF-REPLY-SHAPE", "a 0 0 1 4"),
        (PAIRS, pairs(a=5, b=(5, 3)), "FEDAF-REPLY-SHAPE", "a 5 0 1 4"),
        (PAIRS, pairs(c=3), "FEDAF-REPLY-SHAPE", "c 3 0 0 2"),
        (PAIRS, pairs(a=2, b=(3, 3)), "FEDAF-REPLY-SHAPE", "b 3 0 2"),
        (PAIRS, pairs(b=(2, 4)), "FEDAF-REPLY-SHAPE", "b 4 1 3"),
        (
            Schema({"x": Field(torch.int64, (2,), among=torch.tensor([3, 4]))}),
            x([4, 5], torch.int64),
            "FEDAF-REPLY-VALUE",
            "x",
        ),
        (SCALARS, Payload({}, {"count": 1, "loss": 0.5}), "FEDAF-REPLY-NAMES", "any"),
        (SCALARS, scalars(more=1), "FEDAF-REPLY-NAMES", "'more'"),
        (SCALARS, scalars(count=1.0), "FEDAF-REPLY-TYPE", "count float int"),
        (SCALARS, scalars(count="1"), "FEDAF-REPLY-TYPE", "count str int"),
        (SCALARS, scalars(count=True), "FEDAF-REPLY-TYPE", "count bool int"),
        (SCALARS, scalars(loss="low"), "FEDAF-REPLY-TYPE", "loss str float"),
        (SCALARS, scalars(loss=False), "FEDAF-REPLY-TYPE", "loss bool float"),
        (SCALARS, scalars(loss=math.nan), "FEDAF-REPLY-NOT-FINITE", "loss"),
        (SCALARS, scalars(loss=math.inf), "FEDAF-REPLY-NOT-FINITE", "loss"),
        (SCALARS, scalars(any=-math.inf), "FEDAF-REPLY-NOT-FINITE", "any"),
        (SCALARS, scalars(loss=1.1e30), "FEDAF-REPLY-NOT-FINITE", "loss"),
        (SCALARS, scalars(any=-1.1e30), "FEDAF-REPLY-NOT-FINITE", "any"),
        (SCALARS, scalars(count=11), "FEDAF-REPLY-RANGE", "count 11 0 10"),
        (SCALARS, scalars(count=-1), "FEDAF-REPLY-RANGE", "count -1 0 10"),
        (SCALARS, scalars(loss=-0.25), "FEDAF-REPLY-RANGE", "loss -0.25 0 inf"),
        (SCALARS, scalars(count=10**30), "FEDAF-REPLY-RANGE", "count 1000000000000000000000000000000 0 10"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_its_code_and_what_is_wrong(schema, payload, code, words):
    with raises(code) as refusal:
        schema.validate(payload)
    assert re.search(".*".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in words.split()), str(refusal.value))
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    "huge", [10**400, -(10**400), 10**5000, -(10**5000)], ids=["1e400", "-1e400", "1e5000", "-1e5000"]
)
@pytest.mark.parametrize("name", ["count", "loss", "any"])
def test_a_whole_number_too_large_for_a_float_is_refused(name, huge):
    with raises("FEDAF-REPLY-NOT-FINITE") as refusal:
        SCALARS.validate(scalars(**{name: huge}))
    assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [(torch.uint8, 7, 8), (torch.int64, 7, 8), (torch.float16, 7, 7.5), (torch.bfloat16, 7, 7.5), (torch.bool, 0, 1)],
)
def test_ranges_hold_for_every_type(dtype, good, bad):
    high = 0 if dtype == torch.bool else 7
    schema = Schema({"x": Field(dtype, (2,), high=high)})
    schema.validate(x([good, good], dtype))
    with raises("FEDAF-REPLY-RANGE"):
        schema.validate(x([good, bad], dtype))


def test_checks_across_tensors_come_last_and_decide():
    seen = []

    def check(tensors):
        seen.append(set(tensors))
        raise Refused("the whole does not add up", code="FEDAF-TEST")

    schema = replace(FLOATS, checks=(check,))
    with raises("FEDAF-REPLY-NAMES"):
        schema.validate(Payload())
    assert seen == []
    with raises("FEDAF-TEST"):
        schema.validate(x([0, 0]))
    assert seen == [{"x"}]


def test_like_asks_for_the_same_names_types_and_shapes():
    model = {"w": torch.ones(2, 3), "steps": torch.tensor(4)}
    schema = Schema(like(model))
    schema.validate(Payload({"w": torch.zeros(2, 3), "steps": torch.tensor(0)}))
    for wrong in (
        {"w": torch.zeros(3, 2), "steps": torch.tensor(0)},
        {"w": torch.zeros(2, 3).double(), "steps": torch.tensor(0)},
        {"w": torch.zeros(2, 3)},
        {"w": torch.full((2, 3), math.nan), "steps": torch.tensor(0)},
    ):
        with pytest.raises(Refused):
            schema.validate(Payload(wrong))
