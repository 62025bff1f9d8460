"""Custom models: any small network runs, named on the command line or given from Python."""

import copy
import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import fedaf
from fedaf import config as configuration
from fedaf.condensation.initialisation import initial_images
from fedaf.data.pixels import normalise
from fedaf.engine import EagerEngine
from fedaf.federation.observer import Observer
from fedaf.methods.fedaf import FedAF, FedAFOptions
from fedaf.models.registry import MODELS
from fedaf.models.weights import FreshWeights, initialise
from fedaf.protocol import Architecture, Client, Key, Payload, Shard, Task, UserError
from fedaf.runs import estimate
from fedaf.runs.experiment import prepare
from support import zoo
from support.commandline import SMALL, TINY, assert_one_sentence
from support.errors import raises
from support.small import small_experiment
from support.tiny import AVERAGING

CPU = torch.device("cpu")
TASK = Task("tiny", 1, 8, 8, 3, mean=(0.5,), std=(0.25,))
RUN = {"dataset": "digits", "alpha": 0.3, "clients": 3, "rounds": 2, "device": "cpu"}
FEDAF = {"method": "fedaf", "ipc": 5, "local_steps": 3, "real_batch": 8, "server_epochs": 2}
PLUS = {"method": "fedaf-plus", "ipc": 5, "local_steps": 3, "real_batch": 8, "server_steps": 4}
FEDAVG = {"method": "fedavg", "local_epochs": 1, "batch_size": 256}


def final_model(out: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(out / (out / "LATEST").read_text() / "model.safetensors")


def assert_equal(tensors: dict[str, Tensor], others: dict[str, Tensor]) -> None:
    assert tensors.keys() == others.keys()
    assert [name for name in tensors if not torch.equal(tensors[name], others[name])] == []


class StopAfter(Observer):
    """Interrupts a run after the given round, as Ctrl-C does."""

    def __init__(self, round: int) -> None:
        self.last = round

    def round_ended(self, metrics) -> None:
        if metrics["round"] == self.last:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    "method",
    [FEDAF, {**FEDAF, "bn_mode": "batch"}, PLUS, *({**FEDAVG, "method": name} for name in AVERAGING)],
    ids=["fedaf", "batch", "fedaf-plus", *AVERAGING],
)
@pytest.mark.parametrize("name", zoo.ALL)
def test_every_kind_of_network_goes_through_a_whole_run(name, method, tmp_path):
    result = fedaf.run(**RUN, **method, model=f"support.zoo:{name}", out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["failures"] for line in lines] == [{}, {}]
    assert all(torch.isfinite(t).all() for t in result.model.state_dict().values())
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["model"]["name"] == f"support.zoo:{name}"


@pytest.mark.parametrize(
    "method",
    [FEDAF, PLUS, *({**FEDAVG, "method": name} for name in AVERAGING)],
    ids=["fedaf", "fedaf-plus", *AVERAGING],
)
def test_a_run_with_dropout_repeats_and_resumes_to_the_bit(method, tmp_path):
    whole, again, cut = (tmp_path / name for name in ("whole", "again", "cut"))
    torch.manual_seed(1)
    curve = fedaf.run(**RUN, **method, model="support.zoo:dropout", out=whole).curve
    torch.manual_seed(2)
    fedaf.run(**RUN, **method, model="support.zoo:dropout", out=again)
    assert_equal(final_model(whole), final_model(again))
    with pytest.raises(KeyboardInterrupt):
        fedaf.run(**RUN, **method, model="support.zoo:dropout", out=cut, observer=StopAfter(1))
    assert (cut / "LATEST").read_text() == "round-1"
    assert fedaf.resume(cut).curve == curve
    assert_equal(final_model(whole), final_model(cut))


def test_a_run_leaves_the_callers_generator_as_it_was():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fedaf.run(**{**RUN, "rounds": 1}, **FEDAVG, model=zoo.dropout)
    assert torch.equal(torch.rand(3), expected)


def test_an_estimate_of_the_time_leaves_the_callers_generator_as_it_was():
    experiment = custom_experiment(zoo.dropout)
    before = torch.get_rng_state()
    assert estimate.seconds(experiment) > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_given_from_python_is_copied_and_never_changed():
    module = zoo.dropout(1, 8, 10).eval()
    before = copy.deepcopy(module.state_dict())
    result = fedaf.run(**{**RUN, "rounds": 1}, **FEDAVG, model=module)
    assert_equal(module.state_dict(), before)
    assert not module.training
    assert type(result.model) is nn.Sequential
    assert result.figures["model"] == "python:torch.nn.modules.container.Sequential"


def test_a_module_a_factory_and_its_name_give_the_same_run():
    settings = {**RUN, **FEDAVG, "rounds": 1}
    models = ["support.zoo:mlp", zoo.mlp, zoo.mlp(1, 8, 10), zoo.mlp(1, 8, 10).eval()]
    by_name, *others = (fedaf.run(**settings, model=model).model.state_dict() for model in models)
    for other in others:
        assert_equal(by_name, other)


def test_a_factory_may_return_the_same_module_each_time():
    shared = zoo.mlp(1, 8, 10)
    before = copy.deepcopy(shared.state_dict())
    result = fedaf.run(**{**RUN, "rounds": 1}, **FEDAVG, model=lambda *_: shared)
    assert_equal(shared.state_dict(), before)
    assert_equal(
        result.model.state_dict(),
        fedaf.run(**{**RUN, "rounds": 1}, **FEDAVG, model="support.zoo:mlp").model.state_dict(),
    )


def seen_by_a_factory(tmp_path: Path, shape: tuple[int, ...]) -> list:
    rng, seen = np.random.default_rng(0), []
    images = {f"x_{part}": rng.integers(0, 256, (40, *shape), dtype=np.uint8) for part in ("train", "test")}
    np.savez(tmp_path / "data.npz", **images, y_train=np.arange(40) % 4, y_test=np.arange(40) % 4)

    def factory(*arguments):
        seen.append(arguments)
        return zoo.mlp(*arguments)

    settings = {"partition.kind": "iid", "run.device": "cpu"}
    fedaf.run(dataset=f"npz:{tmp_path}/data.npz", clients=2, rounds=1, **FEDAVG, model=factory, settings=settings)
    return seen


@pytest.mark.parametrize(("shape", "arguments"), [((6, 6, 3), (3, 6, 4)), ((5, 7), (1, (5, 7), 4))])
def test_a_factory_is_called_with_channels_size_and_classes(tmp_path, shape, arguments):
    assert set(seen_by_a_factory(tmp_path, shape)) == {arguments}


def custom_experiment(model, **table):
    tables = {"data": {"name": "digits"}, "run": {"device": "cpu"}, "model": {"name": "support.zoo:mlp", **table}}
    if model is not None:
        tables["model"]["name"] = "python:here"
    return prepare(configuration.build(tables), model=model)


def test_weights_are_drawn_from_the_seed_unless_keep_weights_is_set():
    module = zoo.mlp(1, 8, 10)
    fresh = custom_experiment(module).method.initial(Key(3)).model
    assert_equal(fresh, initialise(zoo.mlp(1, 8, 10), Key(3).derive("model")).state_dict())
    assert not torch.equal(fresh["1.weight"], module[1].weight)
    kept = custom_experiment(module, keep_weights=True).method
    kept.build_model(Key(3))[1].weight.data.fill_(0)  # as training changes one network, and no other
    assert_equal(kept.initial(Key(3)).model, module.state_dict())


def test_resampling_draws_fresh_weights_even_with_keep_weights():
    module = zoo.mlp(1, 8, 10)
    method = custom_experiment(module, keep_weights=True).method
    drawn = FreshWeights(method.build_model(Key(3)))(Key(4))
    assert not torch.equal(drawn["1.weight"], module[1].weight)


def test_random_numbers_of_a_factory_follow_from_the_seed():
    torch.manual_seed(1)
    first = custom_experiment(zoo.mlp, keep_weights=True).method.initial(Key(0)).model
    torch.manual_seed(2)
    assert_equal(first, custom_experiment(zoo.mlp, keep_weights=True).method.initial(Key(0)).model)


def test_a_run_with_a_model_from_python_is_resumed_from_python(tmp_path, call):
    out = tmp_path / "run"
    whole = fedaf.run(**RUN, **FEDAVG, model=zoo.dropout)
    with pytest.raises(KeyboardInterrupt):
        fedaf.run(**RUN, **FEDAVG, model=zoo.dropout, out=out, observer=StopAfter(1))
    assert tomllib.loads((out / "config.toml").read_text())["model"]["name"] == f"python:{zoo.__name__}.dropout"
    for arguments in (["run", "--resume", "run"], ["run", "run/config.toml", "--out", "again"]):
        code, _, err = call(*arguments)
        assert_refused(code, err, "FEDAF-MODEL-FROM-PYTHON", [f"'python:{zoo.__name__}.dropout'", "fedaf.resume("])
    with pytest.raises(UserError, match=r"1.weight is \[4\]|0.weight"):
        fedaf.resume(out, model=zoo.mlp)
    assert fedaf.resume(out, model=zoo.dropout).curve == whole.curve


def test_a_model_from_python_for_a_run_with_a_named_model_is_refused(tmp_path):
    fedaf.run(**{**RUN, "rounds": 1}, **FEDAVG, model="support.zoo:mlp", out=tmp_path / "run")
    with raises("FEDAF-MODEL-CONFLICT") as error:
        fedaf.resume(tmp_path / "run", model=zoo.mlp)
    assert "'support.zoo:mlp'" in str(error.value)
    with raises("FEDAF-MODEL-CONFLICT") as error:
        fedaf.run(**RUN, model=zoo.mlp, settings={"model.name": "convnet"})
    assert "'convnet'" in str(error.value)


def test_anything_but_a_name_a_module_or_a_factory_is_refused():
    with raises("FEDAF-MODEL-TYPE"):
        fedaf.run(**RUN, model=3)


FILE = """
from torch import nn
def make(channels, size, classes):
    hidden = nn.Linear(channels * size * size, 5)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(5, classes))
"""


def test_the_command_line_finds_a_factory_in_the_current_folder(tmp_path, call):
    (tmp_path / "mymodels.py").write_text(FILE)
    code, _, err = call("run", *TINY, "--model", "mymodels:make", "--out", "run", "-q")
    assert (code, err) == (0, "")
    assert final_model(tmp_path / "run")["3.weight"].shape == (10, 5)
    assert call("run", "--resume", "run", "-q")[0] == 0


def test_an_installed_package_can_add_a_model(monkeypatch):
    point = EntryPoint("packaged", "support.zoo:mlp", MODELS.group)
    monkeypatch.setitem(vars(MODELS), "plugins", {"packaged": point})
    named, packaged = (
        fedaf.run(**{**RUN, "rounds": 1}, **FEDAVG, model=name).model.state_dict()
        for name in ("support.zoo:mlp", "packaged")
    )
    assert_equal(named, packaged)


BAD_MODELS = {
    "no such module": ("no_such_module:make", "FEDAF-CUSTOM-LOAD", ["no_such_module", "module:factory"]),
    "no such factory": ("bad_models:build", "FEDAF-CUSTOM-LOAD", ["bad_models:build", "module:factory"]),
    "a module that raises": ("raising_module:make", "FEDAF-CUSTOM-LOAD", ["ZeroDivisionError", "module:factory"]),
    "not callable": ("bad_models:number", "FEDAF-MODEL-TYPE", ["bad_models:number"]),
    "a factory that raises": ("bad_models:raises", "FEDAF-MODEL-FACTORY", ["RuntimeError: no such luck", "(1, 8, 10)"]),
    "a factory with other arguments": ("bad_models:none", "FEDAF-MODEL-FACTORY", ["TypeError", "num_classes)"]),
    "a factory of something else": ("bad_models:text", "FEDAF-MODEL-FACTORY", ["str", "nn.Module"]),
    "a name from Python": ("python:zoo.mlp", "FEDAF-MODEL-FROM-PYTHON", ["'python:zoo.mlp'"]),
    "an unknown name": ("convnett", "FEDAF-MODEL-UNKNOWN", ["'convnett'", "'convnet'", "module:factory"]),
}


def assert_refused(code: int, err: str, error: str, words: list[str]) -> None:
    assert_one_sentence(code, err, [f"[{error}]", *words])


@pytest.mark.parametrize(("name", "error", "words"), BAD_MODELS.values(), ids=BAD_MODELS)
def test_a_model_that_cannot_be_built_is_one_sentence(call, tmp_path, name, error, words):
    (tmp_path / "raising_module.py").write_text("1 / 0\n")
    (tmp_path / "bad_models.py").write_text(
        "number = 3\ndef raises(*_):\n    raise RuntimeError('no such luck')\ndef none(): ...\n"
        "def text(*_):\n    return 'network'\n"
    )
    code, _, err = call("run", *SMALL, "--model", name)
    assert_refused(code, err, error, words)


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_keep_weights_is_refused_for_built_in_models(call, name):
    code, _, err = call("run", *SMALL, "--model", name, "--set", "model.keep_weights=true")
    assert_refused(code, err, "FEDAF-MODEL-KEEP-WEIGHTS", ["model.keep_weights", name])


class ThreeLinears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.third(torch.tanh(self.second(torch.tanh(self.first(images.flatten(1))))))
        return logits


@pytest.mark.parametrize("classifier", ["second", "third", None])
def test_the_features_that_fedaf_matches_are_the_input_of_the_classifier(classifier):
    """All real images of a class are equal, so the loss of the first step has a closed form."""
    options = FedAFOptions(ipc=2, local_steps=1, gamma=1.0, init="noise", cdc=False, real_batch=4)
    method = FedAF(options, TASK, Architecture(lambda key: initialise(ThreeLinears(), key), classifier))
    real = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8, generator=Key(1).torch())
    shard = Shard(real.repeat_interleave(4, 0), torch.arange(3).repeat_interleave(4), 3)
    model = method.build_model(Key(2)).requires_grad_(False)
    client = Client("client-0", shard, Key(5), scratch=model.state_dict())
    ask = Payload({"classes": torch.arange(3), "v": torch.zeros(3, 3)}, {"resample_key": 1})
    outcome = method.phase("condense").work_one(ask, client, EagerEngine(CPU))

    def features(images: Tensor) -> Tensor:
        first = torch.tanh(model.first(images.flatten(1)))
        return first if classifier == "second" else torch.tanh(model.second(first))

    condensed, _ = initial_images(shard, [0, 1, 2], options, TASK, client.key.derive("init"))
    gaps = features(normalise(real, TASK.mean, TASK.std)) - torch.stack([features(i).mean(0) for i in condensed])
    assert outcome.reply.scalars["loss_dm"] == pytest.approx(float(gaps.square().sum(1).mean()), rel=1e-4)


def test_built_in_networks_are_channels_last_and_custom_ones_keep_their_layout():
    convolution = small_experiment("fedavg").method.build_model(Key(0)).features[4].weight
    assert convolution.is_contiguous(memory_format=torch.channels_last)
    assert not convolution.is_contiguous()
    model = custom_experiment(lambda *given: nn.Sequential(nn.Conv2d(1, 4, 3), zoo.plain_convnet(4, 6, given[2])))
    assert all(p.is_contiguous() for p in model.method.build_model(Key(0)).parameters())
