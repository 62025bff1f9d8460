"""References to judge federated methods by: all data in one place, and every client alone.

Neither is a federated method. ``pooled`` is what federated learning forgoes: raw data leave the clients. ``local`` is
what a client can reach without taking part. Both train exactly as FedAvg's clients do, so a round is the same number of
passes over the data. They run in one process only.
"""

from collections.abc import Mapping
from statistics import fmean

from torch import nn

from fedaf.methods import averaging
from fedaf.methods.averaging import AveragingMethod
from fedaf.methods.personal import PERSONAL_SCALARS, personal_log, personal_scalars
from fedaf.protocol import Client, Engine, Outcome, Payload, Phase, Schema, ServerState, Tensors


class Pooled(AveragingMethod):
    """Central training: one client has the data of all. Equal to FedAvg with a single client."""

    title = "Pooled data"
    reference = True
    pools = True


class FitAlone(averaging.Fit):
    """Continue to train the client's own model; only the first one starts from the initial model of the run.

    Up: the number of samples and the loss, for the log.
    """

    def weights(self, ask: Payload) -> Tensors:
        return {}

    def load(self, model: nn.Module, ask: Payload, client: Client) -> None:
        model.load_state_dict(client.state or ask.tensors)

    def keep(self, model: nn.Module, ask: Payload, client: Client) -> Tensors:
        return model.state_dict()

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Leave the server's model as it is: nothing is shared."""
        return server


class EvaluateAlone(Phase):
    """Evaluate each client's model. Up: its accuracies and the number of test samples."""

    name = "evaluate"

    def __init__(self, method: "Local") -> None:
        self.method = method

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload()

    def schema(self, ask: Payload) -> Schema:
        return Schema(scalars=PERSONAL_SCALARS)

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        model = self.method.build_model(client.key)
        model.load_state_dict(client.state)
        return Outcome(Payload(scalars=personal_scalars(model, client, self.method.task, engine)))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        log = personal_log(replies)
        return server.with_log(accuracy=fmean(log["personal_accuracy"].values()), **log)


class Local(AveragingMethod):
    """Every client alone: each trains a model of its own, and nothing is shared.

    Its accuracy is the mean over clients of each client's model on the client's test data: the test split of its
    domains, or the whole test split.
    """

    Fit = FitAlone
    title = "Local training"
    reference = True
    has_global_model = False

    @property
    def evaluation(self) -> Phase:
        return EvaluateAlone(self)

    def personal_weights(self, model: Tensors, state: Tensors) -> Tensors:
        return state
