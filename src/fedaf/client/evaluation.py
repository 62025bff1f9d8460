"""Evaluation on the clients' test data, for servers that have no test data."""

from collections.abc import Mapping

from fedaf.methods.averaging import MOST_SAMPLES
from fedaf.protocol import Client, Engine, Method, Number, Outcome, Payload, Phase, Schema, ServerState
from fedaf.training.evaluate import accuracy


class Evaluate(Phase):
    """Down: the model. Up: its accuracy on the client's test data and the number of test samples (0: none)."""

    name = "evaluate"

    def __init__(self, method: Method) -> None:
        self.method = method

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload(server.model)

    def schema(self, ask: Payload) -> Schema:
        return Schema(scalars={"accuracy": Number(float, 0, 100), "samples": Number(int, 0, MOST_SAMPLES)})

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        test = client.shard.test
        if test is None or not len(test):
            return Outcome(Payload(scalars={"accuracy": 0.0, "samples": 0}))
        model = self.method.build_model(client.key)
        model.load_state_dict(ask.tensors)
        found = accuracy(model, test.images, test.labels, self.method.task, engine)
        return Outcome(Payload(scalars={"accuracy": found, "samples": len(test)}))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        tested = {client: reply.scalars for client, reply in replies.items() if reply.scalars["samples"]}
        accuracies = {client: float(scalars["accuracy"]) for client, scalars in tested.items()}
        samples = {client: float(scalars["samples"]) for client, scalars in tested.items()}
        pooled = pooled_accuracy(accuracies, samples)
        return server if pooled is None else server.with_log(accuracy=pooled, accuracy_by_client=accuracies)


def pooled_accuracy(accuracies: Mapping[str, float], samples: Mapping[str, float]) -> float | None:
    """Return the accuracy over the test samples of all clients together.

    Each client counts by its number of test samples, so this is the accuracy on the union of their test sets. It is
    what a run reports as ``accuracy`` when the server has no test data.

    Args:
        accuracies: Accuracy by client.
        samples: Number of test samples by client.

    Returns:
        The accuracy, or ``None`` if there are no test samples.
    """
    total = sum(samples.values())
    return sum(accuracies[client] * count for client, count in samples.items()) / total if total else None


def phase_named(method: Method, name: str) -> Phase:
    """Return the phase that a request names: one of the method's, or ``Evaluate`` if the method has no evaluation.

    Raises:
        Refused: There is no phase of this name.
    """
    if name == Evaluate.name and method.evaluation is None:
        return Evaluate(method)
    return method.phase(name)
