"""Evaluation where the data are: for servers without test data of their own."""

from collections.abc import Mapping

from fedaf.methods.averaging import MOST_SAMPLES
from fedaf.protocol import Client, Engine, Method, Number, Outcome, Payload, Phase, Schema, ServerState
from fedaf.training.evaluate import accuracy


class Evaluate(Phase):
    """Down: the model. Up: its accuracy on the client's own test data, and how many these are; clients that have none
    say so, and do not count."""

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
        told = {client: reply.scalars for client, reply in replies.items() if reply.scalars["samples"]}
        found, samples = ({client: float(by[name]) for client, by in told.items()} for name in ("accuracy", "samples"))
        mean = over_samples(found, samples)
        return server if mean is None else server.with_log(accuracy=mean, accuracy_by_client=found)


def over_samples(found: Mapping[str, float], samples: Mapping[str, float]) -> float | None:
    """The mean accuracy over all test samples, whoever holds them; ``samples`` says how many each client has. Without
    any there is none."""
    total = sum(samples.values())
    return sum(found[client] * count for client, count in samples.items()) / total if total else None


def phase_named(method: Method, name: str) -> Phase:
    """The phase a request names: one of the method's, or the evaluation of a method that has none of its own."""
    if name == Evaluate.name and method.evaluation is None:
        return Evaluate(method)
    return method.phase(name)
