"""Over a real network, methods give the same numbers as in one process, bit for bit.

See also FedAvg with failing clients (test_trouble.py), and FedDyn with a killed server (test_resume.py).
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.network.comparison import assert_as_in_one_process, tables, toml
from support.network.loopback import Loopback, loopback
from support.small import SMALL_CONDENSING

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]

METHODS: dict[str, dict[str, Any]] = {
    # 10 steps are the fewest that the default policy allows
    **{name: {**SMALL_CONDENSING[name], "local_steps": 10} for name in ("fedaf", "fedaf-plus")},
    **{name: {"local_epochs": 1} for name in ("fedavg", "feddyn", "fedbn", "scaffold")},
    "fedadam": {"local_epochs": 1, "lr_schedule": "cosine", "weight_decay": 0.01},
}


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Iterator[Loopback]:
    with loopback(tmp_path_factory.mktemp("network"), {f"client-{k}": {} for k in range(3)}) as network:
        yield network
        for program in ("flower-superlink", "flower-supernode", "flwr-serverapp", "flwr-clientapp"):
            assert any(program in line for line in network.watched("watched")), program


@pytest.mark.parametrize("method", METHODS)
def test_two_rounds_are_those_of_one_process(method, network):
    given, out = tables(method, rounds=2, **METHODS[method]), network.folder / method
    network.finish(toml(given), out)
    assert_as_in_one_process(given, out, network)
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [m["failures"] for m in metrics] == [{}, {}]
    for phase, overhead in metrics[-1]["overhead"].items():
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in overhead.items() if name != "all")
        print(f"{method}, {phase}: {overhead['all']:.2f} s beside work ({parts})")
        assert 0 < overhead["all"] < 60
