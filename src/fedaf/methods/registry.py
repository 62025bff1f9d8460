"""Methods by name. A new built-in method is one file and one line here."""

from typing import TYPE_CHECKING

from fedaf.common.registry import Registry, subclass_of

if TYPE_CHECKING:
    from fedaf.protocol import Method


METHODS: "Registry[type[Method]]" = Registry(
    "method",
    "fedaf.methods",
    {
        "fedaf": "fedaf.methods.fedaf:FedAF",
        "fedaf-plus": "fedaf.methods.fedaf_plus:FedAFPlus",
        "feddm": "fedaf.methods.feddm:FedDM",
        "fedavg": "fedaf.methods.fedavg:FedAvg",
        "fedprox": "fedaf.methods.fedprox:FedProx",
        "fedbn": "fedaf.methods.fedbn:FedBN",
        "moon": "fedaf.methods.moon:MOON",
        "feddyn": "fedaf.methods.feddyn:FedDyn",
        "fedgen": "fedaf.methods.fedgen:FedGen",
        "scaffold": "fedaf.methods.scaffold:Scaffold",
        "fednova": "fedaf.methods.fednova:FedNova",
        "fedavgm": "fedaf.methods.fedopt:FedAvgM",
        "fedadam": "fedaf.methods.fedopt:FedAdam",
        "fedyogi": "fedaf.methods.fedopt:FedYogi",
        "pooled": "fedaf.methods.references:Pooled",
        "local": "fedaf.methods.references:Local",
    },
    "module:Class",
    subclass_of("fedaf.protocol:Method", "FEDAF-METHOD-TYPE"),
)

#: Methods that are no federated learning, for comparison only: those whose class sets ``Method.reference``.
REFERENCES = ("pooled", "local")
#: The federated methods that ship with fedaf.
FEDERATED = tuple(name for name in METHODS if name not in REFERENCES)
#: What ``fedaf compare --methods all`` runs: the eight methods of the FedAF paper, and FedAF+.
PAPER_METHODS = ("fedaf", "fedaf-plus", "feddm", "fedavg", "fedprox", "fedbn", "moon", "feddyn", "fedgen")
