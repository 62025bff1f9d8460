"""The same on a GPU. Skipped where there is none."""

import pytest
import torch

import fedaf
from fedaf.engine import EagerEngine
from small import SMALL, SMALL_FEDAF, OneByOne, Rounds, local, small_experiment

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(autouse=True)
def _exact_convolutions(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize(("method", "options"), [("fedaf", SMALL_FEDAF), ("fedavg", {"local_epochs": 1})])
def test_a_run_on_cuda_ends_without_failures_and_can_be_resumed(method, options, tmp_path):
    settings = {**SMALL, "settings": {"model.width": 16, "run.device": "cuda"}}
    result = fedaf.run(method=method, **settings, **options, out=tmp_path / "run")
    assert result.figures["device"].startswith("cuda")
    assert result.best_accuracy > 15
    again = fedaf.resume(tmp_path / "run")
    assert again.curve == result.curve


def test_on_cuda_all_clients_together_condense_the_same_images_as_one_at_a_time():
    experiment = small_experiment("fedaf", **SMALL_FEDAF)
    engine = EagerEngine(torch.device("cuda"))
    together = Rounds(experiment, local(experiment, engine))
    single = Rounds(experiment, OneByOne(local(experiment, engine)))
    together.play()
    single.play()
    expected = {name: t["pending/images"] for name, t in single.transport.checkpoint().items()}
    for name, tensors in together.transport.checkpoint().items():
        torch.testing.assert_close(tensors["pending/images"], expected[name], rtol=1e-3, atol=1e-3)
