"""FedBN: Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization" (ICLR 2021).

Every parameter and statistic of a BatchNorm layer stays with its client. The rest is averaged with equal weights. So
there is no global model, and a run reports two accuracies: that of the average with averaged BatchNorm layers, which
clients send only for this report, and the mean accuracy of the personal models: on their clients' own test data, and on
their clients' own label distributions.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaf.methods import averaging
from fedaf.methods.averaging import AveragingMethod, weighted_average
from fedaf.methods.personal import PERSONAL_SCALARS, personal_log, personal_scalars
from fedaf.protocol import Client, Engine, Key, Outcome, Payload, Phase, Schema, ServerState, Tensors, like

log = logging.getLogger(__name__)


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
        whole = super().ask(server, client_id)
        return replace(
            whole, tensors={name: t for name, t in whole.tensors.items() if name not in self.method.personal}
        )

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
    samples, its accuracy on the label distribution of the client's training data, and the client's BatchNorm layers,
    which are averaged into the model that the server tests.
    """

    name = "evaluate"

    def schema(self, ask: Payload) -> Schema:
        return Schema(like(self.method.personal), PERSONAL_SCALARS)

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        model = self.method.build_model(client.key)
        self.load(model, ask, client)
        return Outcome(Payload(client.state, personal_scalars(model, client, self.method.task, engine)))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        return self.combine(server, replies).with_log(**personal_log(replies))


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

    def check(self, counts: Mapping[str, Sequence[int]]) -> None:
        super().check(counts)
        if not self.personal:
            log.warning(
                "fedbn: the model has no BatchNorm layer, so no part of it stays with a client: all is averaged"
            )

    def personal_weights(self, model: Tensors, state: Tensors) -> Tensors:
        return {**model, **state}

    @property
    def evaluation(self) -> Phase:
        return Evaluate(self)
