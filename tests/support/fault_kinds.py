"""The kinds of fault one client can have, by phase, and what the server says of each."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from fedaf.federation.rounds import RoundRules
from fedaf.protocol import Engine, Outcome, Payload

DEADLINE = 1.0  # seconds: many times what a healthy client takes in these tests


@dataclass(frozen=True)
class Fault:
    """One way to fail, and what the server says of it. ``illness`` is of the client's work, ``damage`` of the wire."""

    reason: str
    illness: dict[str, Callable] | None = None
    damage: dict[str, object] | None = None
    terms: RoundRules = RoundRules()  # noqa: RUF009 - frozen


def spoilt(change: Callable[[dict, dict], None], reason: str) -> Fault:
    """The client works as it should, and replies with something else."""

    def to_outcome(outcome: Outcome) -> Outcome:
        tensors = {name: t.clone() for name, t in outcome.reply.tensors.items()}
        scalars = dict(outcome.reply.scalars)
        change(tensors, scalars)
        return replace(outcome, reply=Payload(tensors, scalars))

    return Fault(reason, illness={"to_outcome": to_outcome})


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor], reason: str) -> Fault:
    return spoilt(lambda tensors, scalars: tensors.update({name: change(tensors[name])}), reason)


def scalar(name: str, value: object, reason: str) -> Fault:
    return spoilt(lambda tensors, scalars: scalars.update({name: value}), reason)


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """One value among the honest ones."""

    def change(honest: torch.Tensor) -> torch.Tensor:
        honest.view(-1)[-1] = value
        return honest

    return change


def breaks_down(*_: object) -> None:
    raise ZeroDivisionError("a client's own bug")


def never_ends(engine: Engine) -> None:
    while True:
        time.sleep(0.01)
        engine.tick(0, 1)


NO_ANSWER = "no answer before the deadline"
IN_ANY_PHASE = {
    "raises at once": Fault("ZeroDivisionError: a client's own bug", illness={"before": breaks_down}),
    "raises when done": Fault("ZeroDivisionError: a client's own bug", illness={"to_outcome": breaks_down}),
    "late": Fault(NO_ANSWER, illness={"before": never_ends}, terms=RoundRules(deadline=DEADLINE)),
    "extra tensor": spoilt(
        lambda tensors, scalars: tensors.update(more=torch.ones(1)), "the tensor 'more' was not asked for"
    ),
    "extra scalar": scalar("more", 1, "the scalar 'more' was not asked for"),
    "nothing at all": spoilt(lambda tensors, scalars: (tensors.clear(), scalars.clear()), r"the tensor \S+ is missing"),
    "silent": Fault(NO_ANSWER, damage={"change": lambda data: None}),
    "its reply comes a round late": Fault(NO_ANSWER, damage={"late": True}),
    "bytes that are no message": Fault("cannot be read", damage={"change": lambda data: b"\x80\x04" + data}),
    "a message cut short": Fault("cannot be read", damage={"change": lambda data: data[:-1]}),
    "a message too large": Fault(
        r"a message of \d+ bytes is over the limit of \d+", damage={"change": lambda data: data + bytes(1 << 21)}
    ),
}
IN_PHASE = {
    "knowledge": {
        "wrong shape": tensor("mean_logits", lambda t: t[:, 1:], "mean_logits has length 9 on axis 1, not 10"),
        "wrong dtype": tensor("mean_logits", torch.Tensor.double, "mean_logits is torch.float64, not torch.float32"),
        "NaN": tensor("mean_logits", filled(math.nan), "mean_logits has values that are not finite"),
        "out of range": tensor("mean_logits", filled(1.1e4), "mean_logits has values above 10000"),
        "no distribution": tensor("soft_labels", lambda t: t / 2, "soft_labels must have rows that sum to 1"),
        "no such class": tensor("classes", filled(10), "classes has values above 9"),
        "classes out of order": tensor("classes", lambda t: t.flip(0), "classes must be in ascending order"),
        "more classes than there are": tensor("classes", lambda t: torch.arange(11), "classes has length 11 on axis 0"),
        "missing tensor": spoilt(lambda tensors, scalars: tensors.pop("classes"), "the tensor classes is missing"),
        "huge tensor": tensor("mean_logits", lambda t: torch.zeros(1 << 20), "over the limit|has 1 dimensions, not 2"),
    },
    "condense": {
        "wrong shape": tensor("images", lambda t: t[..., 1:], "images has length 7 on axis 4, not 8"),
        "wrong dtype": tensor("images", torch.Tensor.float, "images is torch.float32, not torch.uint8"),
        "too many images": tensor("images", lambda t: torch.cat([t, t], 1), "images has length 4 on axis 1, not 2"),
        "classes not asked for": tensor("classes", lambda t: t + 1, "classes is not what was asked for"),
        "missing tensor": spoilt(lambda tensors, scalars: tensors.pop("images"), "the tensor images is missing"),
        "missing scalar": spoilt(lambda tensors, scalars: scalars.pop("loss_dm"), "the scalar loss_dm is missing"),
        "NaN": scalar("loss_dm", math.nan, "loss_dm is not finite"),
        "out of range": scalar("audit_from_source", 1.5, "audit_from_source is 1.5, outside 0 to 1"),
        "huge scalar": scalar("audit_images", 10**400, "audit_images is not finite or too large"),
        "true for a number": scalar("held_out_images", True, "held_out_images is a bool, not a int"),
        "huge tensor": tensor(
            "images", lambda t: torch.zeros(1 << 21, dtype=torch.uint8), "over the limit|has 1 dimensions, not 5"
        ),
    },
    "fit": {
        "wrong shape": tensor("classifier.weight", lambda t: t[1:], r"classifier.weight has length 9 on axis 0"),
        "wrong dtype": tensor("classifier.weight", torch.Tensor.half, r"classifier.weight is torch.float16"),
        "NaN": tensor("classifier.weight", filled(math.nan), r"classifier.weight has values that are not finite"),
        "out of range": tensor("classifier.weight", filled(-1.1e6), r"classifier.weight has values below -1e\+06"),
        "missing tensor": spoilt(
            lambda tensors, scalars: tensors.pop("classifier.bias"), "the tensor classifier.bias is missing"
        ),
        "missing scalar": spoilt(lambda tensors, scalars: scalars.pop("samples"), "the scalar samples is missing"),
        "NaN scalar": scalar("loss_ce", math.nan, "loss_ce is not finite"),
        "negative samples": scalar("samples", -1, "samples is -1, outside 0 to"),
        "huge scalar": scalar("samples", 10**400, "samples is not finite or too large"),
        "huge tensor": tensor("classifier.bias", lambda t: torch.zeros(1 << 20), "over the limit|has length 1048576"),
    },
    "count": {
        "wrong shape": tensor("noise", lambda t: t[1:], "noise has length 2 on axis 0, not 3"),
        "NaN": tensor("noise", filled(math.nan), "noise has values that are not finite"),
        "missing scalar": spoilt(lambda tensors, scalars: scalars.pop("rounds"), "the scalar rounds is missing"),
        "out of range": scalar("rounds", -1, "rounds is -1, outside 0 to inf"),
    },
}


def fault_of(phase: str, kind: str) -> Fault:
    return {**IN_ANY_PHASE, **IN_PHASE[phase]}[kind]
