"""Payloads: what is sent is what arrives, and bytes from a peer can do nothing but be read or refused."""

import json
import math
import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedaf.protocol import Payload, Refused
from support.errors import raises

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy

DTYPES = [
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
]

shapes = st.lists(st.integers(0, 3), max_size=4)
scalars = st.dictionaries(
    st.text(max_size=8),
    st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    max_size=4,
)


@st.composite
def tensors(draw) -> Tensor:
    """Any bits of any type, NaNs and subnormals among them."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    count = math.prod(shape)
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    content = draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype == torch.bool:
        content = bytes(byte & 1 for byte in content)
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


payloads = st.builds(Payload, st.dictionaries(st.text(max_size=8), tensors(), max_size=4), scalars)


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def content(payload: Payload) -> tuple[dict, dict]:
    """All that a payload says, exactly: 1, 1.0 and True are different, and so are 0.0 and -0.0."""
    return (
        {name: (t.dtype, tuple(t.shape), bits(t)) for name, t in payload.tensors.items()},
        {name: (type(value), repr(value)) for name, value in payload.scalars.items()},
    )


def framed(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + body


def read_or_refused(data: bytes) -> None:
    """Anything but a payload or a refusal fails the test that calls this."""
    try:
        payload = Payload.decode(data)
    except Refused:
        return
    assert all(isinstance(t, Tensor) for t in payload.tensors.values())
    assert all(isinstance(value, bool | int | float | str) for value in payload.scalars.values())


@unhurried
@given(payloads)
def test_what_is_encoded_is_what_is_decoded(payload):
    assert content(Payload.decode(payload.encode())) == content(payload)


@pytest.mark.parametrize(
    "payload",
    [
        Payload(),
        Payload({"only": torch.arange(3)}),
        Payload(scalars={"only": 1}),
        Payload({"scalar": torch.tensor(2.5), "none": torch.empty(0, 3)}, {"nan": math.nan, "inf": math.inf}),
        Payload({"": torch.ones(1), "\0": torch.zeros(1), "é/漢.\u2028": torch.ones(2)}, {"": "", "\n": '"'}),
    ],
    ids=["nothing", "only tensors", "only scalars", "0-d and empty", "odd names"],
)
def test_payloads_at_the_edges_survive(payload):
    assert content(Payload.decode(payload.encode())) == content(payload)


def test_tensors_in_any_memory_layout_survive():
    image = torch.rand(2, 3, 4, 4)
    sent = Payload({"channels last": image.to(memory_format=torch.channels_last), "turned": image[0, 0].T})
    received = Payload.decode(sent.encode()).tensors
    assert torch.equal(received["channels last"], image)
    assert torch.equal(received["turned"], image[0, 0].T)


def test_one_tensor_may_travel_under_two_names():
    whole = torch.arange(6.0)
    received = Payload.decode(Payload({"a": whole, "b": whole, "part": whole[2:5]}).encode()).tensors
    assert torch.equal(received["a"], whole)
    assert torch.equal(received["b"], whole)
    assert torch.equal(received["part"], whole[2:5])


def test_weights_that_require_gradients_travel_as_values():
    received = Payload.decode(Payload({"w": torch.ones(2, requires_grad=True)}).encode()).tensors["w"]
    assert torch.equal(received, torch.ones(2))
    assert not received.requires_grad


@unhurried
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    read_or_refused(data)


@unhurried
@given(st.binary(max_size=100))
def test_any_header_is_read_or_refused(header):
    read_or_refused(framed(header))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "I64", "F32", "BF16", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64", "U64"]),
        "shape": st.lists(st.integers(0, 3) | st.sampled_from([2**31, 2**62, 2**63, 2**64 - 1]), max_size=3),
        "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2),
    }
)
metadata = json_values | st.fixed_dictionaries({"scalars": json_values | json_values.map(json.dumps)})


@unhurried
@given(
    st.dictionaries(st.text(max_size=4), entries | json_values, max_size=2),
    st.none() | st.tuples(metadata),
    st.binary(max_size=64),
)
def test_any_json_in_the_header_is_read_or_refused(tensors, metadata, body):
    header = tensors if metadata is None else {"__metadata__": metadata[0], **tensors}
    read_or_refused(framed(json.dumps(header).encode(), body))


@unhurried
@given(payloads, st.data())
def test_a_damaged_message_is_read_or_refused(payload, data):
    message = bytearray(payload.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        how = data.draw(st.sampled_from(["flip", "cut", "extend"]))
        if how == "flip" and message:
            message[data.draw(st.integers(0, len(message) - 1))] ^= data.draw(st.integers(1, 255))
        elif how == "cut":
            del message[data.draw(st.integers(0, len(message))) :]
        else:
            message += data.draw(st.binary(min_size=1, max_size=20))
    read_or_refused(bytes(message))


@unhurried
@given(payloads, st.data())
def test_a_message_cut_short_is_refused(payload, data):
    message = payload.encode()
    end = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(Refused):
        Payload.decode(message[:end])


@pytest.mark.parametrize(
    "header",
    [
        {"__metadata__": None},
        {"__metadata__": {}},
        {"__metadata__": {"scalars": ""}},
        {"__metadata__": {"scalars": "null"}},
        {"__metadata__": {"scalars": "[1]"}},
        {"__metadata__": {"scalars": '{"a": [1]}'}},
        {"__metadata__": {"scalars": '{"a": null}'}},
        {"__metadata__": {"scalars": '{"a": ' + "1" * 5000 + "}"}},
        {"__metadata__": {"scalars": "[" * 100_000}},
        {"a": {"dtype": "F8_E8M0", "shape": [0], "data_offsets": [0, 0]}},
        {"a": {"dtype": "F32", "shape": [0, 2**64 - 1], "data_offsets": [0, 0]}},
        {"a": {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]}},
    ],
    ids=lambda header: json.dumps(header)[:60],
)
def test_a_hostile_header_is_read_or_refused(header):
    read_or_refused(framed(json.dumps(header).encode()))


@pytest.mark.parametrize("scalars", ["null", "[1]", '{"a": [1]}', '{"a": null}', '{"a": {}}', "1"])
def test_scalars_that_are_no_scalars_are_refused(scalars):
    with raises("FEDAF-MESSAGE-UNREADABLE"):
        Payload.decode(framed(json.dumps({"__metadata__": {"scalars": scalars}}).encode()))


@pytest.mark.parametrize("length", [3, 2**31, 2**63, 2**64 - 1])
def test_a_header_longer_than_the_message_is_refused(length):
    with raises("FEDAF-MESSAGE-UNREADABLE"):
        Payload.decode(length.to_bytes(8, "little") + b"{}")


def test_a_pickle_is_refused():
    class Boom:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was run",))

    with pytest.raises(Refused):
        Payload.decode(pickle.dumps(Boom()))


@unhurried
@given(payloads)
def test_a_message_over_the_limit_is_refused_and_one_at_the_limit_is_read(payload):
    message = payload.encode()
    assert content(Payload.decode(message, max_bytes=len(message))) == content(payload)
    with raises("FEDAF-MESSAGE-SIZE") as caught:
        Payload.decode(message, max_bytes=len(message) - 1)
    assert str(len(message)) in str(caught.value)
    assert str(len(message) - 1) in str(caught.value)


def test_the_limit_holds_before_anything_is_read():
    with raises("FEDAF-MESSAGE-SIZE"):
        Payload.decode(b"not a message at all", max_bytes=10)


@unhurried
@given(payloads)
def test_nbytes_is_the_size_of_the_content(payload):
    of_tensors = sum(len(bits(t)) for t in payload.tensors.values())
    of_scalars = len(json.dumps(payload.scalars).encode()) if payload.scalars else 0
    assert payload.nbytes == of_tensors + of_scalars


@unhurried
@given(payloads)
def test_nbytes_is_no_more_than_what_is_sent(payload):
    assert payload.nbytes <= len(payload.encode())
