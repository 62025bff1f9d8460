"""The schemas of the real methods: what a client may send is accepted, and nothing else."""

import json
import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedaf.methods.fedaf import FedAF, FedAFOptions
from fedaf.protocol import Key, Payload, Refused, Schema
from support.replies import (
    ARCHITECTURE,
    CLASSES,
    CONDENSE,
    CONDENSE_ASK,
    COUNTS,
    DECIBELS,
    FEDOPT,
    FIT,
    IPC,
    KNOWLEDGE,
    LOSSES,
    MODEL,
    MOST_DECIBELS,
    OWNED,
    PLUS_LOSSES,
    RATIO,
    REPLIES,
    SHARES,
    TASK,
    rounding_decides,
)

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy


@st.composite
def honest_knowledge(draw) -> Payload:
    owned = sorted(draw(st.sets(st.integers(0, CLASSES - 1))))
    v = torch.randn(len(owned), CLASSES, generator=Key(draw(st.integers(0, 99))).torch())
    classes = torch.tensor(owned, dtype=torch.int64)
    return Payload({"classes": classes, "mean_logits": v, "soft_labels": torch.softmax(v, 1)})


@st.composite
def honest_condense(draw, losses: tuple[str, ...] = LOSSES, *, samples: bool = False) -> Payload:
    values = {
        **{name: draw(st.floats(0, 1e30)) for name in losses},
        **{name: draw(st.floats(0, 58)) for name in DECIBELS},
        **{name: draw(st.floats(0, 1)) for name in SHARES},
        RATIO: draw(st.floats(0, 1e30)),
        **{name: draw(st.integers(0, 2**32)) for name in COUNTS},
    }
    images = torch.full((2, IPC, 1, 4, 4), draw(st.integers(0, 255)), dtype=torch.uint8)
    counts = {"samples": torch.tensor(draw(st.tuples(*[st.integers(1, 2**40)] * 2)))} if samples else {}
    return Payload({"classes": OWNED.clone(), "images": images, **counts}, values)


@st.composite
def honest_model(draw, phase: str) -> Payload:
    """Tensors of a network, with random scalars."""
    given = REPLIES[phase].honest[0]
    tensors = {name: t.clone() for name, t in given.tensors.items()}
    values = {
        "samples": st.integers(0, 2**40),
        "accuracy": st.floats(0, 100),
        "own_accuracy": st.floats(-1, 100),
        **dict.fromkeys(("loss_dyn", "loss_control"), st.floats(-1e30, 1e30)),
    }
    return Payload(tensors, {name: draw(values.get(name, st.floats(0, 1e30))) for name in given.scalars})


VALUES = [0, 1, -1, 0.5, 1.5, 3, 4, math.nan, math.inf, -math.inf, 2.0**40, -(2.0**40), 3e38]
DTYPES = [torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64, torch.bool]
any_scalar = (
    st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, 2**32, 2**32 + 1, 2**40, 2**40 + 1, 10**400, -(10**400), 10**5000])
    | st.floats()
    | st.sampled_from([1.0, 1.0000001, MOST_DECIBELS + 0.01, -0.0])
    | st.text(max_size=3)
)


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if dtype.is_floating_point else tensor.double().nan_to_num(0, 0, 0).to(dtype)


@st.composite
def any_tensor(draw) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    return converted(torch.full(shape, float(draw(st.sampled_from(VALUES)))), draw(st.sampled_from(DTYPES)))


@st.composite
def with_one_change(draw, tensor: Tensor) -> Tensor:
    kind = draw(st.sampled_from(["value", "value", "type", "longer", "shorter", "deeper", "other"]))
    if kind == "value" and tensor.numel():
        flat = tensor.clone().reshape(-1)
        where, what = draw(st.integers(0, len(flat) - 1)), torch.tensor(float(draw(st.sampled_from(VALUES))))
        flat[where] = converted(what, tensor.dtype)
        return flat.reshape(tensor.shape)
    if kind == "type":
        return converted(tensor, draw(st.sampled_from(DTYPES)))
    if kind == "longer" and tensor.ndim:
        return torch.cat([tensor, tensor[-1:]])
    if kind == "shorter" and tensor.ndim:
        return tensor[:-1]
    if kind == "deeper":
        return tensor.unsqueeze(draw(st.integers(0, tensor.ndim)))
    return draw(any_tensor())


@st.composite
def nearly(draw, honest: st.SearchStrategy[Payload]) -> Payload:
    """An honest payload with up to two random changes, which may or may not break a rule."""
    payload = draw(honest)
    tensors, numbers = dict(payload.tensors), dict(payload.scalars)
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["tensor", "tensor", "scalar", "drop", "more tensors", "more scalars"]))
        if kind == "drop" and (tensors or numbers):
            name = draw(st.sampled_from([*tensors, *numbers]))
            tensors.pop(name, None)
            numbers.pop(name, None)
        elif kind == "more tensors":
            tensors[draw(st.text(max_size=3))] = draw(any_tensor())
        elif kind == "more scalars":
            numbers[draw(st.text(max_size=3))] = draw(any_scalar)
        elif kind == "scalar" and numbers:
            numbers[draw(st.sampled_from(list(numbers)))] = draw(any_scalar)
        elif tensors:
            name = draw(st.sampled_from(list(tensors)))
            tensors[name] = draw(with_one_change(tensors[name]))
    return Payload(tensors, numbers)


def anything(names: list[str], numbers: list[str]) -> st.SearchStrategy[Payload]:
    return st.builds(
        Payload,
        st.fixed_dictionaries({name: any_tensor() for name in names}),
        st.fixed_dictionaries(dict.fromkeys(numbers, any_scalar)),
    )


def accepted(schema: Schema, payload: Payload) -> bool:
    """Return whether the schema accepts a payload; any exception other than ``Refused`` fails the test."""
    try:
        schema.validate(payload)
    except Refused:
        return False
    assert len(payload.encode()) <= schema.max_bytes
    return True


PHASES = {
    "fedaf knowledge": honest_knowledge(),
    "fedaf condense": honest_condense(),
    "fedaf-plus condense": honest_condense(PLUS_LOSSES, samples=True),
    **{
        phase: honest_model(phase)
        for phase in REPLIES
        if phase.split()[1] in ("fit", "evaluate", "count") and phase.split()[0] not in FEDOPT  # those reply as FedAvg
    },
}
of_every_phase = pytest.mark.parametrize("phase", PHASES)


@of_every_phase
@unhurried
@given(data=st.data())
def test_an_honest_reply_is_accepted(phase, data):
    payload = data.draw(PHASES[phase])
    assert REPLIES[phase].is_good(payload)
    assert accepted(REPLIES[phase].schema, payload)


@of_every_phase
@settings(unhurried, max_examples=200)
@given(data=st.data())
def test_a_reply_is_accepted_only_if_nothing_is_wrong_with_it(phase, data):
    payload = data.draw(nearly(PHASES[phase]))
    assume(not rounding_decides(payload))
    assert accepted(REPLIES[phase].schema, payload) == REPLIES[phase].is_good(payload)


@of_every_phase
@unhurried
@given(data=st.data())
def test_arbitrary_arrays_under_the_right_names_are_refused_or_right(phase, data):
    schema = REPLIES[phase].schema
    payload = data.draw(anything(list(schema.fields), list(schema.scalars)))
    assume(not rounding_decides(payload))
    assert accepted(schema, payload) == REPLIES[phase].is_good(payload)


HONEST_KNOWLEDGE = {
    "classes": torch.tensor([1, 3]),
    "mean_logits": torch.zeros(2, CLASSES),
    "soft_labels": torch.full((2, CLASSES), 1 / CLASSES),
}
HONEST_CONDENSE = {"classes": OWNED, "images": torch.zeros(2, IPC, 1, 4, 4, dtype=torch.uint8)}
HONEST_MEASURES = {**dict.fromkeys((*LOSSES, *DECIBELS, *SHARES, RATIO), 0.5), **dict.fromkeys(COUNTS, 4)}


@contextmanager
def refused(words: list[str]):
    """The reply must be refused, with a message that names what is wrong with it."""
    with pytest.raises(Refused) as caught:
        yield
    assert all(word in caught.value.labelled for word in words), caught.value.labelled


def rows(*row: float) -> Tensor:
    return torch.tensor([row, row])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"classes": torch.tensor([3, 1])}, ["[FEDAF-REPLY-CLASSES]"]),
        ({"classes": torch.tensor([3, 3])}, ["[FEDAF-REPLY-CLASSES]"]),
        ({"classes": torch.tensor([1, CLASSES])}, ["classes", "above 3"]),
        ({"classes": torch.tensor([-1, 1])}, ["classes", "below 0"]),
        ({"classes": torch.tensor([0, 1, 2])}, ["mean_logits", "3"]),
        ({"mean_logits": torch.zeros(2, CLASSES + 1)}, ["mean_logits", "5"]),
        ({"mean_logits": torch.full((2, CLASSES), math.inf)}, ["mean_logits", "finite"]),
        ({"mean_logits": torch.full((2, CLASSES), 3e38)}, ["mean_logits", "above 10000"]),
        ({"soft_labels": rows(0.3, 0.3, 0.3, 0.3)}, ["[FEDAF-REPLY-SOFT-LABELS]"]),
        ({"soft_labels": rows(0.2, 0.2, 0.2, 0.2)}, ["[FEDAF-REPLY-SOFT-LABELS]"]),
        ({"soft_labels": rows(-0.5, 0.5, 0.5, 0.5)}, ["soft_labels", "below 0"]),
        ({"soft_labels": rows(1.5, 0, 0, 0)}, ["soft_labels", "above 1"]),
    ],
)
def test_knowledge_that_no_client_can_have_is_refused(change, words):
    schema = KNOWLEDGE.schema(Payload(MODEL))
    schema.validate(Payload(HONEST_KNOWLEDGE))
    with refused(words):
        schema.validate(Payload({**HONEST_KNOWLEDGE, **change}))


@pytest.mark.parametrize(
    ("tensors", "measures", "words"),
    [
        ({"classes": torch.tensor([0, 1])}, {}, ["classes"]),
        ({"images": torch.zeros(2, IPC + 1, 1, 4, 4, dtype=torch.uint8)}, {}, ["images", "3"]),
        ({"images": torch.zeros(2, IPC, 1, 4, 4)}, {}, ["images", "float32"]),
        ({}, {"loss_dm": -1.0}, ["loss_dm", "-1.0"]),
        ({}, {"gradient_ratio": math.inf}, ["gradient_ratio", "finite"]),
        ({}, {"audit_images": 2**32 + 1}, ["audit_images", "4294967297"]),
        ({}, {"audit_images": 1.0}, ["audit_images", "float"]),
        ({}, {"disclosed_images": -1}, ["disclosed_images", "-1"]),
        ({}, {"disclosed_per_sample_at_most": -0.5}, ["disclosed_per_sample_at_most", "-0.5"]),
        ({}, {"audit_from_source": 1.01}, ["audit_from_source", "1.01"]),
        ({}, {"audit_psnr_max": 61.0}, ["audit_psnr_max", "61.0"]),
        ({}, {"held_out_psnr_mean": -0.1}, ["held_out_psnr_mean", "-0.1"]),
    ],
)
def test_condensed_data_that_nobody_asked_for_are_refused(tensors, measures, words):
    schema = CONDENSE.schema(CONDENSE_ASK)
    schema.validate(Payload(HONEST_CONDENSE, HONEST_MEASURES))
    with refused(words):
        schema.validate(Payload({**HONEST_CONDENSE, **tensors}, {**HONEST_MEASURES, **measures}))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"samples": -1}, ["samples", "-1"]),
        ({"samples": 2**40 + 1}, ["samples", "1099511627777"]),
        ({"samples": 5.0}, ["samples", "float"]),
        ({"loss_ce": -0.1}, ["loss_ce", "-0.1"]),
        ({"loss_ce": math.nan}, ["loss_ce", "finite"]),
    ],
)
def test_a_trained_model_with_impossible_figures_is_refused(given, words):
    schema = FIT.schema(Payload(MODEL))
    schema.validate(Payload(MODEL, {"samples": 1, "loss_ce": 0.0}))
    with refused(words):
        schema.validate(Payload(MODEL, {"samples": 1, "loss_ce": 0.0, **given}))


def test_measures_at_their_largest_from_every_client_give_finite_figures():
    """Infinite means could not be written to the log."""
    fit = Payload(MODEL, {"samples": 2**40, "loss_ce": 1e30})
    condense = Payload(HONEST_CONDENSE, {**HONEST_MEASURES, **dict.fromkeys(LOSSES, 1e30)})
    for phase, reply in ((FIT, fit), (CONDENSE, condense)):
        case = REPLIES[f"{'fedavg' if phase is FIT else 'fedaf'} {phase.name}"]
        case.schema.validate(reply)
        server = phase.aggregate(case.server, {f"client-{i}": reply for i in range(1000)})
        json.dumps(server.log, allow_nan=False)


def test_the_largest_honest_reply_is_within_max_bytes_and_not_far_below():
    classes = 700  # its knowledge is more than the allowance for framing
    task = replace(TASK, num_classes=classes, channels=3, height=32, width=32)
    knowledge, condense = FedAF(FedAFOptions(ipc=10), task, ARCHITECTURE).phases
    everything = torch.arange(classes)
    zeros = torch.zeros(classes, classes)
    images = torch.zeros(classes, 10, 3, 32, 32, dtype=torch.uint8)
    replies = [
        (knowledge.schema(Payload()), {"classes": everything, "mean_logits": zeros, "soft_labels": zeros}),
        (condense.schema(Payload({"classes": everything})), {"classes": everything, "images": images}),
    ]
    for schema, tensors in replies:
        size = len(Payload(tensors, dict.fromkeys(schema.scalars, 0)).encode())
        assert size > 1 << 20
        assert size <= schema.max_bytes <= size + (1 << 20)
