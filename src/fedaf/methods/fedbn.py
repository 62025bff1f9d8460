"""FedBN: Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization" (ICLR 2021).

Every parameter and statistic of a BatchNorm layer stays with its client. The rest is averaged with equal weights. So
there is no global model, and a run reports two accuracies: that of the average with averaged BatchNorm layers, which
clients send only for this report, and the mean accuracy of the personal models on their clients' own test data.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaf.errors import Refused
from fedaf.methods import averaging
from fedaf.methods.averaging import MOST_SAMPLES, AveragingMethod, weighted_average
from fedaf.protocol import Client, Engine, Key, Number, Outcome, Payload, Phase, Schema, ServerState, Tensors, like
from fedaf.training.evaluate import accuracy


def batch_norm_tensors(model: nn.Module) -> set[str]:
    """Return the names of all parameters and buffers of BatchNorm layers, found by the type of the layer."""
    return {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm)
        for name in module.state_dict()
    }


class Fit(averaging.Fit):
    """Down and up: the model without its BatchNorm layers. The client keeps those."""

    method: "FedBN"

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload({name: t for name, t in server.model.items() if name not in self.method.personal})

    def load(self, model: nn.Module, ask: Payload, client: Client) -> None:
        """Load the shared tensors and the client's BatchNorm layers, or those of a new model in its first round."""
        model.load_state_dict({**model.state_dict(), **ask.tensors, **client.state})

    def keep(self, model: nn.Module, ask: Payload, client: Client) -> Tensors:
        return {name: t for name, t in model.state_dict().items() if name in self.method.personal}

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Average the tensors received, with equal weights."""
        models = {name: reply.tensors for name, reply in replies.items()}
        return replace(server, model={**server.model, **weighted_average(models, dict.fromkeys(models, 1.0))})


class Evaluate(Fit):
    """Evaluate the personal models instead of training them, for the report only.

    Down: the new average. Up: accuracy of the personal model on the client's own test data, the number of these
    samples, and the client's BatchNorm layers, which are averaged into the model that the server tests.
    """

    name = "evaluate"

    def schema(self, ask: Payload) -> Schema:
        scalars = {"accuracy": Number(float, 0, 100), "samples": Number(int, 0, MOST_SAMPLES)}
        return Schema(like(self.method.personal), scalars)

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        test = client.shard.test
        if test is None or not len(test):
            raise Refused("this client has no test data of its own", code="FEDAF-METHOD-NO-TEST-DATA")
        model = self.method.build_model(client.key)
        self.load(model, ask, client)
        percent = accuracy(model, test.images, test.labels, self.method.task, engine)
        return Outcome(Payload(client.state, {"accuracy": percent, "samples": len(test)}))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        accuracies = {name: reply.scalars["accuracy"] for name, reply in replies.items()}
        samples = {name: reply.scalars["samples"] for name, reply in replies.items()}
        return self.combine(server, replies).with_log(personal_accuracy=accuracies, personal_samples=samples)


class FedBN(AveragingMethod):
    """FedAvg whose BatchNorm layers stay with their clients."""

    Fit = Fit
    title = "FedBN"

    @cached_property
    def personal(self) -> Tensors:
        """The tensors that stay with a client, with their values in a new model."""
        model = self.build_model(Key(0))
        names = batch_norm_tensors(model)
        return {name: t for name, t in model.state_dict().items() if name in names}

    def personal_weights(self, model: Tensors, state: Tensors) -> Tensors:
        return {**model, **state}

    @property
    def evaluation(self) -> Phase:
        return Evaluate(self)
