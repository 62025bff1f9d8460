"""A run may start from a state dict in a safetensors file, which must fit and must stay the same."""

import hashlib
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

import fedaf
from fedaf import config as configuration
from fedaf.models.weights import FreshWeights
from fedaf.protocol import Key
from fedaf.runs import network
from fedaf.runs.experiment import Experiment, prepare
from support.commandline import assert_one_sentence
from support.errors import raises

FEDAVG = {"method": {"name": "fedavg", "local_epochs": 1, "batch_size": 256}}
FEDAF = {"method": {"name": "fedaf", "ipc": 5, "local_steps": 2, "real_batch": 8, "server_epochs": 1}}
KEY = Key(0)


def tables(given: dict, **model: object) -> dict:
    run = {"rounds": 1, "device": "cpu"}
    partition = {"clients": 3, "alpha": 100.0}
    return {"run": run, "partition": partition, "model": {"width": 8, "depth": 2, **model}, **given}


def experiment(given: dict, **model: object) -> Experiment:
    return prepare(configuration.build(tables(given, **model)))


@pytest.fixture
def saved(tmp_path) -> tuple[Path, dict[str, Tensor]]:
    """A file with weights that no seed draws, and running statistics other than those of a new model."""
    state = experiment(FEDAVG).method.build_model(Key(77)).state_dict()
    state = {name: (t + 0.25 if t.is_floating_point() else t).contiguous() for name, t in state.items()}
    safetensors.torch.save_file(state, tmp_path / "start.safetensors")
    return tmp_path / "start.safetensors", state


def assert_same(tensors, others) -> None:
    assert tensors.keys() == others.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], others[name])] == []


@pytest.mark.parametrize("given", [FEDAVG, FEDAF, {"method": {"name": "fedgen"}}], ids=["fedavg", "fedaf", "fedgen"])
def test_the_global_model_before_round_one_is_that_of_the_file_with_its_running_statistics(given, saved):
    file, state = saved
    assert_same(experiment(given, weights=str(file)).method.initial(KEY).model, state)


def test_fresh_networks_of_condensation_do_not_come_from_the_file(saved):
    with_file = experiment(FEDAF, weights=str(saved[0])).method
    without = experiment(FEDAF).method
    drawn, expected = (FreshWeights(method.build_model(KEY))(Key(4)) for method in (with_file, without))
    assert_same(drawn, expected)


def test_clients_of_fedbn_begin_with_the_batch_norm_layers_of_the_file(saved):
    file, state = saved
    method = experiment({"method": {"name": "fedbn"}}, weights=str(file)).method
    assert "features.1.running_mean" in method.personal
    assert_same(method.personal, {name: state[name] for name in method.personal})


def test_moon_puts_its_projection_on_the_networks_of_the_file(saved):
    file, state = saved
    method = experiment({"method": {"name": "moon", "projection_dim": 4}}, weights=str(file)).method
    model = method.initial(KEY).model
    assert torch.equal(model["features.0.weight"], state["features.0.weight"])
    assert "classifier.3.weight" in model


def test_a_custom_model_starts_from_the_file(tmp_path):
    make = "support.zoo:mlp"
    state = experiment(FEDAVG, name=make).method.build_model(Key(5)).state_dict()
    safetensors.torch.save_file(state, tmp_path / "start.safetensors")
    method = experiment(FEDAVG, name=make, weights=str(tmp_path / "start.safetensors")).method
    assert_same(method.initial(KEY).model, state)


def test_a_file_without_the_classifier_leaves_it_fresh_and_says_so(saved, caplog):
    file, state = saved
    safetensors.torch.save_file({n: t for n, t in state.items() if not n.startswith("classifier.")}, file)
    started, fresh = (experiment(FEDAVG, **given).method.initial(KEY).model for given in ({"weights": str(file)}, {}))
    assert torch.equal(started["features.0.weight"], state["features.0.weight"])
    assert torch.equal(started["classifier.weight"], fresh["classifier.weight"])
    assert "classifier" in caplog.text


def test_every_tensor_at_fault_is_named_at_once(saved):
    file, state = saved
    changed = dict(state)
    del changed["features.0.bias"], changed["features.4.bias"]
    changed |= {"extra.weight": torch.zeros(2), "features.0.weight": torch.zeros(8, 3, 3, 3)}
    changed["features.1.weight"] = torch.full((8,), torch.nan)
    safetensors.torch.save_file(changed, file)
    with raises("FEDAF-MODEL-WEIGHTS") as error:
        experiment(FEDAVG, weights=str(file))
    for words in ("no features.0.bias, features.4.bias", "extra.weight", "[8, 3, 3, 3] and not [8, 1, 3, 3]", "finite"):
        assert words in str(error.value)
    assert "features.1.weight" in str(error.value)


def test_a_classifier_of_another_number_of_classes_is_said(saved):
    file, state = saved
    safetensors.torch.save_file(
        {**state, "classifier.weight": torch.zeros(7, 32), "classifier.bias": torch.zeros(7)}, file
    )
    with raises("FEDAF-MODEL-WEIGHTS") as error:
        experiment(FEDAVG, weights=str(file))
    assert "for 7 classes and the data have 10" in str(error.value)
    assert "leave classifier.bias, classifier.weight out" in str(error.value)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 a pickle"], ids=["missing", "empty", "pickle"])
def test_something_else_than_a_safetensors_file_is_one_sentence(call, tmp_path, content):
    if content is not None:
        (tmp_path / "model.pt").write_bytes(content)
    code, _, err = call("run", "--method", "fedavg", "--weights", "model.pt")
    assert_one_sentence(code, err, ["[FEDAF-MODEL-WEIGHTS-READ]", "model.pt", "safetensors file"])


def test_keep_weights_and_a_file_exclude_each_other(saved):
    with raises("FEDAF-MODEL-KEEP-WEIGHTS"):
        experiment(FEDAVG, name="support.zoo:mlp", keep_weights=True, weights=str(saved[0]))


def test_a_run_knows_its_file_and_is_resumed_with_no_other(saved, tmp_path):
    file, state = saved
    settings = {"model.width": 8, "model.depth": 2}
    options = {"method": "fedavg", "clients": 3, "alpha": 100.0, "rounds": 1, "device": "cpu", "local_epochs": 1}
    result = fedaf.run(**options, weights=str(file), settings=settings, out=tmp_path / "run")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert configuration.read_toml(tmp_path / "run" / "config.toml")["model"]["weights_sha256"] == digest
    assert fedaf.resume(tmp_path / "run").curve == result.curve
    safetensors.torch.save_file({**state, "classifier.bias": torch.ones(10)}, file)
    with raises("FEDAF-MODEL-WEIGHTS-CHANGED"):
        fedaf.resume(tmp_path / "run")


def test_a_moved_file_is_named_when_a_run_is_resumed(call, saved, tmp_path):
    file, _ = saved
    small = ["--clients", "3", "--alpha", "100", "--rounds", "1", "--device", "cpu", "--set", "method.local_epochs=1"]
    small += ["--set", "model.width=8", "--set", "model.depth=2", "--out", "run"]
    assert call("run", "--method", "fedavg", "--weights", file, *small)[0] == 0
    file.rename(tmp_path / "moved.safetensors")
    code, _, err = call("run", "--resume", "run")
    assert_one_sentence(code, err, ["[FEDAF-MODEL-WEIGHTS-READ]", "start.safetensors"])
    assert call("run", "--resume", "run", "--weights", "moved.safetensors")[0] == 0


def test_over_a_network_only_the_server_reads_the_file(saved):
    file, state = saved
    config = configuration.build(tables(FEDAVG, weights=str(file)))
    site = network.server_site(config)
    assert_same(site.method.initial(KEY).model, state)
    assert site.config.model.weights_sha256
    file.unlink()
    entry, engine = network.assembly.spec_for(config), network.assembly.engine_for(config)
    assert network._method(config, entry, engine).build_model(KEY)


def test_over_a_network_personal_layers_cannot_start_from_a_file(saved):
    config = configuration.build(tables({"method": {"name": "fedbn"}}, weights=str(saved[0])))
    with raises("FEDAF-MODEL-WEIGHTS-PERSONAL"):
        network.server_site(config)
