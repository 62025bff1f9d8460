"""What a run with differential privacy promises, for ``result.json`` and for people."""

from pathlib import Path
from typing import Any

from fedaf.privacy.accountant import Budget, epsilon_of
from fedaf.privacy.ledger_file import LEDGER, read_entries, spent_mu
from fedaf.privacy.options import PrivacyOptions
from fedaf.privacy.release import LATTICE

NOT_PRIVATE = "NOT PRIVATE: the noise of this run comes from privacy.simulate_seed"

#: What the guarantee does not cover.
OUTSIDE = (
    "a person with several images, or with images at several sites",
    "which sites take part in a run, and when",
    "the server's test data, data.validation and data.selection images, and the accuracy measured on them",
    "the choice of hyper-parameters and of the best round, if they were chosen on private data",
    "timing, and the size of files other than the replies",
    "the run's files that stay at the sites: partition.json of a run in one process, state, logs",
)


def guarantee(privacy: PrivacyOptions, ledgers: Path | None = None) -> dict[str, Any]:
    """Return the guarantee of a run with all parameters of its mechanism.

    Args:
        privacy: The options of the run.
        ledgers: Folder of the clients' ledgers, in one process: what each client has spent over all runs is added.
    """
    budget = Budget.of(privacy)
    simulated = privacy.simulate_seed is not None
    stated: dict[str, Any] = {
        "unit": "one image of one client",
        "neighbours": "add or remove one image",
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "mu": budget.mu,
        "replace_one_epsilon": budget.replace_one_epsilon,
        "accountant": "Gaussian differential privacy, closed form",
        "releases": privacy.releases,
        "networks": privacy.networks,
        "noise_multipliers": {
            "sums": budget.sums_noise,
            "counts": budget.counts_noise,
            "knowledge": budget.knowledge_noise,
        },
        "shares": {
            "features": privacy.feature_share,
            "counts": privacy.count_share,
            "knowledge": privacy.knowledge_share,
        },
        "clip_norm": privacy.networks**0.5,
        "lattice_step": 1 / LATTICE,
        "noise_source": "a seed" if simulated else "operating system",
        "simulated": simulated,
        "outside_guarantee": list(OUTSIDE),
    }
    if simulated:
        stated["warning"] = NOT_PRIVATE
    if ledgers is not None:
        stated["spent_epsilon"] = {
            file.parent.name: epsilon_of(spent_mu(read_entries(file.parent)), privacy.delta)
            for file in sorted(ledgers.glob(f"*/{LEDGER}"))
        }
    return stated
