"""The vocabulary: what may travel, who asks, who answers, and where random numbers come from."""

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
from fedaf.protocol.payload import Payload, Scalar, Tensors, pack, prefixed, read_scalars, select, to_cpu, unpack
from fedaf.protocol.policy import Policy
from fedaf.protocol.schema import Field, Number, Schema, like

__all__ = [
    "Architecture",
    "BelowQuorum",
    "Client",
    "DeadlineExceeded",
    "Disclosure",
    "Engine",
    "Exhibit",
    "FedafError",
    "Field",
    "Key",
    "Method",
    "Number",
    "Options",
    "Outcome",
    "Payload",
    "Phase",
    "Policy",
    "Refused",
    "Scalar",
    "Schema",
    "ServerState",
    "Shard",
    "Task",
    "Tensors",
    "UserError",
    "Workload",
    "like",
    "pack",
    "prefixed",
    "read_scalars",
    "select",
    "to_cpu",
    "unpack",
]
