"""The vocabulary of fedaf: methods, clients, the messages between them, and random keys."""

from fedaf.common.options import Options
from fedaf.errors import BelowQuorum, DeadlineExceeded, FedafError, Refused, UserError
from fedaf.protocol.contract import (
    Architecture,
    Client,
    Disclosure,
    Engine,
    Exhibit,
    Method,
    Outcome,
    Phase,
    ServerState,
    Shard,
    Task,
    Workload,
)
from fedaf.protocol.keys import Key
from fedaf.protocol.messages import Delivery, Failed, Replied, Request, Silent
from fedaf.protocol.payload import Payload, Tensors, pack, prefixed, select, to_cpu
from fedaf.protocol.policy import Policy
from fedaf.protocol.schema import Field, Number, Schema, like
from fedaf.protocol.transport import Listener, Transport

__all__ = [
    "Architecture",
    "BelowQuorum",
    "Client",
    "DeadlineExceeded",
    "Delivery",
    "Disclosure",
    "Engine",
    "Exhibit",
    "Failed",
    "FedafError",
    "Field",
    "Key",
    "Listener",
    "Method",
    "Number",
    "Options",
    "Outcome",
    "Payload",
    "Phase",
    "Policy",
    "Refused",
    "Replied",
    "Request",
    "Schema",
    "ServerState",
    "Shard",
    "Silent",
    "Task",
    "Tensors",
    "Transport",
    "UserError",
    "Workload",
    "like",
    "pack",
    "prefixed",
    "select",
    "to_cpu",
]
