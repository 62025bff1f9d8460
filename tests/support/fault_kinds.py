"""The kinds of fault one client can have, by phase, and what the server says of each."""

import math
import re
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
    rules: RoundRules = RoundRules()  # noqa: RUF009 - frozen


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


def refused(kind: str, *words: str) -> str:
    """A pattern: these words in this order, then the code."""
    return ".*".join([*map(re.escape, words), rf"\[FEDAF-REPLY-{kind}\]"])


TOO_LARGE = r"\[FEDAF-MESSAGE-SIZE\]|\[FEDAF-REPLY-SHAPE\]"
LATE = r"\[FEDAF-REPLY-LATE\]"
UNREADABLE = r"\[FEDAF-MESSAGE-UNREADABLE\]"
IN_ANY_PHASE = {
    "raises at once": Fault("ZeroDivisionError: a client's own bug", illness={"before": breaks_down}),
    "raises when done": Fault("ZeroDivisionError: a client's own bug", illness={"to_outcome": breaks_down}),
    "late": Fault(LATE, illness={"before": never_ends}, rules=RoundRules(deadline=DEADLINE)),
    "extra tensor": spoilt(lambda tensors, scalars: tensors.update(more=torch.ones(1)), refused("NAMES", "'more'")),
    "extra scalar": scalar("more", 1, refused("NAMES", "'more'")),
    "nothing at all": spoilt(lambda tensors, scalars: (tensors.clear(), scalars.clear()), refused("NAMES", "tensor")),
    "silent": Fault(LATE, damage={"change": lambda data: None}),
    "its reply comes a round late": Fault(LATE, damage={"late": True}),
    "bytes that are no message": Fault(UNREADABLE, damage={"change": lambda data: b"\x80\x04" + data}),
    "a message cut short": Fault(UNREADABLE, damage={"change": lambda data: data[:-1]}),
    "a message too large": Fault(
        r"\d+ .*\d+ .*\[FEDAF-MESSAGE-SIZE\]", damage={"change": lambda data: data + bytes(1 << 21)}
    ),
}
IN_PHASE = {
    "knowledge": {
        "wrong shape": tensor("mean_logits", lambda t: t[:, 1:], refused("SHAPE", "mean_logits", "9", "1", "10")),
        "wrong dtype": tensor(
            "mean_logits", torch.Tensor.double, refused("TYPE", "mean_logits", "torch.float64", "torch.float32")
        ),
        "NaN": tensor("mean_logits", filled(math.nan), refused("NOT-FINITE", "mean_logits")),
        "out of range": tensor("mean_logits", filled(1.1e4), refused("RANGE", "mean_logits", "10000")),
        "no distribution": tensor("soft_labels", lambda t: t / 2, r"soft_labels.*\[FEDAF-"),
        "no such class": tensor("classes", filled(10), refused("RANGE", "classes", "9")),
        "classes out of order": tensor("classes", lambda t: t.flip(0), r"classes.*\[FEDAF-"),
        "more classes than there are": tensor(
            "classes", lambda t: torch.arange(11), refused("SHAPE", "classes", "11", "0")
        ),
        "missing tensor": spoilt(lambda tensors, scalars: tensors.pop("classes"), refused("NAMES", "classes")),
        "huge tensor": tensor("mean_logits", lambda t: torch.zeros(1 << 20), TOO_LARGE),
    },
    "condense": {
        "wrong shape": tensor("images", lambda t: t[..., 1:], refused("SHAPE", "images", "7", "4", "8")),
        "wrong dtype": tensor("images", torch.Tensor.float, refused("TYPE", "images", "torch.float32", "torch.uint8")),
        "too many images": tensor("images", lambda t: torch.cat([t, t], 1), refused("SHAPE", "images", "4", "1", "2")),
        "classes not asked for": tensor("classes", lambda t: t + 1, refused("VALUE", "classes")),
        "missing tensor": spoilt(lambda tensors, scalars: tensors.pop("images"), refused("NAMES", "images")),
        "missing scalar": spoilt(lambda tensors, scalars: scalars.pop("loss_dm"), refused("NAMES", "loss_dm")),
        "NaN": scalar("loss_dm", math.nan, refused("NOT-FINITE", "loss_dm")),
        "out of range": scalar("audit_from_source", 1.5, refused("RANGE", "audit_from_source", "1.5", "0", "1")),
        "huge scalar": scalar("audit_images", 10**400, refused("NOT-FINITE", "audit_images")),
        "true for a number": scalar("held_out_images", True, refused("TYPE", "held_out_images", "bool", "int")),
        "huge tensor": tensor("images", lambda t: torch.zeros(1 << 21, dtype=torch.uint8), TOO_LARGE),
    },
    "fit": {
        "wrong shape": tensor("classifier.weight", lambda t: t[1:], refused("SHAPE", "classifier.weight", "9", "0")),
        "wrong dtype": tensor(
            "classifier.weight", torch.Tensor.half, refused("TYPE", "classifier.weight", "torch.float16")
        ),
        "NaN": tensor("classifier.weight", filled(math.nan), refused("NOT-FINITE", "classifier.weight")),
        "out of range": tensor("classifier.weight", filled(-1.1e6), refused("RANGE", "classifier.weight", "-1e+06")),
        "missing tensor": spoilt(
            lambda tensors, scalars: tensors.pop("classifier.bias"), refused("NAMES", "classifier.bias")
        ),
        "missing scalar": spoilt(lambda tensors, scalars: scalars.pop("samples"), refused("NAMES", "samples")),
        "NaN scalar": scalar("loss_ce", math.nan, refused("NOT-FINITE", "loss_ce")),
        "negative samples": scalar("samples", -1, refused("RANGE", "samples", "-1", "0")),
        "huge scalar": scalar("samples", 10**400, refused("NOT-FINITE", "samples")),
        "huge tensor": tensor("classifier.bias", lambda t: torch.zeros(1 << 20), TOO_LARGE),
    },
    "count": {
        "wrong shape": tensor("noise", lambda t: t[1:], refused("SHAPE", "noise", "2", "0", "3")),
        "NaN": tensor("noise", filled(math.nan), refused("NOT-FINITE", "noise")),
        "missing scalar": spoilt(lambda tensors, scalars: scalars.pop("rounds"), refused("NAMES", "rounds")),
        "out of range": scalar("rounds", -1, refused("RANGE", "rounds", "-1", "0", "inf")),
    },
}


def fault_of(phase: str, kind: str) -> Fault:
    return {**IN_ANY_PHASE, **IN_PHASE[phase]}[kind]
