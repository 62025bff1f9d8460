"""FedAvg with a trimmed mean (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018)."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import Field

from fedaf.methods import averaging
from fedaf.methods.averaging import AveragingMethod, AveragingOptions
from fedaf.protocol import Payload, ServerState


class TrimmedMeanOptions(AveragingOptions):
    """Options of FedAvg, and the share that is trimmed."""

    trim: float = Field(0.1, ge=0, lt=0.5, description="share of the clients that is left out at each end")


class Fit(averaging.Fit):
    """The phase of FedAvg: clients train the global model and send it back."""

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Average each weight over the clients, without the smallest and the largest values."""
        out = int(self.method.options.trim * len(replies))
        model = {}
        for name, before in server.model.items():
            values = torch.stack([reply.tensors[name].double() for reply in replies.values()]).sort(dim=0).values
            model[name] = values[out : len(values) - out].mean(0).to(before.dtype)
        return replace(server, model=model)


class TrimmedMean(AveragingMethod):
    """A method whose global model a minority of wrong clients cannot move far."""

    Options = TrimmedMeanOptions
    Fit = Fit
    title = "Trimmed mean"
