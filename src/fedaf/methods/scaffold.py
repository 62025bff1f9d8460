"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (ICML 2020).

Server and clients keep control variates: c_i estimates the gradient of client i, and c is the mean of all c_i. Local
training corrects every gradient by c - c_i, so that clients with different data do not drift apart. Algorithm 1, with
option II for the new control variate:

    y_i  <- y_i - lr (g_i(y_i) + c - c_i)                  in every local step, from y_i = x
    c_i+ = c_i - c + (x - y_i) / (lr ||a||_1)
    x    <- x + global_lr mean_S (y_i - x)
    c    <- c + |S| / N mean_S (c_i+ - c_i)

S are the clients that replied, N is the number of all clients. All means have equal weights. In the paper, which has no
momentum, ||a||_1 is the number of steps K. With momentum, K equal gradients go further than K steps, exactly by the
factor ||a||_1 / K (``step_sum``). Running statistics are averaged as in FedAvg and have no control variates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from pydantic import Field as Option
from torch import Tensor, nn

from fedaf.methods import averaging
from fedaf.methods.averaging import AveragingMethod, AveragingOptions, step_sum, updated, weighted_average
from fedaf.protocol import Client, Engine, Payload, Schema, ServerState, Tensors, like
from fedaf.protocol.payload import prefixed, select
from fedaf.training.fit import Loss, cross_entropy

_CONTROL = "control/"  # before the names of control variates in messages


@dataclass(frozen=True)
class ScaffoldMemory:
    """What the server keeps: c, by parameter; empty is zero."""

    control: Tensors = field(default_factory=dict)


class ScaffoldOptions(AveragingOptions):
    """Options of SCAFFOLD."""

    global_lr: float = Option(1.0, gt=0, description="learning rate of the server's step")


def correction(model: nn.Module, linear: Tensors) -> Tensor:
    """Return <y, c - c_i> over the parameters in ``linear``, which is c - c_i and the gradient of this term."""
    return torch.stack([(p * linear[name]).sum() for name, p in model.named_parameters() if name in linear]).sum()


class Fit(averaging.Fit):
    """Down: x and c. Up: y_i and c_i+ - c_i. The client keeps c_i+."""

    loss_names = ("ce", "control")
    signed = ("control",)

    def ask(self, server: ServerState, client_id: str) -> Payload:
        plain = super().ask(server, client_id)
        return replace(plain, tensors={**plain.tensors, **prefixed(_CONTROL, server.memory.control)})

    def weights(self, ask: Payload) -> Tensors:
        return {name: t for name, t in ask.tensors.items() if not name.startswith(_CONTROL)}

    def loss(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Loss:
        """Return cross-entropy and a linear term, whose gradient is c - c_i."""
        shared, own, ce = select(ask.tensors, _CONTROL), client.state, cross_entropy(model)
        linear = {
            name: torch.zeros_like(p).add_(_of(shared, name, p)).sub_(_of(own, name, p))
            for name, p in model.named_parameters()
            if p.requires_grad
        }
        return lambda images, labels: {**ce(images, labels), "control": correction(model, linear)}

    def keep(self, model: nn.Module, ask: Payload, client: Client) -> Tensors:
        """Return c_i+."""
        change = self._change(model, ask, client)
        return {name: _of(client.state, name, change[name]) + change[name] for name in change}

    def extra(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Payload:
        """Return c_i+ - c_i."""
        return Payload(prefixed(_CONTROL, self._change(model, ask, client)))

    def extra_schema(self, ask: Payload) -> Schema:
        parameters = {name: ask.tensors[name] for name in self.method.trainable}
        return Schema(like(prefixed(_CONTROL, parameters)))

    def _change(self, model: nn.Module, ask: Payload, client: Client) -> dict[str, Tensor]:
        """Return c_i+ - c_i = (x - y_i) / (lr ||a||_1) - c, or zero for a client without a single step."""
        trained, shared = model.state_dict(), select(ask.tensors, _CONTROL)
        start = {name: ask.tensors[name].cpu() for name in self.method.trainable}
        scale = self.lr(ask) * step_sum(self.steps(len(client.shard)), self.method.options.momentum)
        if not scale:
            return {name: torch.zeros_like(x) for name, x in start.items()}
        return {name: (x - trained[name].cpu()) / scale - _of(shared, name, x) for name, x in start.items()}

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Step from x towards the mean of y_i, and add the changes of all c_i to c."""
        averaged, names = super().combine(server, replies), self.method.trainable
        equal = dict.fromkeys(replies, 1.0)
        mean = weighted_average({k: {n: r.tensors[n] for n in names} for k, r in replies.items()}, equal)
        change = weighted_average({k: select(r.tensors, _CONTROL) for k, r in replies.items()}, equal)
        update = {name: self.method.options.global_lr * (mean[name].double() - server.model[name]) for name in names}
        share = len(replies) / max(server.clients, len(replies))
        old = server.memory.control
        control = {name: _of(old, name, change[name]) + share * change[name] for name in names}
        model = {**averaged.model, **updated(server.model, update)}
        return replace(averaged, model=model, memory=ScaffoldMemory(control))


def _of(control: Tensors, name: str, parameter: Tensor) -> Tensor:
    """Return a control variate on the device of ``parameter``; one that is not there yet is zero."""
    return control[name].to(parameter.device) if name in control else torch.zeros_like(parameter)


class Scaffold(AveragingMethod):
    """FedAvg whose clients correct their gradients by control variates."""

    Options = ScaffoldOptions
    Memory = ScaffoldMemory
    Fit = Fit
    title = "SCAFFOLD"
