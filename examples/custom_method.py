"""Your own method in 40 lines, compared with FedAvg.

    python examples/custom_method.py
    cd examples; fedaf run --method custom_method:ClassMeans --set method.scale=0.5

Clients send, for each class, the sum of the features of their images under a random network that is never trained. Sums
of clients add up to the sums of all data, however the classes are split. The server turns class means into a linear
classifier: an image gets the class with the nearest mean. One round is enough. The model must have `features` and
`classifier`, as the built-in ConvNet has. Sums of few images reveal these images: the method protects no one. Data,
split, transports, checkpoints and reports come from fedaf.
"""

import argparse
from dataclasses import replace

import torch
import torch.nn.functional as F

import fedaf
from fedaf.data.pixels import normalise
from fedaf.protocol import Field, Method, Options, Outcome, Payload, Phase, Schema


class Sums(Phase):
    """Down: the network. Up: the sum of features and the number of samples of each class."""

    name = "sums"

    def __init__(self, method):
        self.method = method

    def ask(self, server, client_id):  # what the server sends
        return Payload(server.model)

    def schema(self, ask):  # what a reply may contain; the server refuses anything else
        sums = Field(torch.float32, tuple(ask.tensors["classifier.weight"].shape))
        return Schema({"sums": sums, "counts": Field(torch.float32, (self.method.task.num_classes,), low=0)})

    @torch.no_grad()
    def work_one(self, ask, client, engine):  # what one client does with its own data
        task, shard = self.method.task, client.shard
        model = self.method.build_model(client.key)
        model.load_state_dict(ask.tensors)
        images = normalise(shard.images.to(engine.device), task.mean, task.std)
        features = model.to(engine.device).eval().features(images).cpu()
        members = F.one_hot(shard.labels, task.num_classes).float()
        return Outcome(Payload({"sums": members.T @ features, "counts": members.sum(0)}))

    def aggregate(self, server, replies):  # what the server does with the replies
        sums, counts = (sum(reply.tensors[name] for reply in replies.values()) for name in ("sums", "counts"))
        means = sums / counts.clamp(min=1).unsqueeze(1)
        # |x - m|^2 = |x|^2 - 2 x.m + |m|^2, and |x|^2 is the same for all classes
        scale = self.method.options.scale
        classifier = {"classifier.weight": 2 * scale * means, "classifier.bias": -scale * means.square().sum(1)}
        server = replace(server, model={**server.model, **classifier})
        return server.with_log(classes_seen=int((counts > 0).sum()))


class ClassMeans(Method):
    title = "Class means"

    class Options(Options):  # the validated [method] table
        scale: float = 1.0  # of the logits; probabilities depend on it, accuracy does not

    @property
    def phases(self):
        return (Sums(self),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    found = fedaf.compare(
        methods=["custom_method:ClassMeans", "fedavg"],
        against="fedavg",
        seeds=list(range(arguments.seeds)),
        dataset="digits",
        alpha=0.05,
        rounds=arguments.rounds,
        local_epochs=5,  # FedAvg has this option; the other method does not
        settings={"model.width": 64},
    )
    print(found)
    for compared in found.differences():
        difference = compared.difference
        print(
            f"{compared.measure.title}: {difference.mean:+.1f} against {compared.against}, {difference.verdict.value}"
        )


if __name__ == "__main__":
    main()
