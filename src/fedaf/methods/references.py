"""References to judge federated methods by: all data in one place, and every client alone.

Neither is a federated method. ``pooled`` is what federated learning forgoes: raw data leave the clients. ``local`` is
what a client can reach without taking part. Both train exactly as FedAvg's clients do, so a round is the same number of
passes over the data. They run in one process only.
"""

from collections.abc import Mapping
from statistics import fmean

from torch import nn

from fedaf.errors import Refused
from fedaf.methods import averaging
from fedaf.methods.averaging import MOST_SAMPLES, AveragingMethod
from fedaf.protocol import Client, Engine, Number, Outcome, Payload, Phase, Schema, ServerState, Tensors
from fedaf.training.evaluate import accuracy


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
    """Test each client's model on the client's test data. Up: the accuracy and the number of test samples."""

    name = "evaluate"

    def __init__(self, method: "Local") -> None:
        self.method = method

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload()

    def schema(self, ask: Payload) -> Schema:
        return Schema(scalars={"accuracy": Number(float, 0, 100), "samples": Number(int, 0, MOST_SAMPLES)})

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        test = client.shard.test
        if test is None or not len(test):
            raise Refused("this client has no test data of its own", code="FEDAF-METHOD-NO-TEST-DATA")
        model = self.method.build_model(client.key)
        model.load_state_dict(client.state)
        percent = accuracy(model, test.images, test.labels, self.method.task, engine)
        return Outcome(Payload(scalars={"accuracy": percent, "samples": len(test)}))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        accuracies = {name: float(reply.scalars["accuracy"]) for name, reply in replies.items()}
        samples = {name: reply.scalars["samples"] for name, reply in replies.items()}
        mean = fmean(accuracies.values())
        return server.with_log(accuracy=mean, personal_accuracy=accuracies, personal_samples=samples)


class Local(AveragingMethod):
    """Every client alone: each trains a model of its own, and nothing is shared.

    Its accuracy is the mean over clients of each client's model on the client's test data: the test split of its
    domains, or the whole test split.
    """

    Fit = FitAlone
    title = "Local training"
    reference = True
    global_model = False

    @property
    def evaluation(self) -> Phase:
        return EvaluateAlone(self)
