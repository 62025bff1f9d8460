"""Evaluation of personal models by their clients, for methods that have such models."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from fedaf.errors import Refused
from fedaf.methods.averaging import MOST_SAMPLES
from fedaf.protocol import Client, Engine, Number, Payload, Task
from fedaf.training.evaluate import predict
from fedaf.training.scores import UNDEFINED, class_accuracies, confusion_matrix, own_accuracy, percent

#: What a client reports of its personal model: its accuracy on the client's test data and on the label distribution of
#: the client's training data, and the number of test samples.
PERSONAL_SCALARS: Mapping[str, Number] = {
    "accuracy": Number(float, 0, 100),
    "own_accuracy": Number(float, UNDEFINED, 100),
    "samples": Number(int, 0, MOST_SAMPLES),
}


def personal_scalars(model: nn.Module, client: Client, task: Task, engine: Engine) -> dict[str, int | float]:
    """Evaluate a client's personal model and return ``PERSONAL_SCALARS``.

    Raises:
        Refused: The client has no test data.
    """
    test = client.shard.test
    if test is None or not len(test):
        raise Refused("this client has no test data of its own", code="FEDAF-METHOD-NO-TEST-DATA")
    predicted = predict(model, test.images, task, engine).argmax(1).cpu()
    by_class = class_accuracies(confusion_matrix(predicted, test.labels, task.num_classes))
    own = own_accuracy(by_class, client.shard.counts)
    accuracies = {"accuracy": percent(predicted == test.labels), "own_accuracy": UNDEFINED if own is None else own}
    return {**accuracies, "samples": len(test)}


def personal_log(replies: Mapping[str, Payload]) -> dict[str, dict[str, Any]]:
    """Return the log entries for the clients' ``PERSONAL_SCALARS``."""
    accuracies, own, samples = (
        {name: reply.scalars[scalar] for name, reply in replies.items()}
        for scalar in ("accuracy", "own_accuracy", "samples")
    )
    own = {name: accuracy for name, accuracy in own.items() if float(accuracy) >= 0}
    return {"personal_accuracy": accuracies, "personal_own_accuracy": own, "personal_samples": samples}
