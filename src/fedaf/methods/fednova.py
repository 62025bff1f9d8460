"""FedNova: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"
(NeurIPS 2020).

Clients with more samples take more steps, so FedAvg counts them twice: by their weight, and by their larger update.
FedNova divides the update of each client by its number of effective steps ||a_i||_1 before averaging. With
p_i = n_i / n, and with a_i of SGD with momentum (``step_sum``), its update rule is

    d_i     = (x - y_i) / (lr ||a_i||_1)                   the mean gradient of client i
    tau_eff = sum_i p_i ||a_i||_1
    x       <- x - lr tau_eff sum_i p_i d_i

The learning rate cancels. If all clients take the same number of steps, this is FedAvg. A client without a single step
has no d_i and is left out. Running statistics are averaged as in FedAvg.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from fedaf.methods import averaging
from fedaf.methods.averaging import AveragingMethod, samples_of, step_sum, updated
from fedaf.protocol import Payload, ServerState


def normalised_weights(samples: Mapping[str, float], step_sums: Mapping[str, float]) -> dict[str, float]:
    """Return tau_eff p_i / ||a_i||_1 by client: the weight of y_i - x in the server's step.

    Args:
        samples: n_i by client.
        step_sums: ||a_i||_1 by client; a client with 0 is left out.
    """
    active = [client for client, length in step_sums.items() if length]
    total = sum(samples[client] for client in active)
    share = {client: samples[client] / total for client in active} if total else {}
    effective = sum(p * step_sums[client] for client, p in share.items())
    return {client: p * effective / step_sums[client] for client, p in share.items()}


class Fit(averaging.Fit):
    """As FedAvg; the server knows the number of local steps from the number of samples."""

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Average the normalised updates of the clients; average statistics as FedAvg does."""
        averaged, momentum = super().combine(server, replies), self.method.options.momentum
        steps = {client: self.steps(int(reply.scalars["samples"])) for client, reply in replies.items()}
        step_sums = {client: step_sum(count, momentum) for client, count in steps.items()}
        weights = normalised_weights(samples_of(replies), step_sums)
        update = {
            name: sum(
                (w * (replies[k].tensors[name].double() - server.model[name]) for k, w in weights.items()),
                torch.zeros((), dtype=torch.float64),
            )
            for name in self.method.trainable
        }
        return replace(averaged, model={**averaged.model, **updated(server.model, update)})


class FedNova(AveragingMethod):
    """FedAvg with normalised averaging: a client's weight does not grow with the number of its steps."""

    Fit = Fit
    title = "FedNova"
