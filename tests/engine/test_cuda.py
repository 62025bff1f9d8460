"""Runs on the eager engine on a GPU. Skipped without a GPU."""

import pytest
import torch

import fedaf
from fedaf.engine import EagerEngine
from fedaf.protocol import Key
from support import zoo
from support.small import SMALL, SMALL_CONDENSING, OneByOne, Rounds, local, small_experiment
from support.tiny import AVERAGING

every_method = pytest.mark.parametrize(
    ("method", "options"),
    [*SMALL_CONDENSING.items(), *((method, {"local_epochs": 1}) for method in AVERAGING)],
)
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(autouse=True)
def _exact_convolutions(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@every_method
def test_a_run_on_cuda_ends_without_failures_and_can_be_resumed(method, options, tmp_path):
    settings = {**SMALL, "settings": {"model.width": 16, "run.device": "cuda"}}
    result = fedaf.run(method=method, **settings, **options, out=tmp_path / "run")
    assert result.figures["device"].startswith("cuda")
    assert result.best_accuracy > 15
    again = fedaf.resume(tmp_path / "run")
    assert again.curve == result.curve


@pytest.mark.parametrize("method", SMALL_CONDENSING)
def test_on_cuda_all_clients_together_condense_the_same_images_as_one_at_a_time(method):
    experiment = small_experiment(method, **SMALL_CONDENSING[method])
    engine = EagerEngine(torch.device("cuda"))
    together = Rounds(experiment, local(experiment, engine))
    single = Rounds(experiment, OneByOne(local(experiment, engine)))
    together.play()
    single.play()
    expected = {name: t["pending/images"] for name, t in single.transport.checkpoint().items()}
    for name, tensors in together.transport.checkpoint().items():
        torch.testing.assert_close(tensors["pending/images"], expected[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", zoo.ALL)
@every_method
def test_custom_models_run_on_cuda_and_repeat(name, method, options):
    settings = {
        **SMALL,
        "rounds": 1,
        "settings": {"run.device": "cuda", "run.engine": "eager", "run.precision": "fp32"},
    }
    torch.cuda.manual_seed(1)
    first = fedaf.run(method=method, **settings, **options, model=f"support.zoo:{name}")
    torch.cuda.manual_seed(2)
    again = fedaf.run(method=method, **settings, **options, model=f"support.zoo:{name}")
    for tensor, same in zip(first.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        torch.testing.assert_close(tensor, same, rtol=1e-3, atol=1e-3)


def test_a_seeded_block_on_cuda_draws_from_the_key_and_restores_the_generator():
    torch.cuda.manual_seed(0)
    expected = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(0)
    with Key(1).seeded("cuda"):
        first = torch.rand(4, device="cuda")
    assert torch.equal(torch.rand(4, device="cuda"), expected)
    with Key(1).seeded("cuda:0"):
        assert torch.equal(torch.rand(4, device="cuda"), first)
