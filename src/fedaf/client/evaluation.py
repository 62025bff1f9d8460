"""Evaluation on the clients' test data, for servers that have no test data."""

from collections.abc import Mapping

from fedaf.methods.averaging import MOST_SAMPLES
from fedaf.protocol import Client, Engine, Method, Number, Outcome, Payload, Phase, Schema, ServerState
from fedaf.training.evaluate import predict
from fedaf.training.scores import UNDEFINED, mean_cross_entropy, percent


class Evaluate(Phase):
    """Down: the model. Up: its accuracy and loss on the client's test data, and the number of test samples (0: none).

    A confusion matrix would give more metrics, but it would tell the server how many test samples of each class the
    client holds.
    """

    name = "evaluate"

    def __init__(self, method: Method) -> None:
        self.method = method

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload(server.model)

    def schema(self, ask: Payload) -> Schema:
        of_model = {"accuracy": Number(float, 0, 100), "loss": Number(float, UNDEFINED)}
        return Schema(scalars={**of_model, "samples": Number(int, 0, MOST_SAMPLES)})

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        test = client.shard.test
        if test is None or not len(test) or self.method.privacy is not None:  # private accuracy stays at home
            return Outcome(Payload(scalars={"accuracy": 0.0, "loss": UNDEFINED, "samples": 0}))
        model = self.method.build_model(client.key)
        model.load_state_dict(ask.tensors)
        logits = predict(model, test.images, self.method.task, engine)
        correct, loss = logits.argmax(1).cpu() == test.labels, mean_cross_entropy(logits.cpu(), test.labels)
        scalars = {"accuracy": percent(correct), "loss": UNDEFINED if loss is None else loss, "samples": len(test)}
        return Outcome(Payload(scalars=scalars))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        tested = {client: reply.scalars for client, reply in replies.items() if reply.scalars["samples"]}
        if not tested:
            return server
        accuracies, losses, samples = (
            {client: float(scalars[name]) for client, scalars in tested.items()}
            for name in ("accuracy", "loss", "samples")
        )
        loss = None if min(losses.values()) < 0 else pooled(losses, samples)
        return server.with_log(accuracy=pooled(accuracies, samples), loss=loss, accuracy_by_client=accuracies)


def pooled(means: Mapping[str, float], samples: Mapping[str, float]) -> float | None:
    """Return the mean over the test samples of all clients together, from each client's mean.

    Each client counts by its number of test samples, so of accuracies this is the accuracy on the union of their test
    sets. It is what a run reports as ``accuracy`` when the server has no test data.

    Args:
        means: Accuracy or loss by client.
        samples: Number of test samples by client.

    Returns:
        The mean, or ``None`` if there are no test samples.
    """
    total = sum(samples.values())
    return sum(means[client] * count for client, count in samples.items()) / total if total else None


def phase_named(method: Method, name: str) -> Phase:
    """Return the phase that a request names: one of the method's, or ``Evaluate`` if the method has no evaluation.

    Raises:
        Refused: There is no phase of this name.
    """
    if name == Evaluate.name and method.evaluation is None:
        return Evaluate(method)
    return method.phase(name)
