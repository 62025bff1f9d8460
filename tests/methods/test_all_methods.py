"""All methods learn on digits, at two strengths of label skew.

Measured with these settings, best of five rounds, the range over seeds 0 to 3 (per cent):

| | alpha 0.02 | alpha 0.1 |
|---|---|---|
| one round of fedavg | 10.0 to 13.4 | 10.0 to 10.3 |
| fedaf | 78.0 to 97.2 | 95.0 to 98.6 |
| fedaf-plus | 97.5 to 98.6 | 96.4 to 97.5 |
| feddm | 54.3 to 79.1 | 84.4 to 91.4 |
| fedavg | 25.6 to 35.4 | 37.6 to 63.2 |
| fedprox | 25.6 to 35.7 | 37.3 to 63.2 |
| fedbn | 22.8 to 42.9 | 44.3 to 50.1 |
| moon | 22.8 to 31.5 | 37.9 to 61.0 |
| feddyn | 29.0 to 56.5 | 67.1 to 79.7 |
| fedgen | 30.9 to 56.0 | 57.7 to 76.9 |
| scaffold (seed 1) | 27.9 | 48.2 |
| fednova (seed 1) | 48.2 | 70.5 |
| fedavgm (seed 1) | 22.8 | 51.0 |
| fedadam (seed 1) | 32.6 | 44.0 |
| fedyogi (seed 1) | 32.3 | 44.0 |

Of one seed, the least any of the first nine gains on one round of FedAvg is 9.4 at alpha 0.02 and 27.3 at 0.1; FedAF
leads FedDM by 18.1 at least at 0.02. The tests run seed 1, where FedAF leads FedDM by 19.2, and FedAF+ does by 22.6.
"""

from functools import cache

import pytest

import fedaf
from fedaf.methods.registry import FEDERATED

SHORT = {"local_epochs": 4}
SHORT_CONDENSING = {"local_steps": 20, "server_epochs": 12}
SHORT_PLUS = {"local_steps": 20, "server_steps": 150}
CONDENSING = {"fedaf": SHORT_CONDENSING, "fedaf-plus": SHORT_PLUS, "feddm": SHORT_CONDENSING}


@cache
def curve(method: str, alpha: float) -> list[float]:
    options = CONDENSING.get(method, SHORT)
    small = {"model.width": 16, "run.device": "cpu"}
    return fedaf.run(method=method, alpha=alpha, rounds=5, seed=1, settings=small, **options).curve


@pytest.mark.parametrize("alpha", [0.02, pytest.param(0.1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", FEDERATED)
def test_five_rounds_are_far_better_than_one_of_fedavg(method, alpha):
    one_round = curve("fedavg", alpha)[0]
    assert len(curve(method, alpha)) == 5
    assert max(curve(method, alpha)) > one_round + (8 if alpha == 0.02 else 20)


def test_where_clients_hold_hardly_a_class_in_common_fedaf_and_fedaf_plus_lead():
    best = {method: max(curve(method, 0.02)) for method in FEDERATED}
    others = max(accuracy for method, accuracy in best.items() if method not in ("fedaf", "fedaf-plus"))
    assert min(best["fedaf"], best["fedaf-plus"]) > others + 5
