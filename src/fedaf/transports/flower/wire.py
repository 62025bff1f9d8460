"""The layout of our messages inside Flower's: a record with a few facts, and the bytes of a payload."""

import logging

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedaf.common.version import __version__
from fedaf.errors import Refused

#: Bump on incompatible wire changes.
PROTOCOL_VERSION = 2

#: Asks a node which client it is; answered without importing PyTorch.
HELLO = "query.hello"
#: Carries a request of any phase.
PHASE = "train.phase"

_FACTS, _BYTES = "facts", "payload"
Fact = str | int | float

log = logging.getLogger(__name__)
_warned: set[str] = set()


def to_records(data: bytes = b"", /, **facts: Fact) -> RecordDict:
    """Return a Flower message with these bytes and facts; the versions of protocol and package are added."""
    records = RecordDict({_FACTS: ConfigRecord({"protocol": PROTOCOL_VERSION, "version": __version__, **facts})})
    if data:
        records[_BYTES] = ArrayRecord({_BYTES: Array("uint8", (len(data),), _BYTES, data)})
    return records


def from_records(records: RecordDict, *, sender: str) -> tuple[dict[str, Fact], bytes]:
    """Return the facts and the bytes of a message.

    Raises:
        Refused: The message is not from fedaf, or from an incompatible version.
    """
    found = records.get(_FACTS)
    if not isinstance(found, ConfigRecord):
        raise Refused(f"a message from {sender} is not a message of fedaf", code="FEDAF-MESSAGE-FOREIGN")
    facts = {name: value for name, value in found.items() if isinstance(value, Fact)}
    protocol, version = facts.get("protocol"), str(facts.get("version"))[:40]
    if protocol != PROTOCOL_VERSION:
        what = f"{sender} uses protocol version {protocol} (fedaf {version})"
        here = f"this is protocol version {PROTOCOL_VERSION} (fedaf {__version__})"
        raise Refused(f"{what}, but {here}; install the same version on both sides", code="FEDAF-MESSAGE-VERSION")
    if version != __version__ and f"{sender} {version}" not in _warned:
        _warned.add(f"{sender} {version}")
        log.warning("%s has fedaf %s, this is fedaf %s: results may differ", sender, version, __version__)
    arrays = records.get(_BYTES)
    if not isinstance(arrays, ArrayRecord) or _BYTES not in arrays:
        return facts, b""
    data: bytes = arrays[_BYTES].data
    return facts, data
