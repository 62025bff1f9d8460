"""Which engine and precision a run gets, and what it says of them."""

import pytest
import torch

import fedaf
from fedaf.engine import EagerEngine, make_engine
from fedaf.engine.precision import resolve_precision
from fedaf.protocol import UserError
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
    ("engine", "precision", "sentence"),
    [
        ("compiled", "auto", "engine 'compiled' needs a CUDA device, and this run is on cpu; use auto or eager"),
        ("fast", "auto", "unknown engine 'fast'; allowed is auto, eager, compiled"),
        ("auto", "bf16", "precision 'bf16' needs a CUDA device, and this run is on cpu; use auto or fp32"),
        ("eager", "tf32", "precision 'tf32' needs a CUDA device"),
        ("auto", "fp8", "unknown precision 'fp8'; allowed is auto, fp32, tf32 or bf16"),
    ],
)
def test_what_this_device_cannot_do_is_refused_with_a_way_out(engine, precision, sentence):
    with pytest.raises(UserError, match=sentence):
        make_engine(engine, CPU, precision=precision)


def test_without_the_fast_engine_a_gpu_computes_in_tf32():
    assert resolve_precision("auto", CUDA, fast=False) == "tf32"
    assert resolve_precision("fp32", CUDA, fast=True) == "fp32"


def test_a_result_says_which_engine_and_precision_it_had():
    figures = fedaf.run(method="fedavg", **{**SMALL, "rounds": 1}, local_epochs=1, engine="eager").figures
    assert (figures["engine"], figures["precision"]) == ("eager", "fp32")


def test_the_command_line_refuses_an_engine_that_is_not_there(call):
    code, _, err = call("run", "--dataset", "digits", "--device", "cpu", "--engine", "compiled")
    assert code == 2
    assert "engine 'compiled' needs a CUDA device" in err
    code, _, err = call("run", "--dataset", "digits", "--engine", "warp")
    assert code == 2
    assert "run.engine is 'warp'" in err
