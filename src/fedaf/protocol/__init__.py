"""The vocabulary of fedaf: methods, clients, the messages between them, and random keys."""

from fedaf.common.options import Options
from fedaf.errors import BelowQuorum, DeadlineExceeded, FedafError, Refused, UserError
from fedaf.protocol.contract import Architecture, Client, Engine, Method, Outcome, Phase, ServerState
from fedaf.protocol.keys import Draws, Key, generators_held, generators_released
from fedaf.protocol.messages import Delivery, Failed, Replied, Request, Silent
from fedaf.protocol.payload import Payload, Tensors, pack, prefixed, select, to_cpu
from fedaf.protocol.policy import Policy, images_per_sample, rounded_up
from fedaf.protocol.reports import Disclosure, Exhibit, Guarantee, Workload
from fedaf.protocol.schema import Field, Number, Schema, like
from fedaf.protocol.task import Shard, Task
from fedaf.protocol.transport import Listener, Transport
from fedaf.protocol.vault import Vault

__all__ = ["Client", "Engine", "Key", "Method", "Options", "Outcome", "Phase", "ServerState", "Shard", "Task"]
__all__ += ["Architecture", "Disclosure", "Draws", "Exhibit", "Guarantee", "Policy", "Workload"]
__all__ += ["images_per_sample", "rounded_up"]
__all__ += ["Field", "Number", "Payload", "Schema", "Tensors", "like", "pack", "prefixed", "select", "to_cpu"]
__all__ += ["Delivery", "Failed", "Listener", "Replied", "Request", "Silent", "Transport", "Vault"]
__all__ += ["generators_held", "generators_released"]
__all__ += ["BelowQuorum", "DeadlineExceeded", "FedafError", "Refused", "UserError"]
