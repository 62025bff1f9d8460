"""Samples left out of condensation: how many, of which classes of which client, and why."""

import json
from dataclasses import asdict

import pytest

from fedaf import config as configuration
from fedaf.client.left_out import LeftOut, left_out
from fedaf.client.serving import Admission
from fedaf.config.policies import default_policy
from fedaf.methods.registry import METHODS
from fedaf.protocol import Architecture, Task
from fedaf.runs.experiment import prepare
from support.small import SMALL_FEDAF, small_experiment
from support.tiny import CLASSES, make

TASK = Task("tiny", 1, 4, 4, CLASSES, mean=(0.5,), std=(0.25,))
COUNTS = {"a": [100, 7, 0], "b": [4, 12, 30], "c": [0, 40, 50]}


def condensing(name: str = "fedaf", **options):
    found = METHODS.find(name)
    return found(found.Options(**{"local_steps": 10, **options}), TASK, Architecture(lambda key: None))


def limited(method, **limits) -> Admission:
    return Admission(default_policy(**{"max_images_per_sample": 100.0, "min_samples": 1, **limits}), method, "fedaf")


@pytest.mark.parametrize("name", ["fedaf", "feddm"])
def test_a_class_smaller_than_ipc_is_left_out_for_that(name):
    assert left_out(condensing(name, ipc=10), COUNTS) == LeftOut(
        samples=11,
        share=11 / 243,
        by_reason={"method.ipc": 11},
        by_client={"a": {"method.ipc": [1]}, "b": {"method.ipc": [0]}},
    )


def test_a_class_large_enough_for_its_images_may_be_too_small_for_a_mean():
    found = left_out(condensing(ipc=10, min_samples=5, init_mean_of=10), COUNTS)
    assert found.by_reason == {"method.init_mean_of": 7, "method.min_samples": 4}
    assert found.by_client == {"a": {"method.init_mean_of": [1]}, "b": {"method.min_samples": [0]}}
    noise = left_out(condensing(ipc=10, min_samples=5, init="noise"), COUNTS)
    assert noise.by_reason == {"method.min_samples": 4}


def test_what_is_left_out_is_exactly_what_is_not_condensed():
    experiment = small_experiment("fedaf", **SMALL_FEDAF)
    found = experiment.left_out
    for client, counts in experiment.counts.items():
        left = {label for labels in found.by_client.get(client, {}).values() for label in labels}
        condensed = set(experiment.method.condensed_classes(counts))
        assert left | condensed == {label for label, count in enumerate(counts) if count}
        assert not left & condensed
    total = sum(map(sum, experiment.counts.values()))
    assert found.samples == sum(found.by_reason.values()) == round(found.share * total) > 0


def test_limits_of_a_policy_are_reasons_too():
    method = condensing(ipc=10)
    assert left_out(method, COUNTS, limited(method)).by_reason == {"method.ipc": 11}
    found = left_out(method, COUNTS, limited(method, max_images_per_sample=0.5))
    assert found.by_reason == {"policy.max_images_per_sample": 12, "method.ipc": 11}
    assert found.by_client["b"] == {"method.ipc": [0], "policy.max_images_per_sample": [1]}
    found = left_out(method, COUNTS, limited(method, max_total_images_per_sample=0.5))
    assert found.by_reason == {"policy.max_total_images_per_sample": 12, "method.ipc": 11}
    found = left_out(method, {"c": COUNTS["c"]}, limited(method, max_images=19))
    assert (found.by_reason, found.share) == ({"policy.max_images": 90}, 1)
    assert left_out(method, {"c": COUNTS["c"]}, limited(method, max_images=20)).samples == 0


def test_of_a_client_that_refuses_everything_is_left_out():
    method = condensing(ipc=10)
    found = left_out(method, COUNTS, limited(method, min_samples=35))
    assert found.by_reason == {"policy": 46, "method.ipc": 7}
    assert found.by_client["b"] == {"policy": [0, 1, 2]}
    assert "46 of clients whose policy refuses" in found.sentence("fedaf")


def test_methods_that_use_all_samples_leave_nothing_out():
    assert left_out(make("fedavg"), COUNTS) is None


def test_the_line_names_numbers_and_settings():
    found = left_out(condensing(ipc=10), COUNTS)
    assert found.sentence("fedaf") == (
        "fedaf leaves 11 samples (4.5 %) out of condensation: 11 in classes too small for method.ipc."
    )
    assert left_out(condensing(ipc=10), {"c": COUNTS["c"]}).sentence("fedaf") is None


def test_a_run_says_it_once_before_it_starts_and_writes_it(call, tmp_path, caplog):
    flags = ["--dataset", "digits", "--alpha", "0.05", "--preset", "quick", "--rounds", "1", "--device", "cpu"]
    small = ["--ipc", "10", "--local-steps", "1", "--set", "model.width=8", "--set", "method.server_epochs=1"]
    code, out, err = call("run", *flags, *small, "--out", "r")
    assert (code, err) == (0, "")
    experiment = prepare(configuration.build(configuration.read_toml(tmp_path / "r" / "config.toml")))
    line = experiment.left_out.sentence("fedaf")
    assert out.index(line) < out.index("round 1/1")
    assert json.loads((tmp_path / "r" / "result.json").read_text())["left_out"] == asdict(experiment.left_out)
    caplog.clear()
    code, out, _ = call("run", *flags, *small, "--out", "v", "-v")
    assert code == 0
    assert (caplog.messages.count(line), out.count(line)) == (1, 0)
