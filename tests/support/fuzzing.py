"""A seeded source of broken messages: from honest ones, by changes to bytes, header, scalars and values."""

import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

LENGTH = 8  # bytes before the header that say how long it is
SPECIAL = {
    "F32": (
        "<f",
        [float("nan"), float("inf"), float("-inf"), 1e-40, -1e-40, -0.0, 1.0, -1.0, 0.25, 1.001e4, 1.1e6, 3e38],
    ),
    "F64": ("<d", [float("nan"), 0.0]),
    "I64": ("<q", [0, 1, 2, 3, 4, -1, 7, 2**31, 2**32, 2**32 + 1, 2**63 - 1, -(2**63)]),
    "U8": ("<B", [0, 1, 127, 128, 255]),
}
NUMBERS = [0, 1, 2, 3, 5, -1, 0.5, 1e400, 2**31, 2**32, 2**40, 2**60, 2**62, 2**63, 2**64 - 1, 2**64, 10**400, -(2**63)]
ODDITIES = [None, True, False, "", "1", [], {}, [[]], {"a": {}}, float("nan"), *NUMBERS]
#: Texts that may stand for a scalar; not all of them are JSON.
SCALAR_TEXTS = [
    *("true", "false", "null", "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" * 400, "1" * 5000, "-1", "-0.0"),
    *("0", "1", "0.5", "1.0", "1e3", "1e29", "1e31", "2e308", "4294967296", "4294967297", "1099511627777", '"1"', '""'),
    *("[]", "{}", "[1]", '{"a":1}', "0x10", "01", "1_000", "", "[" * 500, '"\\ud800"', "1.", ".5", "+1", "5e-324"),
]
DTYPES = [
    "BOOL",
    "U8",
    "I8",
    "I16",
    "U16",
    "F16",
    "BF16",
    "I32",
    "U32",
    "F32",
    "F64",
    "I64",
    "U64",
    "F8_E4M3",
    "F4",
    "C64",
]
DEEP = "[" * 300 + "]" * 300


@dataclass(frozen=True)
class Message:
    """A safetensors message taken apart. ``texts`` is its metadata: JSON texts by name."""

    entries: dict[str, dict]
    texts: dict[str, str]
    body: bytes

    @classmethod
    def read(cls, data: bytes) -> "Message":
        end = LENGTH + int.from_bytes(data[:LENGTH], "little")
        entries = json.loads(data[LENGTH:end])
        return cls(entries, entries.pop("__metadata__", {}), data[end:])

    def header(self) -> dict:
        return {"__metadata__": self.texts, **self.entries} if self.texts else dict(self.entries)

    def encode(self) -> bytes:
        return framed(json.dumps(self.header()).encode(), self.body)


def framed(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(LENGTH, "little") + header + body


class Mutator:
    """Endless mutants of honest messages, the same for the same seed."""

    def __init__(self, honest: Sequence[bytes], seed: int) -> None:
        self._honest = list(honest)
        self._messages = [Message.read(data) for data in honest]
        self._random = random.Random(seed)
        self.kinds: dict[str, Callable[[], bytes]] = {
            "bits flipped": self._bits_flipped,
            "bytes spliced": self._spliced,
            "cut short": self._cut,
            "a region repeated": self._repeated,
            "junk inserted": self._junk,
            "header length changed": self._length_changed,
            "entry changed": self._entry_changed,
            "entries added, dropped, renamed, swapped": self._entries_changed,
            "header text changed": self._header_text_changed,
            "scalar changed": self._scalar_changed,
            "scalars added, dropped, doubled": self._scalars_changed,
            "value changed": self._value_changed,
            "values reordered": self._values_reordered,
        }

    def mutants(self, count: int) -> Iterator[tuple[str, bytes]]:
        kinds = list(self.kinds)
        for _ in range(count):
            kind = self._random.choice(kinds)
            data = self.kinds[kind]()
            if self._random.random() < 0.1:
                data = self._flip(data)
            yield kind, data

    def _some(self) -> bytes:
        return self._random.choice(self._honest)

    def _message(self) -> Message:
        return self._random.choice(self._messages)

    def _message_with_tensors(self) -> Message:
        message = self._message()
        if message.entries:
            return message
        return Message({"more": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}, message.texts, b"\1\2\3")

    def _flip(self, data: bytes, start: int = 0) -> bytes:
        changed = bytearray(data)
        for _ in range(self._random.choice((1, 1, 2, 8))):
            if start < len(changed):
                changed[self._random.randrange(start, len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)

    def _bits_flipped(self) -> bytes:
        data = self._some()
        in_body = LENGTH + int.from_bytes(data[:LENGTH], "little")
        return self._flip(data, self._random.choice((0, in_body)))

    def _spliced(self) -> bytes:
        left, right = self._some(), self._some()
        cut = self._random.randrange(len(left) + 1)
        return left[:cut] + right[cut if self._random.random() < 0.5 else self._random.randrange(len(right)) :]

    def _cut(self) -> bytes:
        data = self._some()
        return data[: self._random.randrange(len(data))]

    def _region(self, data: bytes) -> slice:
        start = self._random.randrange(len(data))
        return slice(start, start + self._random.choice((1, 4, 8, 64)))

    def _repeated(self) -> bytes:
        data = self._some()
        region, at = self._region(data), self._random.randrange(len(data) + 1)
        over = len(data[region]) if self._random.random() < 0.5 else 0
        return data[:at] + data[region] + data[at + over :]

    def _junk(self) -> bytes:
        data, at = self._some(), self._random.choice((0, LENGTH, -1))
        return data[:at] + self._random.randbytes(self._random.choice((1, 3, 8, 100))) + data[at:]

    def _length_changed(self) -> bytes:
        data = self._some()
        length = int.from_bytes(data[:LENGTH], "little") + self._random.choice((-8, -1, 1, 8, 2**20, 2**40))
        length = self._random.choice((length, length, 0, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1))
        return max(length, 0).to_bytes(LENGTH, "little") + data[LENGTH:]

    def _entry_changed(self) -> bytes:
        message = self._message_with_tensors()
        name = self._random.choice(list(message.entries))
        entry = {key: list(v) if isinstance(v, list) else v for key, v in message.entries[name].items()}
        key = self._random.choice(("dtype", "shape", "shape", "data_offsets", "data_offsets", "more"))
        what = self._random.random()
        if what < 0.3:
            entry[key] = self._random.choice(DTYPES) if key == "dtype" else self._random.choice(ODDITIES)
        elif what < 0.4:
            entry.pop(key, None)
        elif what < 0.5:
            entry["shape"] = self._random.choice(([0, 2**62], [2**62, 0], [0] * 70, [1, *entry["shape"]], []))
        elif key in ("shape", "data_offsets") and entry[key]:
            at = self._random.randrange(len(entry[key]))
            entry[key][at] = self._random.choice((*NUMBERS, entry[key][at] + 1, entry[key][at] - 1, entry[key][at] * 2))
        else:
            entry["dtype"] = self._random.choice(DTYPES)
        return Message({**message.entries, name: entry}, message.texts, message.body).encode()

    def _entries_changed(self) -> bytes:
        message = self._message_with_tensors()
        entries, body = dict(message.entries), message.body
        first, second = self._random.choices(list(entries), k=2)
        what = self._random.randrange(6)
        if what == 0:
            del entries[first]
        elif what == 1:
            entries[self._random.choice(("", "more", "\0", "é", first.upper(), "x" * 500))] = entries.pop(first)
        elif what == 2:
            entries[first], entries[second] = entries[second], entries[first]
        elif what == 3:
            entries["more"] = {"dtype": "U8", "shape": [3], "data_offsets": [len(body), len(body) + 3]}
            body += b"\1\2\3"
        elif what == 4:
            entries = dict(self._random.sample(list(entries.items()), len(entries)))
        else:
            entries[first] = self._random.choice(ODDITIES)
        return Message(entries, message.texts, body).encode()

    def _header_text_changed(self) -> bytes:
        message = self._message_with_tensors()
        text = json.dumps(message.header())
        name = self._random.choice(list(message.entries))
        what = self._random.randrange(7)
        if what == 0:  # the same name twice, with the same or another meaning
            twice = {**message.entries[name], **self._random.choice(({}, {"dtype": "U8"}, {"shape": [1]}))}
            text = text[:-1] + f", {json.dumps(name)}: {json.dumps(twice)}}}"
        elif what == 1:
            text = text[:-1] + ', "__metadata__": ' + self._random.choice(("null", "{}", '{"scalars": 5}', "[]")) + "}"
        elif what == 2:
            text = text.replace("[", self._random.choice((DEEP, "[[", "[-", "[1e3", "[1,")), 1)
        elif what == 3:
            text = text[:-1] + f', "deep": {DEEP}}}'
        elif what == 4:
            text = self._random.choice((" " * 1000, "\n", "\t", "\ufeff")) + text
        elif what == 5:
            text += " " * self._random.choice((1, 7, 1000))
        header = text.encode()
        if what == 6:
            at = self._random.randrange(len(header))
            header = header[:at] + self._random.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\0")) + header[at:]
        return framed(header, message.body)

    def _with_text(self, change: Callable[[str], str]) -> bytes:
        message = self._message()
        if not message.texts:
            return Message(message.entries, {"scalars": change("{}")}, message.body).encode()
        name = self._random.choice(list(message.texts))
        return Message(message.entries, {**message.texts, name: change(message.texts[name])}, message.body).encode()

    def _scalar_changed(self) -> bytes:
        def change(text: str) -> str:
            parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in json.loads(text or "{}").items()]
            if parts:
                at = self._random.randrange(len(parts))
                parts[at] = parts[at].rpartition(": ")[0] + ": " + self._random.choice(SCALAR_TEXTS)
            return "{" + ", ".join(parts) + "}"

        return self._with_text(change)

    def _scalars_changed(self) -> bytes:
        def change(text: str) -> str:
            scalars = json.loads(text or "{}")
            what = self._random.randrange(5)
            if what == 0 and scalars:
                del scalars[self._random.choice(list(scalars))]
            elif what == 1:
                scalars[self._random.choice(("more", "", "\ud800"))] = 1
            elif what == 2 and scalars:
                name = self._random.choice(list(scalars))
                return f"{{{json.dumps(name)}: {self._random.choice(SCALAR_TEXTS)}, {json.dumps(scalars)[1:]}"
            elif what == 3:
                return self._random.choice(SCALAR_TEXTS)
            else:
                scalars = dict(self._random.sample(list(scalars.items()), len(scalars)))
            return json.dumps(scalars)

        return self._with_text(change)

    def _entry_with_values(self, message: Message) -> dict | None:
        entries = [e for e in message.entries.values() if 0 not in e["shape"] and e["dtype"] in SPECIAL]
        return self._random.choice(entries) if entries else None

    def _value_changed(self) -> bytes:
        message = self._message()
        entry = self._entry_with_values(message)
        if entry is None:
            return message.encode()
        form, values = SPECIAL[entry["dtype"]]
        start, end = entry["data_offsets"]
        at = self._random.randrange(start, end, struct.calcsize(form))
        value = struct.pack(form, self._random.choice(values))
        return Message(
            message.entries, message.texts, message.body[:at] + value + message.body[at + len(value) :]
        ).encode()

    def _values_reordered(self) -> bytes:
        message = self._message()
        entry = self._entry_with_values(message)
        if entry is None:
            return message.encode()
        size = struct.calcsize(SPECIAL[entry["dtype"]][0])
        start, end = entry["data_offsets"]
        values = [message.body[at : at + size] for at in range(start, end, size)]
        moved = b"".join(self._random.choice((values[::-1], values[1:] + values[:1], values[:1] * len(values))))
        return Message(message.entries, message.texts, message.body[:start] + moved + message.body[end:]).encode()
