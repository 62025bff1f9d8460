"""The engine and precision of a run, and how its result reports them."""

import logging

import pytest
import torch

import fedaf
from fedaf.engine import EagerEngine, make_engine, resolve_device
from fedaf.engine.precision import resolve_precision
from fedaf.engine.registry import ENGINES
from support.errors import raises
from support.small import SMALL

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_on_a_cpu_the_engine_is_eager_and_exact():
    engine = make_engine("auto", CPU, memory_budget=1000)
    assert type(engine) is EagerEngine
    assert (engine.name, engine.precision, engine.budget) == ("eager", "fp32", 1000)
    calls = []
    step = engine.capture(lambda: calls.append(1))
    step()
    step()
    assert calls == [1, 1]


@pytest.mark.parametrize(
    ("engine", "precision", "code", "named"),
    [
        ("cuda-graphs", "auto", "FEDAF-ENGINE-DEVICE", "'cuda-graphs'"),
        ("compiled", "auto", "FEDAF-ENGINE-DEVICE", "'compiled'"),
        ("fast", "auto", "FEDAF-ENGINE-UNKNOWN", "eager, cuda-graphs"),
        ("support.zoo:mlp", "auto", "FEDAF-ENGINE-TYPE", "'support.zoo:mlp'"),
        ("auto", "bf16", "FEDAF-ENGINE-DEVICE", "'bf16'"),
        ("eager", "tf32", "FEDAF-ENGINE-DEVICE", "'tf32'"),
        ("auto", "fp8", "FEDAF-ENGINE-PRECISION", "auto, fp32, tf32, bf16"),
    ],
)
def test_what_this_device_cannot_do_is_refused(engine, precision, code, named):
    with raises(code) as error:
        make_engine(engine, CPU, precision=precision)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("device", "code"),
    [("tpu", "FEDAF-DEVICE-UNKNOWN"), ("meta", "FEDAF-DEVICE-UNKNOWN"), ("cuda:99", "FEDAF-DEVICE-MISSING")],
)
def test_a_device_that_is_not_there_is_refused(device, code):
    with raises(code) as error:
        resolve_device(device)
    assert repr(device) in str(error.value)


def test_the_old_name_of_an_engine_still_works_with_one_warning(caplog):
    with caplog.at_level(logging.WARNING, "fedaf"):
        assert ENGINES.find("compiled").name == "cuda-graphs"
    assert len(caplog.records) == 1
    assert "'cuda-graphs'" in caplog.text


class Doubling(EagerEngine):
    """A custom engine."""

    name = "doubling"


def test_a_custom_engine_is_found_by_module_and_class(monkeypatch):
    monkeypatch.setattr("support.zoo.Doubling", Doubling, raising=False)
    assert type(make_engine("support.zoo:Doubling", CPU)) is Doubling


def test_on_cuda_the_eager_engine_computes_in_tf32():
    assert resolve_precision("auto", CUDA, prefer_bf16=False) == "tf32"
    assert resolve_precision("fp32", CUDA, prefer_bf16=True) == "fp32"


def test_a_result_names_its_engine_and_precision():
    figures = fedaf.run(method="fedavg", **{**SMALL, "rounds": 1}, local_epochs=1, engine="eager").figures
    assert (figures["engine"], figures["precision"]) == ("eager", "fp32")


def test_the_command_line_refuses_an_engine_that_is_not_there(call):
    code, _, err = call("run", "--dataset", "digits", "--device", "cpu", "--engine", "compiled")
    assert code == 2
    assert "[FEDAF-ENGINE-DEVICE]" in err
    code, _, err = call("run", "--dataset", "digits", "--engine", "warp")
    assert code == 2
    assert "'warp'" in err
