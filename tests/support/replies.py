"""Replies of the built-in methods to tiny requests: honest replies, and the rules of good ones in plain Python.

The rules are those of docs/reference/methods.md, written a second time: nothing here asks a ``Schema``.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fedaf.methods.averaging import AveragingOptions
from fedaf.methods.fedaf import FedAF, FedAFOptions
from fedaf.methods.fedaf_plus import FedAFPlus, FedAFPlusOptions
from fedaf.methods.fedavg import FedAvg
from fedaf.methods.fedbn import FedBN
from fedaf.methods.feddm import FedDM, FedDMOptions
from fedaf.methods.feddyn import FedDyn, FedDynOptions
from fedaf.methods.fedgen import FedGen, FedGenOptions
from fedaf.methods.fednova import FedNova
from fedaf.methods.fedopt import AdaptiveOptions, FedAdam, FedAvgM, FedAvgMOptions, FedYogi
from fedaf.methods.fedprox import FedProx, FedProxOptions
from fedaf.methods.moon import MOON, MOONOptions
from fedaf.methods.scaffold import Scaffold, ScaffoldOptions
from fedaf.protocol import Architecture, Key, Payload, Phase, Schema, ServerState, Task, Tensors
from support.zoo import build

CLASSES, IPC = 4, 2
TASK = Task("tiny", 1, 4, 4, CLASSES, mean=(0.5,), std=(0.25,))
ARCHITECTURE = Architecture(partial(build, "convnet", TASK, depth=2, width=2, norm="batch"))
FEDAF = FedAF(FedAFOptions(ipc=IPC), TASK, ARCHITECTURE)
FEDAF_PLUS = FedAFPlus(FedAFPlusOptions(ipc=IPC), TASK, ARCHITECTURE)
FEDDM = FedDM(FedDMOptions(ipc=IPC), TASK, ARCHITECTURE)
FEDAVG = FedAvg(AveragingOptions(), TASK, ARCHITECTURE)
FEDPROX = FedProx(FedProxOptions(), TASK, ARCHITECTURE)
FEDBN = FedBN(AveragingOptions(), TASK, ARCHITECTURE)
MOON_ = MOON(MOONOptions(), TASK, ARCHITECTURE)
FEDDYN = FedDyn(FedDynOptions(), TASK, ARCHITECTURE)
FEDGEN = FedGen(FedGenOptions(noise_dim=2, hidden_dim=3), TASK, ARCHITECTURE)
SCAFFOLD = Scaffold(ScaffoldOptions(), TASK, ARCHITECTURE)
FEDNOVA = FedNova(AveragingOptions(), TASK, ARCHITECTURE)
FEDOPT = {
    "fedavgm": FedAvgM(FedAvgMOptions(), TASK, ARCHITECTURE),
    "fedadam": FedAdam(AdaptiveOptions(), TASK, ARCHITECTURE),
    "fedyogi": FedYogi(AdaptiveOptions(), TASK, ARCHITECTURE),
}
KNOWLEDGE, CONDENSE = FEDAF.phases
(CONDENSE_ALONE,) = FEDDM.phases
(FIT,) = FEDAVG.phases
SERVER = FEDAVG.initial(Key(0)).next_round(clients=2)
FEDAF_SERVER, FEDDYN_SERVER, FEDGEN_SERVER = (m.initial(Key(0)).next_round(clients=2) for m in (FEDAF, FEDDYN, FEDGEN))
MODEL = SERVER.model
BATCH_NORM = {name: t for name, t in MODEL.items() if name.split(".")[1] in ("1", "5")}  # the second and sixth layers
REST = {name: t for name, t in MODEL.items() if name not in BATCH_NORM}
CONTROL = {f"control/{name}": t for name, t in MODEL.items() if not name.endswith(("mean", "var", "tracked"))}
LABEL_COUNTS = {"label_counts": torch.tensor([3, 0, 9, 0])}
OWNED = torch.tensor([0, 2])
CONDENSE_ASK = Payload({"classes": OWNED, "v": torch.zeros(2, CLASSES)}, {"resample_key": 1})

COUNTS = ("audit_images", "held_out_images", "audit_compared", "held_out_compared", "disclosed_images")
LOSSES = ("loss_dm", "loss_cdc", "gradient_ratio")
PLUS_LOSSES = (*LOSSES, "loss_spread", "loss_distribution")
DECIBELS = ("audit_psnr_mean", "audit_psnr_max", "held_out_psnr_mean", "held_out_psnr_max")
MEASURES_OF_COPIES = ("pixels", "features", "shifts", "tiles", "quarters")
SHARES = (
    *("audit_from_source", "held_out_from_source", "audit_copied"),
    *(f"{who}_correlation_{what}" for who in ("audit", "held_out") for what in ("mean", "max")),
    *(f"audit_{name}_{what}" for name in MEASURES_OF_COPIES for what in ("mean", "min", "copied")),
    *(f"held_out_{name}_{what}" for name in MEASURES_OF_COPIES for what in ("mean", "min", "limit")),
)
RATIO = "disclosed_per_sample_at_most"
MOST_DECIBELS = 10 * math.log10(255**2 * 12) + 1


def a_float(value: object, low: float, high: float = 1e30) -> bool:
    return type(value) in (int, float) and low <= value <= high


def an_int(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def arrays(tensors: Tensors, wanted: Mapping[str, torch.dtype]) -> dict[str, np.ndarray] | None:
    """Return the tensors as arrays if their names and types are those wanted."""
    if {name: t.dtype for name, t in tensors.items()} != dict(wanted):
        return None
    return {name: t.numpy() for name, t in tensors.items()}


def good_knowledge(payload: Payload) -> bool:
    wanted = {"classes": torch.int64, "mean_logits": torch.float32, "soft_labels": torch.float32}
    found = arrays(payload.tensors, wanted)
    if found is None or payload.scalars or found["classes"].ndim != 1:
        return False
    owned = found["classes"].tolist()
    if owned != sorted(set(owned) & set(range(CLASSES))):
        return False
    v, r = found["mean_logits"], found["soft_labels"].astype(np.float64)
    if v.shape != (len(owned), CLASSES) or r.shape != v.shape:
        return False
    inside = (np.abs(v) <= 1e4).all() and ((r >= 0) & (r <= 1)).all()
    return bool(inside) and bool((np.abs(r.sum(1) - 1) < 1e-3).all())


def rounding_decides(payload: Payload) -> bool:
    """Return whether soft labels are so close to the limit that rounding decides."""
    r = payload.tensors.get("soft_labels")
    if r is None or r.dtype != torch.float32 or r.ndim != 2:
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(r.numpy().astype(np.float64).sum(1) - 1)
        return bool((np.abs(off - 1e-3) < 1e-5).any())


def good_condense(payload: Payload) -> bool:
    classes = payload.tensors.get("classes")
    return good_images(payload, LOSSES) and classes is not None and set(classes.tolist()) <= set(OWNED.tolist())


def good_condense_plus(payload: Payload) -> bool:
    classes = payload.tensors.get("classes")
    samples, rest = payload.tensors.get("samples"), {n: t for n, t in payload.tensors.items() if n != "samples"}
    return (
        good_images(Payload(rest, payload.scalars), PLUS_LOSSES)
        and classes is not None
        and set(classes.tolist()) <= set(OWNED.tolist())
        and samples is not None
        and samples.dtype == torch.int64
        and samples.shape == classes.shape
        and all(1 <= count <= 2**40 for count in samples.tolist())
    )


def good_condense_alone(payload: Payload) -> bool:
    return good_images(payload, LOSSES[:1])


def good_images(payload: Payload, losses: tuple[str, ...]) -> bool:
    """Condensed images of some classes in ascending order, with their measurements."""
    found, given = arrays(payload.tensors, {"classes": torch.int64, "images": torch.uint8}), payload.scalars
    if found is None or found["classes"].ndim != 1:
        return False
    owned = found["classes"].tolist()
    return (
        owned == sorted(set(owned) & set(range(CLASSES)))
        and found["images"].shape == (len(owned), IPC, *TASK.image_shape)
        and set(given) == {*losses, *DECIBELS, *SHARES, *COUNTS, RATIO}
        and all(an_int(given[name], 0, 2**32) for name in COUNTS)
        and all(a_float(given[name], 0) for name in (*losses, RATIO))
        and all(a_float(given[name], 0, MOST_DECIBELS) for name in DECIBELS)
        and all(a_float(given[name], 0, 1) for name in SHARES)
    )


def good_model(tensors: Tensors, model: Tensors) -> bool:
    """Tensors that a network like ``model`` may have."""
    found = arrays(tensors, {name: t.dtype for name, t in model.items()})
    if found is None or any(found[name].shape != tuple(t.shape) for name, t in model.items()):
        return False
    for name, values in found.items():
        highest = 1e6 if values.dtype == np.float32 else 2**40 if name == "label_counts" else 2**32
        lowest = 0 if name.endswith(("running_var", "num_batches_tracked", "label_counts")) else -highest
        if not ((values >= lowest) & (values <= highest)).all():
            return False
    return True


def good_fit(
    payload: Payload, model: Tensors = MODEL, losses: tuple[str, ...] = ("ce",), counts: tuple[str, ...] = ("samples",)
) -> bool:
    """A trained model, the number of samples, and losses, of which only linear terms may be negative."""
    given = payload.scalars
    return (
        good_model(payload.tensors, model)
        and set(given) == {*counts, *(f"loss_{name}" for name in losses)}
        and all(an_int(given[name], 0, 2**40) for name in counts)
        and all(a_float(given[f"loss_{name}"], -1e30 if name in ("dyn", "control") else 0) for name in losses)
    )


def good_evaluate(payload: Payload) -> bool:
    given = payload.scalars
    return (
        good_model(payload.tensors, BATCH_NORM)
        and set(given) == {"accuracy", "own_accuracy", "samples"}
        and a_float(given["accuracy"], 0, 100)
        and a_float(given["own_accuracy"], -1, 100)
        and an_int(given["samples"], 0, 2**40)
    )


def good_count(payload: Payload) -> bool:
    return not payload.tensors and set(payload.scalars) == {"samples"} and an_int(payload.scalars["samples"], 0, 2**40)


def knowledge_of(*owned: int) -> Payload:
    v = torch.randn(len(owned), CLASSES, generator=Key(len(owned)).torch())
    classes = torch.tensor(owned, dtype=torch.int64)
    return Payload({"classes": classes, "mean_logits": v, "soft_labels": torch.softmax(v, 1)})


MEASURES = {**dict.fromkeys((*LOSSES, *DECIBELS, *SHARES, RATIO), 0.5), **dict.fromkeys(COUNTS, 4)}
PLUS_MEASURES = {**MEASURES, "loss_spread": 0.5, "loss_distribution": 0.5}
MEASURES_ALONE = {name: value for name, value in MEASURES.items() if name not in LOSSES[1:]}
SAMPLES = torch.tensor([64, 512])
IMAGES = torch.arange(2 * IPC * 16, dtype=torch.uint8).reshape(2, IPC, *TASK.image_shape)


@dataclass(frozen=True)
class Replies:
    """A request, honest replies to it, and a second opinion on which replies are good."""

    phase: Phase
    ask: Payload
    is_good: Callable[[Payload], bool]
    honest: tuple[Payload, ...]
    server: ServerState = SERVER

    @property
    def schema(self) -> Schema:
        return self.phase.schema(self.ask)


def a_fit(
    phase: Phase,
    ask: Payload,
    tensors: Tensors,
    *losses: str,
    server: ServerState = SERVER,
    counts: tuple[str, ...] = ("samples",),
) -> Replies:
    """Replies that are a trained model with losses."""
    honest = Payload(tensors, {**dict.fromkeys(counts, 12), **{f"loss_{name}": 0.25 for name in losses}})
    return Replies(phase, ask, partial(good_fit, model=tensors, losses=losses, counts=counts), (honest,), server)


REPLIES = {
    "fedaf knowledge": Replies(
        KNOWLEDGE, Payload(MODEL), good_knowledge, (knowledge_of(), knowledge_of(1, 3), knowledge_of(0, 1, 2, 3))
    ),
    "fedaf condense": Replies(
        CONDENSE,
        CONDENSE_ASK,
        good_condense,
        tuple(Payload({"classes": OWNED[:owned], "images": IMAGES[:owned]}, MEASURES) for owned in (0, 1, 2)),
        FEDAF_SERVER,
    ),
    "fedaf-plus condense": Replies(
        FEDAF_PLUS.phases[1],
        CONDENSE_ASK,
        good_condense_plus,
        tuple(
            Payload({"classes": OWNED[:n], "images": IMAGES[:n], "samples": SAMPLES[:n]}, PLUS_MEASURES)
            for n in (0, 1, 2)
        ),
        FEDAF_SERVER,
    ),
    "feddm condense": Replies(
        CONDENSE_ALONE,
        Payload(MODEL, {"resample_key": 1, "round": 2}),
        good_condense_alone,
        tuple(Payload({"classes": OWNED[:owned], "images": IMAGES[:owned]}, MEASURES_ALONE) for owned in (0, 1, 2)),
        FEDAF_SERVER,
    ),
    "fedavg fit": a_fit(FIT, Payload(MODEL), MODEL, "ce"),
    "fedprox fit": a_fit(FEDPROX.phases[0], Payload(MODEL), MODEL, "ce", "prox"),
    "fedbn fit": a_fit(FEDBN.phases[0], Payload(REST), REST, "ce"),
    "fedbn evaluate": Replies(
        FEDBN.evaluation,
        Payload(REST),
        good_evaluate,
        (Payload(BATCH_NORM, {"accuracy": 62.5, "own_accuracy": 75.0, "samples": 8}),),
    ),
    "moon fit": a_fit(MOON_.phases[0], Payload(MODEL), MODEL, "ce", "con"),
    "feddyn count": Replies(
        FEDDYN.phases[0], Payload(), good_count, (Payload(scalars={"samples": 12}),), FEDDYN_SERVER
    ),
    "feddyn fit": a_fit(
        FEDDYN.phases[1], Payload(MODEL, {"mean_samples": 9.5}), MODEL, "ce", "dyn", server=FEDDYN_SERVER
    ),
    "fedgen fit": a_fit(
        FEDGEN.phases[0],
        FEDGEN.phases[0].ask(FEDGEN_SERVER, "client-0"),
        {**MODEL, **LABEL_COUNTS},
        *("ce", "generated", "distilled"),
        server=FEDGEN_SERVER,
    ),
    "scaffold fit": a_fit(
        SCAFFOLD.phases[0],
        Payload({**MODEL, **CONTROL}),
        {**MODEL, **CONTROL},
        *("ce", "control"),
        server=SCAFFOLD.initial(Key(0)).next_round(clients=2),
    ),
    "fednova fit": a_fit(FEDNOVA.phases[0], Payload(MODEL), MODEL, "ce"),
    **{
        f"{name} fit": a_fit(
            method.phases[0], Payload(MODEL), MODEL, "ce", server=method.initial(Key(0)).next_round(clients=2)
        )
        for name, method in FEDOPT.items()
    },
}
