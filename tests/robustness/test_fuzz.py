"""Many broken messages: a peer's bytes are refused or harmless, in bounded time and memory."""

import json
import math
import resource
import sys
import time
from collections import Counter
from contextlib import contextmanager

import pytest
import torch

from fedaf.client.state import ClientState
from fedaf.protocol import Key, Outcome, Payload, Refused, Request, Schema, pack
from fedaf.protocol.records import to_tensors
from support.errors import raises
from support.fuzzing import Mutator, framed
from support.replies import CONDENSE_ASK, MODEL, REPLIES, Replies, rounding_decides

MIB = 1 << 20
AGGREGATE_EVERY = 20  # of the accepted mutants: to aggregate takes longer than to read


@pytest.fixture(params=[5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def mutants(request):
    """How many broken messages to make."""
    return request.config.getoption("--fuzz") or request.param


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@contextmanager
def bounded(*, seconds: float = 5, mib: int = 200):
    """Fails what takes much longer or more memory than an honest message can."""
    before, started = peak_bytes(), time.monotonic()
    yield
    assert time.monotonic() - started < seconds
    assert peak_bytes() - before < mib * MIB


def assert_usable(replies: Replies, payload: Payload) -> None:
    """An accepted reply can be aggregated with honest ones; model and memory stay finite, and the log is valid JSON."""
    folded = replies.phase.aggregate(replies.server, {"client-0": payload, "client-1": replies.honest[-1]})
    for tensors in (folded.model, to_tensors(folded.memory)):
        assert all(bool(torch.isfinite(t).all()) for t in tensors.values())
    json.dumps(folded.log, allow_nan=False)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("phase", REPLIES)
def test_no_mutant_of_a_reply_does_anything_but_be_refused_or_be_good(phase, mutants):
    replies = REPLIES[phase]
    schema, limit = replies.schema, replies.schema.max_bytes
    count = mutants // len(REPLIES)
    mutator = Mutator([payload.encode() for payload in replies.honest], seed=len(phase))
    fates: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    with bounded(seconds=math.inf):
        for kind, data in mutator.mutants(count):
            kinds[kind] += 1
            fate = "unreadable"
            try:
                payload = Payload.decode(data, max_bytes=limit)
                fate = "against the rules"
                schema.validate(payload)
                fate = "accepted"
            except Refused:
                pass
            except BaseException:
                print(f"{kind}: {data!r}")
                raise
            fates[fate] += 1
            if fate == "accepted":
                assert replies.is_good(payload) or rounding_decides(payload), f"{kind}: {data!r}"
                if fates[fate] % AGGREGATE_EVERY == 0:
                    assert_usable(replies, payload)
    print(f"\n{phase}: " + ", ".join(f"{fate} {n / count:.1%}" for fate, n in fates.items()))
    assert kinds.keys() == mutator.kinds.keys()
    assert min(kinds.values()) > count / 40
    assert fates["accepted"] > 0.01 * count
    assert fates["unreadable"] > 0.1 * count
    assert fates["against the rules"] > 0.1 * count
    assert fates["accepted"] < 0.7 * count


def a_request(**changes) -> bytes:
    header = {"run": "x", "round": 3, "phase": "condense", "accepted": 2, "key": 7, "seconds": 0.0, **changes}
    return pack({}, {"request": json.dumps(header)})


@pytest.mark.timeout(3600)
def test_no_mutant_of_a_request_does_anything_but_be_refused_or_be_served(mutants):
    """What is accepted has a header a client can work with, and keep on its disk."""
    asks = (Payload(MODEL), CONDENSE_ASK)
    honest = [Request("run", 3, "condense", 2, Key(2**62), ask, seconds=2.5).encode() for ask in asks]
    mutator, count = Mutator(honest, seed=1), mutants // 10
    fates: Counter[str] = Counter()
    with bounded(seconds=math.inf):
        for kind, data in mutator.mutants(count):
            try:
                request = Request.decode(data, max_bytes=MIB)
            except Refused:
                fates["refused"] += 1
                continue
            except BaseException:
                print(f"{kind}: {data!r}")
                raise
            fates["accepted"] += 1
            assert 1 <= request.round < 2**63
            assert 0 <= request.accepted < 2**63
            assert 0 <= request.key.value < 2**63
            assert request.seconds is None or 0 < request.seconds < math.inf
            state = ClientState().opened(request).after(request, Outcome(Payload(), state={}, scratch={}))
            assert ClientState.from_tensors(state.to_tensors()) == state
            assert Request.decode(request.encode()).run == request.run
    print(f"\nrequests: {fates['accepted'] / count:.1%} accepted")
    assert fates["accepted"] > 0.01 * count
    assert fates["refused"] > 0.3 * count


@pytest.mark.parametrize(
    "changes",
    [
        {"round": 2**63},
        {"round": 0},
        {"round": True},
        {"accepted": -1},
        {"accepted": 10**30},
        {"key": 2**63},
        {"key": -1},
        {"seconds": math.nan},
        {"seconds": math.inf},
        {"seconds": -1.0},
        {"seconds": 1},
        {"run": "\ud800"},
        {"run": "r" * 101},
        {"run": None},
        {"phase": "\x1b[2J"},
        {"phase": 1},
    ],
    ids=lambda changes: json.dumps(changes)[:30],
)
def test_a_request_that_no_client_could_keep_is_refused(changes):
    Request.decode(a_request())
    with raises("FEDAF-MESSAGE-UNREADABLE" if None in changes.values() else "FEDAF-REQUEST-HEADER"):
        Request.decode(a_request(**changes))


def entry(dtype="U8", shape=(1,), offsets=(0, 1)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def of_entries(body: bytes = b"", **entries) -> bytes:
    return framed(json.dumps(entries).encode(), body)


ONE = json.dumps({"a": entry()}).encode()
EMPTY = json.dumps(entry(shape=[0], offsets=[0, 0])).encode()
UNREADABLE = {
    "a header of 2^63 bytes": (2**63).to_bytes(8, "little") + ONE,
    "a header of 2^64 - 1 bytes": (2**64 - 1).to_bytes(8, "little") + ONE,
    "a header of 2^40 bytes": (2**40).to_bytes(8, "little") + ONE,
    "a header one byte longer than the message": (len(ONE) + 2).to_bytes(8, "little") + ONE + b"\1",
    "no header": b"\0" * 8,
    "less than a length": b"\1\0\0",
    "nothing": b"",
    "a tensor of 2^60 bytes": of_entries(a=entry(shape=[2**60], offsets=[0, 2**60])),
    "a shape whose size overflows": of_entries(a=entry("F32", [2**62, 2**62], [0, 0])),
    "a shape whose bytes overflow": of_entries(a=entry("F64", [2**62], [0, 2**65])),
    "a length beyond any tensor": of_entries(a=entry(shape=[0, 2**63], offsets=[0, 0])),
    "a negative length": of_entries(b"\1", a=entry(shape=[-1])),
    "a negative offset": of_entries(b"\1", a=entry(offsets=[-1, 0])),
    "offsets turned around": of_entries(b"\1", a=entry(offsets=[1, 0])),
    "overlapping tensors": of_entries(
        b"\1\2\3", a=entry(shape=[2], offsets=[0, 2]), b=entry(shape=[2], offsets=[1, 3])
    ),
    "the same bytes twice": of_entries(b"\1", a=entry(), b=entry()),
    "a hole between tensors": of_entries(b"\1\2\3", a=entry(), b=entry(offsets=[2, 3])),
    "bytes after the last tensor": of_entries(b"\1\2", a=entry()),
    "bytes before the first tensor": of_entries(b"\1\2", a=entry(offsets=[1, 2])),
    "nested brackets": framed(b"[" * 900_000),
    "nested objects": framed(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "nested in an entry": framed(b'{"a":{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"),
    "nested scalars": of_entries(__metadata__={"scalars": "[" * 100_000}),
    "nested scalar values": of_entries(__metadata__={"scalars": '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"}),
    "metadata twice": framed(b'{"__metadata__":{"scalars":"{}"},"__metadata__":{"scalars":5}}'),
    "metadata that is no text": framed(b'{"__metadata__":{"scalars":5}}'),
}
#: Large enough to be made only when needed.
OVERSIZED = {
    "a header of 50 MB of spaces": lambda: framed(b"{" + b" " * (50 * MIB) + b"}"),
    "a header with 50 MB of spaces after it": lambda: framed(b"{}" + b" " * (50 * MIB)),
    "half a million tensors": lambda: framed(b"{%b}" % b",".join(b'"%d":%b' % (i, EMPTY) for i in range(500_000))),
}
#: Readable, and refused by any schema; none of it may cost more than its bytes.
HARMLESS = {
    "nothing by a huge number": of_entries(a=entry(shape=[0, 2**62], offsets=[0, 0])),
    "nothing between huge numbers": of_entries(a=entry(shape=[2**62, 0, 2**62], offsets=[0, 0])),
    "a thousand axes": of_entries(a=entry(shape=[0, *[1] * 1000], offsets=[0, 0])),
    "ten thousand tensors": of_entries(**{str(i): entry(shape=[0], offsets=[0, 0]) for i in range(10_000)}),
    "a name of half a megabyte": of_entries(b"\1", **{"n" * (MIB // 2): entry()}),
    "ten thousand scalars": of_entries(__metadata__={"scalars": json.dumps({str(i): i for i in range(10_000)})}),
    "a scalar of half a megabyte": of_entries(__metadata__={"scalars": json.dumps({"a": "1" * (MIB // 2)})}),
    "an entry with more in it": framed(
        b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":[' + b"[]," * 99_999 + b"[]]}}"
    ),
    "a tensor twice": framed(b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2), b"\1"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_message_built_to_break_its_reader_is_refused(what):
    with bounded(), raises("FEDAF-MESSAGE-UNREADABLE") as refusal:
        Payload.decode(UNREADABLE[what])
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("what", OVERSIZED)
def test_a_header_too_large_to_be_honest_is_refused_before_it_is_parsed(what):
    data = OVERSIZED[what]()
    with bounded(seconds=0.5, mib=5), raises("FEDAF-MESSAGE-UNREADABLE") as refusal:
        Payload.decode(data)
    assert "1048576" in str(refusal.value)


@pytest.mark.parametrize("what", HARMLESS)
def test_a_message_that_is_only_odd_is_read_and_then_refused(what):
    with bounded():
        payload = Payload.decode(HARMLESS[what])
        for schema in (Schema(), *(replies.schema for replies in REPLIES.values())):
            with raises("FEDAF-REPLY-NAMES") as refusal:
                schema.validate(payload)
            assert len(str(refusal.value)) < 300


def test_the_largest_header_that_is_read_takes_bounded_time_and_memory():
    text = b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":[' + b"[]," * 330_000 + b"[]]}}"
    at_limit = text + b" " * (MIB - len(text))
    with bounded():
        Payload.decode(framed(at_limit))
    with bounded(seconds=0.5, mib=5), raises("FEDAF-MESSAGE-UNREADABLE") as refusal:
        Payload.decode(framed(at_limit + b" "))
    assert "1048576" in str(refusal.value)


def test_a_count_of_batches_cannot_run_away():
    """Averaged into the model, 2^63 would overflow, and every honest reply of the next round would be refused."""
    schema, reply = REPLIES["fedavg fit"].schema, REPLIES["fedavg fit"].honest[0]
    name = next(name for name in MODEL if name.endswith("num_batches_tracked"))
    schema.validate(Payload({**reply.tensors, name: torch.tensor(2**32)}, reply.scalars))
    for absurd in (2**32 + 1, 2**63 - 1, -1):
        with raises("FEDAF-REPLY-RANGE") as refusal:
            schema.validate(Payload({**reply.tensors, name: torch.tensor(absurd)}, reply.scalars))
        assert name in str(refusal.value)
