"""The CUDA graph engine against the eager one, on the same draws. Skipped without a GPU."""

import copy
import logging
import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import fedaf
from fedaf.condensation.condenser import Condensation, Objective, condense
from fedaf.condensation.jobs import Capacity, Job
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import Blended, Fresh, Networks, Perturbed
from fedaf.condensation.terms import (
    Term,
    distributions_distance,
    features_and_logits_distance,
    features_distance,
    spreads_distance,
    targets_distance,
)
from fedaf.engine import EagerEngine, make_engine
from fedaf.models.backbone import Backbone
from fedaf.models.statistics import batch_norms, estimate_statistics, reference_images
from fedaf.models.weights import FreshWeights
from fedaf.protocol import DeadlineExceeded, Key, Shard, Task
from fedaf.training.fit import Training, fit
from support import zoo
from support.small import SMALL, SMALL_CONDENSING, SMALL_FEDAF
from support.tiny import AVERAGING
from support.zoo import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

CUDA = torch.device("cuda")
GREY = Task("grey", 1, 8, 8, 10, (0.5,), (0.25,))
TASK = Task("some", 3, 32, 32, 10, (0.5,) * 3, (0.25,) * 3, augment=("flip", "shift", "brightness"))


def engine(name: str, precision: str) -> EagerEngine:
    return make_engine(name, CUDA, precision=precision)


def model_of(task: Task = TASK, name: str = "convnet", **options: object) -> nn.Module:
    model = build(name, task, Key(0), **{"depth": 3, "width": 64, "norm": "batch", **options})
    with torch.no_grad():  # so that running statistics are not those of a fresh network
        model(torch.randn(32, *task.image_shape, generator=Key(1).torch()))
    return model.to(CUDA)


def shard_of(classes: list[int], *, seed: int, task: Task = TASK, each: int = 40) -> Shard:
    labels = torch.tensor(classes).repeat_interleave(each)
    images = torch.randint(0, 256, (len(labels), *task.image_shape), dtype=torch.uint8, generator=Key(seed).torch())
    return Shard(images, labels, task.num_classes)


def gradients(
    chosen: EagerEngine,
    options: CondensationOptions,
    *,
    task: Task = TASK,
    model: nn.Module | None = None,
    step_networks: str = "blended",
    match_logits: bool = False,
    extra_terms: bool = False,
) -> list[Tensor]:
    """Return the gradients of two clients' images in five steps.

    Without momentum the gradient is the velocity; rounding would hide much of it in the images themselves.
    """
    model = model or model_of(task)
    weights, fresh = model.state_dict(), FreshWeights(model)
    backbone = Backbone(model, task, CUDA)
    networks: Networks
    if step_networks == "fresh":
        networks = Fresh(weights, fresh, Key(0), backbone, reference_images(task, Key(1)))
    else:
        networks = {"blended": Blended, "perturbed": Perturbed}[step_networks](weights, fresh, Key(0), 0.9)
    matching = features_and_logits_distance if match_logits else features_distance
    extra = (  # with weights that make them count beside the first term
        Term("spread", spreads_distance, 100.0),
        Term("distribution", distributions_distance, 100.0, directions=True),
    )
    terms = (
        Term("dm", matching, real_logits=match_logits),
        Term("cdc", targets_distance),
        *(extra if extra_terms else ()),
    )
    objective = Objective(backbone, networks, terms, Key(2))
    jobs = []
    for number, classes in enumerate(([0, 3], [1])):
        draws = Key(number).torch()
        images = 1 + 0.5 * torch.randn(len(classes), options.ipc, *task.image_shape, generator=draws)
        targets = torch.randn(len(classes), task.num_classes, generator=draws)
        jobs.append(Job(shard_of(classes, seed=number, task=task), classes, images, Key(number), targets))
    work = Condensation(Capacity.of(jobs), objective, options=options, task=task, engine=chosen)
    work.load(jobs)
    found = []
    for step in range(5):
        work.draw(step)
        work.move()
        found.append(work._velocity.clone().cpu())
    return found


def options_of(**changes: object) -> CondensationOptions:
    plain = {"ipc": 10, "real_batch": 32, "image_momentum": 0.0, "image_lr": 1.0}
    return CondensationOptions.model_validate({**plain, **changes})


def assert_alike(fast: list[Tensor], eager: list[Tensor], *, relative: float, cosine: float) -> None:
    for ours, theirs in zip(fast, eager, strict=True):
        a, b = ours.flatten().double(), theirs.flatten().double()
        assert float((a - b).norm() / b.norm()) <= relative
        assert float(a @ b / a.norm() / b.norm()) >= cosine


CASES = {
    "blended": {},
    "clipped": {"options": {"image_clip": 0.01}},
    # small steps, here and below: batch statistics amplify the rounding of earlier steps
    "batch statistics": {"options": {"bn_mode": "batch", "image_lr": 0.01}},
    "perturbed": {"step_networks": "perturbed"},
    "fresh": {"step_networks": "fresh"},
    "with logits": {"match_logits": True},
    "fedaf-plus": {"options": {"image_lr_decay": True}, "step_networks": "perturbed", "extra_terms": True},
    "extra terms, batch statistics": {"options": {"bn_mode": "batch", "image_lr": 0.01}, "extra_terms": True},
}


#: Bounds in bf16 where rounding matters more: statistics are of the rounded network; differences of close spreads.
COARSE = {"fresh": (0.15, 0.99), "fedaf-plus": (0.15, 0.99)}


def case(name: str) -> dict[str, object]:
    chosen = dict(CASES[name])
    return {"options": options_of(**chosen.pop("options", {})), **chosen}


@pytest.mark.parametrize("name", CASES)
def test_condensation_in_fp32_has_the_gradients_of_the_eager_engine(name):
    fast, eager = (gradients(engine(which, "fp32"), **case(name)) for which in ("cuda-graphs", "eager"))
    assert_alike(fast, eager, relative=1e-4, cosine=0.9999999)


@pytest.mark.parametrize("name", CASES)
def test_condensation_in_bf16_has_nearly_the_gradients_of_the_eager_engine(name):
    fast, eager = (gradients(engine(*which), **case(name)) for which in (("cuda-graphs", "bf16"), ("eager", "fp32")))
    relative, cosine = COARSE.get(name, (0.06, 0.998))
    assert_alike(fast, eager, relative=relative, cosine=cosine)


SHAPES = {
    "grey": Task("grey", 1, 28, 28, 10, (0.5,), (0.25,)),
    "large": Task("large", 3, 64, 64, 7, (0.5,) * 3, (0.25,) * 3),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "norm"), [("convnet", "batch"), ("convnet", "none"), ("resnet18", "batch")])
def test_other_images_and_networks_have_the_same_gradients_too(shape, name, norm, monkeypatch):
    # With cuDNN's default order of summation, a deep network diverges at the kinks of its ReLUs within a few steps.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    task = SHAPES[shape]
    model = model_of(task, name, norm=norm)
    fast, eager = (
        gradients(engine(which, "fp32"), options_of(), task=task, model=model) for which in ("cuda-graphs", "eager")
    )
    assert_alike(fast, eager, relative=1e-4, cosine=0.9999999)


def images_after(chosen: EagerEngine, steps: int = 6) -> Tensor:
    """Return the images after all steps of a round, with a learning rate that falls."""
    options = options_of(local_steps=steps, image_momentum=0.9, image_lr=100.0, image_lr_decay=True)
    model = model_of(GREY)
    networks = Perturbed(model.state_dict(), FreshWeights(model), Key(0), 0.9)
    terms = (
        Term("dm", features_distance),
        Term("spread", spreads_distance),
        Term("distribution", distributions_distance, directions=True),
    )
    objective = Objective(Backbone(model, GREY, CUDA), networks, terms, Key(2))
    images = torch.randn(2, options.ipc, *GREY.image_shape, generator=Key(0).torch())
    job = Job(shard_of([0, 3], seed=0, task=GREY), [0, 3], images, Key(0))
    (result,) = condense([job], objective, options=options, task=GREY, engine=chosen)
    assert result.losses.keys() == {"dm", "spread", "distribution"}
    return result.images - images


def test_a_captured_step_follows_the_learning_rate_and_the_directions_of_each_step(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    fast, eager = (images_after(engine(which, "fp32")) for which in ("cuda-graphs", "eager"))
    assert_alike([fast], [eager], relative=1e-3, cosine=0.99999)
    longer = images_after(engine("eager", "fp32"), steps=12)
    assert float((longer - eager).norm() / eager.norm()) > 0.1  # the schedule depends on the number of steps


def trained(
    chosen: EagerEngine,
    *,
    batch: int = 32,
    epochs: int = 3,
    clip: float | None = None,
    ema: float | None = None,
    cutmix: float = 0.0,
) -> dict[str, Tensor]:
    model, data = model_of(), shard_of([0, 1, 2, 3, 4], seed=9, each=15)  # 75 images: the last batch is smaller
    fit(
        model,
        data.images,
        data.labels,
        task=TASK,
        epochs=epochs,
        batch_size=batch,
        lr=0.01,
        momentum=0.9,
        key=Key(0),
        engine=chosen,
        clip=clip,
        ema=ema,
        cutmix=cutmix,
    )
    return model.state_dict()


TRAININGS = [{}, {"clip": 0.5}, {"ema": 0.8}, {"cutmix": 0.5}, {"ema": 0.8, "cutmix": 0.5, "clip": 0.5}]


@pytest.mark.parametrize("options", TRAININGS, ids=lambda options: ",".join(options) or "plain")
def test_training_in_fp32_ends_with_the_weights_of_the_eager_engine(options):
    start = model_of().state_dict()
    fast, eager = (trained(engine(which, "fp32"), **options) for which in ("cuda-graphs", "eager"))
    for name, w in eager.items():
        if w.is_floating_point():
            moved = float((w - start[name]).norm())
            # cuDNN sums in varying order; at the kinks of ReLUs the difference can grow to this.
            assert float((fast[name] - w).norm()) <= 5e-3 * moved + 1e-6, name
        else:
            assert torch.equal(fast[name], w)


def test_an_average_of_weights_and_cutmix_change_captured_training():
    plain, *others = (trained(engine("cuda-graphs", "fp32"), **options) for options in TRAININGS[:1] + TRAININGS[2:4])
    for other in others:
        assert not torch.allclose(plain["features.0.weight"], other["features.0.weight"])


def test_statistics_estimated_in_bf16_are_nearly_those_in_fp32():
    batches = [torch.randn(64, *TASK.image_shape, generator=Key(seed).torch()).to(CUDA) for seed in (3, 4, 5)]
    models = []
    for chosen in (engine("cuda-graphs", "bf16"), engine("eager", "fp32")):
        model = model_of()
        with chosen.autocast():
            estimate_statistics(model, batches)
        models.append(model)
    for fast, eager in zip(*map(batch_norms, models), strict=True):
        torch.testing.assert_close(fast.running_mean, eager.running_mean, rtol=0, atol=0.02)
        torch.testing.assert_close(fast.running_var, eager.running_var, rtol=0.05, atol=1e-3)
        assert fast.num_batches_tracked == 3


def test_training_in_bf16_moves_the_weights_as_the_eager_engine_does():
    start = model_of().state_dict()
    fast, eager = (trained(engine(*which), epochs=1) for which in (("cuda-graphs", "bf16"), ("eager", "fp32")))
    for name in ("features.0.weight", "features.4.weight", "features.8.weight", "features.5.weight"):
        ours, theirs = ((w[name] - start[name]).flatten().double() for w in (fast, eager))
        assert float(ours @ theirs / ours.norm() / theirs.norm()) > 0.99, name


def test_a_captured_step_is_replayed_on_new_draws_each_time():
    chosen = engine("cuda-graphs", "fp32")
    moves = gradients(chosen, options_of())
    assert chosen.capturer.works
    assert all(not torch.allclose(a, b) for a, b in pairwise(moves))


def test_dropout_differs_from_step_to_step_and_repeats_with_the_key():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(3 * 32 * 32, 10))
    seen: list[list[Tensor]] = []
    for _ in range(2):
        kept: list[Tensor] = []
        data, network = shard_of([0, 1], seed=3), copy.deepcopy(model)
        with Key(5).seeded(CUDA):
            training = Training(
                network,
                data.images,
                data.labels,
                task=TASK,
                batch_size=80,
                lr=0.0,
                momentum=0.0,
                key=Key(0),
                engine=engine("cuda-graphs", "fp32"),
            )
            for _ in range(6):
                training.epoch()
                kept.append(training._totals["ce"].clone())
        seen.append(kept)
    assert len({round(float(loss), 5) for loss in seen[0]}) == 6
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("model", [None, "support.zoo:dropout"])
@pytest.mark.parametrize("method", AVERAGING)
def test_clients_that_train_side_by_side_have_the_same_numbers_as_one_after_the_other(method, model):
    settings = {"run.device": "cuda", "run.engine": "cuda-graphs", "run.precision": "fp32"}
    alone, again, together = (
        fedaf.run(
            dataset="digits",
            method=method,
            model=model,
            clients=5,
            alpha=1.0,
            rounds=2,
            settings={**settings, "run.clients_at_once": at_once},
        ).model.state_dict()
        for at_once in (1, 1, 4)
    )
    for name in alone:
        if torch.equal(alone[name], again[name]):
            assert torch.equal(alone[name], together[name]), name
        else:  # the GPU's own kernels do not repeat to the last bit
            torch.testing.assert_close(together[name], alone[name], rtol=1e-3, atol=1e-4)


def test_clients_side_by_side_replay_captured_steps_on_streams_of_their_own():
    chosen, data = engine("cuda-graphs", "fp32"), shard_of([0, 1], seed=3)
    streams = []

    def work(number: int, given: EagerEngine) -> float:
        streams.append(torch.cuda.current_stream().cuda_stream)
        options = {"task": TASK, "batch_size": 16, "lr": 0.1, "momentum": 0.9, "key": Key(number), "engine": given}
        return fit(model_of(), data.images, data.labels, epochs=5, **options)["ce"]

    together = list(replace(chosen, clients_at_once=3).each(work, range(6), lambda: 0))
    assert len(set(streams)) == 3
    assert torch.cuda.default_stream().cuda_stream not in streams
    lanes = chosen.capturer.idle_lanes
    assert len(lanes) == 3
    assert all(lane.works and lane._first is not None for lane in lanes)
    alone = list(replace(chosen, clients_at_once=1).each(work, range(6), lambda: 0))
    assert together == pytest.approx(alone, rel=1e-4)


class Impatient(nn.Module):
    """Reads its activations on the host, which cannot be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        if float(flat.detach().abs().max()) > 1e9:
            flat = flat / 2
        logits: Tensor = self.layer(flat)
        return logits


@pytest.mark.parametrize("method", ["fedaf", "fedavg"])
def test_a_network_that_cannot_be_captured_runs_as_plain_pytorch_and_is_logged_once(method, caplog):
    options = SMALL_FEDAF if method == "fedaf" else {"local_epochs": 2}
    settings = {"rounds": 2, "alpha": 0.1, "clients": 4, "device": "cuda", "precision": "fp32"}
    with caplog.at_level(logging.WARNING, "fedaf"):
        fast = fedaf.run(method=method, **settings, **options, engine="cuda-graphs", model=lambda *given: Impatient())
    lines = [record.getMessage() for record in caplog.records if "plain PyTorch" in record.getMessage()]
    assert len(lines) == 1
    eager = fedaf.run(method=method, **settings, **options, engine="eager", model=lambda *given: Impatient())
    assert fast.curve == pytest.approx(eager.curve, abs=0.6)


class Warns(Impatient):
    """Warns in every forward pass; that must neither stop a capture nor reach the user each time."""

    def forward(self, images: Tensor) -> Tensor:
        warnings.warn("each time", stacklevel=1)
        logits: Tensor = self.layer(images.flatten(1))
        return logits


def test_warnings_of_a_network_do_not_stop_its_capture():
    chosen, data = engine("cuda-graphs", "fp32"), shard_of([0, 1], seed=3, task=GREY)
    options = {"task": GREY, "batch_size": 80, "lr": 0.1, "momentum": 0.0, "key": Key(0), "engine": chosen}
    training = Training(Warns().to(CUDA), data.images, data.labels, **options)
    with pytest.warns(UserWarning, match="each time"):
        training.epoch()
    for _ in range(3):  # under the suite's filter a warning that leaves the engine is an error
        training.epoch()
    assert chosen.capturer.works


@pytest.mark.parametrize("method", [*SMALL_CONDENSING, *AVERAGING])
def test_every_method_learns_digits_as_well_as_on_the_eager_engine(method, caplog):
    options = (
        {"ipc": 10, "local_steps": 20, "real_batch": 32, "server_steps": 60, "server_lr": 0.01, "server_batch": 64}
        if method in SMALL_CONDENSING
        else {"local_epochs": 2}
    )
    settings = {**SMALL, "settings": {"model.width": 16, "run.device": "cuda"}}
    with caplog.at_level(logging.WARNING, "fedaf"):
        fast = fedaf.run(method=method, **settings, **options, engine="cuda-graphs")
    assert (fast.figures["engine"], fast.figures["precision"]) == ("cuda-graphs", "bf16")
    assert not [record for record in caplog.records if "plain PyTorch" in record.getMessage()]
    eager = fedaf.run(method=method, **settings, **options, engine="eager", precision="fp32")
    assert fast.best_accuracy >= eager.best_accuracy - 6


@pytest.mark.parametrize("method", SMALL_CONDENSING)
@pytest.mark.parametrize("name", zoo.ALL)
def test_custom_models_learn_on_cuda_graphs_too(name, method):
    settings = {"rounds": 1, "alpha": 0.1, "clients": 4, "device": "cuda", "engine": "cuda-graphs"}
    result = fedaf.run(method=method, **settings, **SMALL_CONDENSING[method], model=f"support.zoo:{name}")
    assert all(torch.isfinite(t).all() for t in result.model.state_dict().values())


@pytest.mark.parametrize(("precision", "coarse"), [("fp32", False), ("tf32", True), ("bf16", True)])
def test_precision_holds_inside_and_is_as_it_was_after(precision, coarse):
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    with engine("cuda-graphs", precision).autocast():
        assert torch.backends.cudnn.allow_tf32 is torch.backends.cuda.matmul.allow_tf32 is coarse
        assert torch.is_autocast_enabled("cuda") is (precision == "bf16")
    assert before == (
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.benchmark,
    )
    assert not torch.is_autocast_enabled("cuda")


def test_a_deadline_stops_the_engine_between_steps():
    late = engine("cuda-graphs", "bf16").until(0.0)
    with pytest.raises(DeadlineExceeded):
        late.tick(1, 2)


@pytest.mark.parametrize("method", ["fedaf", "fedaf-plus"])
def test_a_run_on_cuda_graphs_is_resumed(method, tmp_path):
    settings = {**SMALL, "settings": {"model.width": 16, "run.device": "cuda"}}
    result = fedaf.run(method=method, **settings, **SMALL_CONDENSING[method], out=tmp_path / "run")
    assert fedaf.resume(tmp_path / "run").curve == result.curve
