"""Run directories of version 0.1.0 (no events.jsonl, stopped after round 2 of 3).

Those of averaging methods still resume. Condensing methods have another version since, which gives other numbers.
"""

import json
import shutil

import pytest
import torch

from fedaf import config as configuration
from fedaf.federation.events import EventReader
from fedaf.federation.observer import Observer
from fedaf.runs.experiment import continue_run, execute, prepare, reopen
from support import TESTS
from support.errors import raises
from support.small import final_tensors

OLD_RUNS = TESTS / "support" / "old_runs"
AVERAGING = ["fedavg", "fedbn", "feddyn", "fedgen", "fedprox", "moon"]
CONDENSING = ["fedaf", "feddm"]


def test_there_is_an_old_run_of_each_method():
    assert {path.name for path in OLD_RUNS.iterdir()} == {*AVERAGING, *CONDENSING}


@pytest.mark.parametrize("method", CONDENSING)
def test_an_old_run_of_another_version_of_its_method_is_refused_and_left_alone(method, tmp_path):
    out = tmp_path / "old"
    shutil.copytree(OLD_RUNS / method, out)
    before = contents(out)
    with raises("FEDAF-RUN-OTHER-VERSION") as refused:
        continue_run(reopen(out), out, Observer())
    assert "by version 1 of its method" in str(refused.value)
    after = contents(out)
    assert {name: after[name] for name in before} == before


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("method", AVERAGING)
def test_an_old_run_resumes_to_the_result_of_a_new_one(method, tmp_path):
    """Up to rounding errors: other CPUs may differ in the last bits."""
    out = tmp_path / "old"
    shutil.copytree(OLD_RUNS / method, out)
    before = (out / "metrics.jsonl").read_text().splitlines()
    resumed = continue_run(reopen(out), out, Observer())
    config = configuration.build(configuration.read_toml(OLD_RUNS / method / "config.toml"))
    fresh = execute(prepare(config), tmp_path / "new", Observer())

    assert len(before) == 2
    assert resumed.curve == pytest.approx(fresh.curve, abs=1e-3)
    found, expected = final_tensors(out), final_tensors(tmp_path / "new")
    assert found.keys() == expected.keys()
    for name in [name for name in expected if name.startswith("model/")]:
        assert torch.allclose(found[name].float(), expected[name].float(), rtol=0, atol=1e-3), name
    ended = [event["metrics"] for event in EventReader(out).read() if event["event"] == "round_ended"]
    assert [metrics["round"] for metrics in ended] == [1, 2, 3]
    assert ended[:2] == [json.loads(line) for line in before]
