"""What server and client must agree on: how bytes lie in Flower's records, and the experiment."""

import tomllib

import torch
from flwr.app import Array, ArrayRecord, Context, RecordDict

from fedaf import config as configuration
from fedaf.experiment import Experiment, prepare
from fedaf.protocol import Refused

#: One kind of message for every phase: the request itself says which.
PHASE = "train.phase"

_BYTES = "fedaf"


def experiment_of(context: Context) -> Experiment:
    """The same experiment in every process, from the configuration that Flower hands to all of them."""
    config = configuration.build(tomllib.loads(str(context.run_config["config"])))
    if config.run.threads:
        torch.set_num_threads(config.run.threads)
    return prepare(config)


def to_records(data: bytes) -> RecordDict:
    """One array of bytes: Flower cuts it into chunks, and what travels is exactly what we encoded."""
    return RecordDict({_BYTES: ArrayRecord({_BYTES: Array("uint8", (len(data),), _BYTES, data)})})


def from_records(records: RecordDict) -> bytes:
    record = records.get(_BYTES)
    if not isinstance(record, ArrayRecord) or _BYTES not in record:
        raise Refused("a message holds no bytes of ours")
    data: bytes = record[_BYTES].data
    return data
