"""How our messages lie in Flower's: a few facts in a record of their own, and the bytes of a payload as they are."""

import logging
from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedaf import __version__
from fedaf.errors import Refused

#: Rises with every change that sites of two versions could not understand each other over.
PROTOCOL_VERSION = 1

#: Who is there; answered without loading PyTorch.
HELLO = "query.hello"
#: One kind of message for every phase: the request itself says which.
PHASE = "train.phase"

_FACTS, _BYTES = "facts", "payload"
Fact = str | int | float

log = logging.getLogger(__name__)
_told: set[str] = set()


def to_records(data: bytes = b"", /, **facts: Fact) -> RecordDict:
    """One array of bytes, so what travels is exactly what we encoded; and the facts, with our versions among them."""
    told: Mapping[str, Fact] = {"protocol": PROTOCOL_VERSION, "version": __version__, **facts}
    records = RecordDict({_FACTS: ConfigRecord(dict(told))})
    if data:
        records[_BYTES] = ArrayRecord({_BYTES: Array("uint8", (len(data),), _BYTES, data)})
    return records


def from_records(records: RecordDict, *, sender: str) -> tuple[dict[str, Fact], bytes]:
    """Facts and bytes of a message, or ``Refused`` where it is none of ours, or of another version of the protocol."""
    found = records.get(_FACTS)
    if not isinstance(found, ConfigRecord):
        raise Refused(f"a message of {sender} is not one of fedaf")
    facts = {name: value for name, value in found.items() if isinstance(value, Fact)}
    protocol, version = facts.get("protocol"), str(facts.get("version"))[:40]
    if protocol != PROTOCOL_VERSION:
        raise Refused(
            f"{sender} speaks version {protocol} of the protocol (fedaf {version}), and here it is version "
            f"{PROTOCOL_VERSION} (fedaf {__version__}); install the same fedaf on both"
        )
    if version != __version__ and f"{sender} {version}" not in _told:
        _told.add(f"{sender} {version}")
        log.warning("%s has fedaf %s, and here is %s: numbers may differ", sender, version, __version__)
    arrays = records.get(_BYTES)
    if not isinstance(arrays, ArrayRecord) or _BYTES not in arrays:
        return facts, b""
    data: bytes = arrays[_BYTES].data
    return facts, data
