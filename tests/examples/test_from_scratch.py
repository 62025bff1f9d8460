"""``examples/fedaf_from_scratch.py`` and the package end with the same weights from the same start and draws."""

import ast
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedaf.models.weights import FreshWeights
from fedaf.protocol import Key
from fedaf.runs.experiment import Experiment
from support.examples import EXAMPLES, load, run_script
from support.small import Rounds, small_experiment

scratch = load("fedaf_from_scratch")

ROUNDS = 3
# Large weights of the losses: with the paper's, an error in one of these would hardly change the model.
SETTINGS = scratch.Settings(
    clients=4,
    rounds=ROUNDS,
    width=16,
    ipc=5,
    local_steps=6,
    real_batch=16,
    lambda_loc=0.5,
    temperature=3.0,
    server_epochs=4,
    server_batch=31,  # the last batch has another size
    lambda_glob=0.5,
)
#: The same settings, as the package calls them.
OPTIONS = {
    **{name: getattr(SETTINGS, name) for name in ("ipc", "local_steps", "real_batch", "image_lr", "gamma")},
    **{name: getattr(SETTINGS, name) for name in ("lambda_loc", "lambda_glob", "temperature")},
    **{name: getattr(SETTINGS, name) for name in ("server_epochs", "server_batch", "server_lr")},
    "image_momentum": SETTINGS.momentum,
    "server_momentum": SETTINGS.momentum,
    "init": "mean",
    "init_mean_of": SETTINGS.mean_of,
    "continue_images": True,
}


class DrawsOfThePackage:
    """What the package draws, under the names that the example gives to draws."""

    def __init__(self, experiment: Experiment) -> None:
        self.method, self.key = experiment.method, Key(experiment.config.run.seed)
        self.fresh = FreshWeights(self.method.build_model(Key(0)))

    def generator(self, *name: str | int) -> torch.Generator:
        match name:
            case ("start", client):
                return self._condensing(client, 1).derive("init").torch()
            case ("real", round, client):
                return self._condensing(client, round).derive("draws").torch()
            case ("order", round):
                return self.key.derive("server", round).derive("order").torch()
        raise AssertionError(name)

    def random_network(self, what: str, round: int, step: int) -> Any:
        assert what == "step"
        parameters = self.fresh(self.key.derive("resample", round).derive(step))
        return self._network({**self.method.initial(self.key).model, **parameters})

    def first_network(self) -> Any:
        return self._network(self.method.initial(self.key).model)

    def _condensing(self, client: Any, round: Any) -> Key:
        return self.key.derive("client", f"client-{client}", round, "condense")

    def _network(self, tensors: dict[str, Tensor]) -> Any:
        network = scratch.ConvNet(SETTINGS.width)
        network.load_state_dict(tensors)
        return network


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return small_experiment("fedaf", **OPTIONS)  # digits, four clients, alpha 0.1


@pytest.fixture(scope="module")
def weights(experiment) -> dict[str, Tensor]:
    """The global model of the package after all rounds."""
    rounds = Rounds(experiment)
    for _ in range(ROUNDS):
        assert not rounds.play().failures
    return dict(rounds.server.model)


def from_scratch(experiment: Experiment, settings: Any = SETTINGS) -> dict[str, Tensor]:
    train, test = experiment.dataset.train, experiment.dataset.test
    rng = Key(0).derive("partition").numpy()
    rows = scratch.dirichlet_split(train.labels.numpy(), settings.clients, settings.alpha, rng)
    shards = [(train.images[own], train.labels[own]) for own in rows]
    return dict(scratch.run(settings, shards, (test.images, test.labels), DrawsOfThePackage(experiment)).state_dict())


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    assert found.keys() == expected.keys()
    return max(float((found[name].double() - tensor.double()).abs().max()) for name, tensor in expected.items())


def test_the_weights_are_those_of_the_package(experiment, weights):
    found = from_scratch(experiment)
    for name, tensor in weights.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    "change",
    [
        {"lambda_loc": 0.0},
        {"lambda_glob": 0.0},
        {"temperature": 2.0},
        {"gamma": 0.8},
        {"local_steps": 5},
        {"real_batch": 15},
        {"mean_of": 9},
        {"server_batch": 30},
        {"momentum": 0.8},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_the_method_counts(experiment, weights, change):
    """A part that is wrong by little moves the weights by far more than the tolerance."""
    assert largest_difference(from_scratch(experiment, replace(SETTINGS, **change)), weights) > 1e-3


def test_the_split_is_that_of_the_package(experiment):
    labels = experiment.dataset.train.labels.numpy()
    rows = scratch.dirichlet_split(labels, 4, 0.1, Key(0).derive("partition").numpy())
    expected = list(experiment.partition.rows.values())
    assert len(rows) == len(expected) == 4
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(rows, expected, strict=True))


def test_the_file_is_short_and_stands_alone():
    source = (EXAMPLES / "fedaf_from_scratch.py").read_text()
    assert len(source.splitlines()) < 250
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {name for node in imports for name in [getattr(node, "module", None), *(a.name for a in node.names)]}
    assert not [name for name in modules if name and name.startswith("fedaf")]


def test_the_script_prints_good_accuracies_and_the_same_every_time(tmp_path, monkeypatch, capsys):
    arguments = ("--rounds", "2", "--clients", "3", "--width", "16", "--local_steps", "10", "--server_epochs", "20")
    done = run_script("fedaf_from_scratch.py", *arguments, where=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["round 1", "round 2"]
    assert float(lines[-1].split()[-1].rstrip("%")) > 80
    monkeypatch.setattr("sys.argv", ["fedaf_from_scratch.py", *arguments])
    scratch.main()
    assert capsys.readouterr().out == done.stdout


@pytest.mark.parametrize(("option", "value"), [("--clients", "100"), ("--ipc", "1000"), ("--no_such", "1")])
def test_what_cannot_work_is_said_in_a_sentence(monkeypatch, capsys, option, value):
    monkeypatch.setattr("sys.argv", ["fedaf_from_scratch.py", option, value])
    with pytest.raises(SystemExit) as exit:
        scratch.main()
    assert option in f"{exit.value} {capsys.readouterr().err}"
