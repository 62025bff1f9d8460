"""FedBN: Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization" (ICLR 2021).

Every parameter and statistic of a BatchNorm layer stays with its client; the rest is averaged, each client counting the
same. So there is no global model. Reported are the averaged model with averaged BatchNorm, which clients send for that
report only, and the mean accuracy of the personal models on their clients' own test data.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaf.methods import averaging
from fedaf.methods.averaging import MOST_SAMPLES, AveragingMethod, weighted_average
from fedaf.protocol import (
    Client,
    Engine,
    Key,
    Number,
    Outcome,
    Payload,
    Phase,
    Refused,
    Schema,
    ServerState,
    Tensors,
    like,
)
from fedaf.training.evaluate import accuracy


def batch_norm_tensors(model: nn.Module) -> set[str]:
    """Names of all parameters and buffers of BatchNorm layers: by what a layer is, not by how it is called."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm)
        for name in module.state_dict()
    }


class Fit(averaging.Fit):
    """Down and up: the model without its BatchNorm layers, which the client keeps."""

    method: "FedBN"

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload({name: t for name, t in server.model.items() if name not in self.method.own})

    def load(self, model: nn.Module, ask: Payload, client: Client) -> None:
        personalise(model, ask.tensors, client)

    def keep(self, model: nn.Module, ask: Payload, client: Client) -> Tensors:
        return {name: t for name, t in model.state_dict().items() if name in self.method.own}

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        return _averaged(server, {name: reply.tensors for name, reply in replies.items()})


class Evaluate(Phase):
    """For the report only. Down: the new average. Up: how the client's personal model does on the client's own test
    data, how many these are, and its BatchNorm layers, to be averaged into the model the server tests."""

    name = "evaluate"

    def __init__(self, method: "FedBN") -> None:
        self.method = method

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Fit(self.method).ask(server, client_id)

    def schema(self, ask: Payload) -> Schema:
        scalars = {"accuracy": Number(float, 0, 100), "samples": Number(int, 0, MOST_SAMPLES)}
        return Schema(like(self.method.own), scalars)

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        test = client.shard.test
        if test is None or not len(test):
            raise Refused("this client has no test data of its own")
        model = self.method.build_model(client.key)
        personalise(model, ask.tensors, client)
        found = accuracy(model, test.images, test.labels, self.method.task, engine)
        return Outcome(Payload(client.state, {"accuracy": found, "samples": len(test)}))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        server = _averaged(server, {name: reply.tensors for name, reply in replies.items()})
        found, samples = (
            {name: reply.scalars[told] for name, reply in replies.items()} for told in ("accuracy", "samples")
        )
        return server.with_log(personal_accuracy=found, personal_samples=samples)


class FedBN(AveragingMethod):
    Fit = Fit

    @cached_property
    def own(self) -> Tensors:
        """The tensors that stay with a client, as a model is built with them."""
        model = self.build_model(Key(0))
        names = batch_norm_tensors(model)
        return {name: t for name, t in model.state_dict().items() if name in names}

    @property
    def evaluation(self) -> Phase:
        return Evaluate(self)


def personalise(model: nn.Module, shared: Tensors, client: Client) -> None:
    """Load what is shared, and the BatchNorm layers that the client kept; at first those of the model as built."""
    model.load_state_dict({**model.state_dict(), **shared, **client.state})


def _averaged(server: ServerState, models: Mapping[str, Tensors]) -> ServerState:
    """The tensors that came, averaged, in place of the server's."""
    return replace(server, model={**server.model, **weighted_average(models, dict.fromkeys(models, 1.0))})
