"""The method in the contract's documentation is a method that runs."""

import inspect

import torch

import fedaf
from fedaf.protocol import Key, contract
from support.small import SMALL


def example() -> str:
    """The code block in the docstring of the contract."""
    _, _, block = inspect.cleandoc(contract.__doc__).partition("::\n")
    return inspect.cleandoc(block)


def test_the_example_in_the_contract_runs_and_learns(tmp_path, monkeypatch):
    (tmp_path / "fedsgd.py").write_text(example())
    monkeypatch.syspath_prepend(tmp_path)
    result = fedaf.run(**{**SMALL, "method": "fedsgd:FedSGD", "alpha": 10, "rounds": 10})
    assert result.last_accuracy > 25  # 10 is chance
    assert all(bool(torch.isfinite(t).all()) for t in result.model.state_dict().values())


def test_the_example_has_the_options_and_phases_that_it_shows():
    names: dict = {}
    exec(example(), names)
    method = names["FedSGD"](names["FedSGDOptions"](), None, contract.Architecture(lambda key: torch.nn.Linear(1, 1)))
    assert method.options.lr == 0.5
    assert [phase.name for phase in method.phases] == ["step"]
    assert set(method.initial(Key(0)).model) == {"weight", "bias"}
