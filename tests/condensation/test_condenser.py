import gc
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedaf.condensation.condenser import Condensation, Condensed, Objective, condense
from fedaf.condensation.jobs import Capacity, Job, group_jobs
from fedaf.condensation.matching import distribution_matching, sliced_wasserstein
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.terms import (
    Pairs,
    Term,
    distributions_distance,
    features_and_logits_distance,
    features_distance,
    spreads_distance,
    targets_distance,
)
from fedaf.data.pixels import normalise
from fedaf.engine import EagerEngine
from fedaf.models.backbone import Backbone
from fedaf.protocol import Key, Shard, Task, Tensors
from support.zoo import build

CPU = torch.device("cpu")
CLASSES = 3
TASK = Task("tiny", 1, 4, 4, CLASSES, mean=(0.5,), std=(0.25,))
EXTRA = (
    Term("spread", spreads_distance, 0.7),
    Term("distribution", distributions_distance, 1.3, directions=True),
)
LINEAR = nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES))  # features are the image itself


def options_of(**changes: object) -> CondensationOptions:
    plain = {"ipc": 2, "init": "noise", "local_steps": 1, "real_batch": 4, "image_lr": 0.3, "image_momentum": 0.0}
    return CondensationOptions.model_validate({**plain, **changes})


def linear_weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "1.weight": torch.randn(CLASSES, 16, generator=generator),
        "1.bias": torch.randn(CLASSES, generator=generator),
    }


def shard_of(colours: Sequence[int], each: int = 3) -> Shard:
    """``each`` identical images of every class, so that what is drawn does not matter; classes interleaved."""
    labels = torch.arange(len(colours)).repeat(each)
    images = torch.tensor(colours, dtype=torch.uint8)[labels].view(-1, 1, 1, 1).expand(-1, *TASK.image_shape).clone()
    images[:, :, 0, :2] += 3  # not one colour only
    return Shard(images, labels, CLASSES)


def varied_shard(seed: int, per_class: int = 5) -> Shard:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(CLASSES).repeat(per_class)
    images = torch.randint(0, 256, (len(labels), *TASK.image_shape), dtype=torch.uint8, generator=generator)
    return Shard(images, labels, CLASSES)


def job_of(shard: Shard, classes: list[int], *, seed: int = 0, ipc: int = 2, targets: bool = True) -> Job:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(len(classes), ipc, *TASK.image_shape, generator=generator)
    wanted = 3 * torch.randn(len(classes), CLASSES, generator=generator)
    return Job(shard, classes, images, Key(seed), wanted if targets else None)


class Scheduled:
    """Networks with the weights that a function gives for each step."""

    def __init__(self, weights_at: Callable[[int], Tensors]) -> None:
        self._weights_at = weights_at

    def draw(self, step: int) -> None:
        self._now = self._weights_at(step)

    def weights(self) -> Tensors:
        return self._now


def run(
    jobs: Sequence[Job],
    options: CondensationOptions,
    *,
    model: nn.Module = LINEAR,
    weights_at: Callable[[int], Tensors] = lambda step: linear_weights(),
    lambda_loc: float = 0.5,
    match_logits: bool = False,
    extra: tuple[Term, ...] = (),
    engine: EagerEngine | None = None,
) -> list[Condensed]:
    matching = features_and_logits_distance if match_logits else features_distance
    guided = all(job.targets is not None for job in jobs)
    terms = (
        Term("dm", matching, real_logits=match_logits),
        Term("cdc", targets_distance, lambda_loc if guided else None),
        *extra,
    )
    objective = Objective(Backbone(model, TASK, CPU), Scheduled(weights_at), terms, Key(11))
    return list(condense(jobs, objective, options=options, task=TASK, engine=engine or EagerEngine(CPU)))


def real_image(job: Job, label: int) -> Tensor:
    return normalise(job.shard.images[job.shard.labels == label][0], TASK.mean, TASK.std).flatten()


def closed_form_gradients(job: Job, images: Tensor, weights: Tensors) -> tuple[Tensor, Tensor]:
    """The gradients of DM and CDC for the linear backbone, [classes, ipc, 16]; the same for all images of a class."""
    assert job.targets is not None
    dm, cdc = [], []
    for i, label in enumerate(job.classes):
        mean = images[i].flatten(1).mean(0)
        gap = weights["1.weight"] @ mean + weights["1.bias"] - job.targets[i]
        ipc = images.shape[1]
        dm.append((-2 / ipc * (real_image(job, label) - mean)).expand(ipc, -1))
        cdc.append((weights["1.weight"].T @ gap / gap.norm() / CLASSES**0.5 / ipc).expand(ipc, -1))
    return torch.stack(dm), torch.stack(cdc)


def small_convnet(seed: int = 0) -> nn.Module:
    model = build("convnet", TASK, Key(seed), depth=1, width=4, norm="batch")
    with torch.no_grad():
        model(torch.randn(8, *TASK.image_shape, generator=torch.Generator().manual_seed(seed)))
    return model.eval()


def test_one_step_on_a_linear_backbone_is_the_closed_form_step() -> None:
    job = job_of(shard_of([10, 100, 200]), [0, 2])
    (result,) = run([job], options_of())
    dm, cdc = closed_form_gradients(job, job.images, linear_weights())
    expected = job.images - 0.3 * (dm + 0.5 * cdc).view_as(job.images)
    torch.testing.assert_close(result.images, expected, rtol=1e-5, atol=1e-5)
    assert 0.5 * cdc.norm() > 0.05 * dm.norm(), "the case must feel both terms"


def test_without_targets_the_step_is_that_of_distribution_matching_alone() -> None:
    job = job_of(shard_of([10, 100, 200]), [1, 2])
    alone = Job(job.shard, job.classes, job.images, job.key)
    (result,) = run([alone], options_of())
    dm, _ = closed_form_gradients(job, job.images, linear_weights())
    torch.testing.assert_close(result.images, job.images - 0.3 * dm.view_as(job.images), rtol=1e-5, atol=1e-5)
    assert result.losses["cdc"] == 0
    assert result.gradient_ratios["cdc"] == 0


def test_matching_logits_adds_the_gradient_of_their_mean_distance() -> None:
    job = job_of(shard_of([10, 100, 200]), [0, 2], targets=False)
    (result,) = run([job], options_of(image_lr=0.01), match_logits=True)
    matrix = linear_weights()["1.weight"]
    for i, label in enumerate(job.classes):
        gap = job.images[i].flatten(1).mean(0) - real_image(job, label)
        gradient = 2 / 2 * (gap + matrix.T @ (matrix @ gap))  # the same for each of the two images
        expected = job.images[i].flatten(1) - 0.01 * gradient
        torch.testing.assert_close(result.images[i].flatten(1), expected, rtol=1e-4, atol=1e-4)


def test_momentum_and_the_weights_of_each_step_are_those_of_torch_sgd() -> None:
    job, steps = job_of(shard_of([10, 100, 200]), [0, 2]), 3
    (result,) = run([job], options_of(local_steps=steps, image_momentum=0.8), weights_at=linear_weights)

    images = job.images.clone().requires_grad_()
    optimiser = torch.optim.SGD([images], lr=0.3, momentum=0.8)
    for step in range(steps):
        dm, cdc = closed_form_gradients(job, images.detach(), linear_weights(step))
        images.grad = (dm + 0.5 * cdc).view_as(images)
        optimiser.step()
    torch.testing.assert_close(result.images, images.detach(), rtol=1e-5, atol=1e-5)


def test_each_pair_draws_from_its_own_client_and_class_and_from_all_of_it() -> None:
    # With one image and learning rate 1/2 a step lands on the mean of the drawn real images: here, on one of them.
    shards = [varied_shard(0), varied_shard(1)]
    classes, draws = [0, 2], 40
    jobs = [job_of(shards[i % 2], classes, seed=i, ipc=1, targets=False) for i in range(2 * draws)]
    results = run(jobs, options_of(ipc=1, real_batch=1, image_lr=0.5))
    for which, shard in enumerate(shards):
        real = normalise(shard.images, TASK.mean, TASK.std).flatten(1)
        landed = torch.stack([r.images.flatten(1) for r in results[which::2]])
        for i, label in enumerate(classes):
            distances = torch.cdist(landed[:, i], real)
            assert distances.min(1).values.max() < 0.01
            assert set(distances.argmin(1).tolist()) == set(shard.rows_of(label).tolist())


def test_a_job_with_rows_matches_these_only_and_others_beside_it_all_of_their_class() -> None:
    shard, draws = varied_shard(0), 40
    plain = [job_of(shard, [0, 2], seed=i, ipc=1, targets=False) for i in range(2 * draws)]
    chosen = [shard.rows_of(0)[1:3], shard.rows_of(2)[:1]]
    jobs = [replace(job, rows=chosen) if i % 2 else job for i, job in enumerate(plain)]
    results = run(jobs, options_of(ipc=1, real_batch=1, image_lr=0.5))
    real = normalise(shard.images, TASK.mean, TASK.std).flatten(1)
    for which, expected in enumerate(([shard.rows_of(0), shard.rows_of(2)], chosen)):
        landed = torch.stack([result.images.flatten(1) for result in results[which::2]])
        for i, rows in enumerate(expected):
            assert set(torch.cdist(landed[:, i], real).argmin(1).tolist()) == set(rows.tolist())


def test_the_draws_of_a_step_are_new() -> None:
    job = job_of(varied_shard(0), [1], ipc=1, targets=False)
    where = [
        run([job], options_of(ipc=1, real_batch=1, image_lr=0.5, local_steps=steps))[0].images for steps in range(1, 13)
    ]
    assert len({tuple(image.flatten().round(decimals=2).tolist()) for image in where}) > 1


def test_image_clip_bounds_each_clients_gradient_norm_separately() -> None:
    far = job_of(shard_of([0, 255, 255]), [0, 1], seed=1)
    near = job_of(shard_of([128, 128, 128]), [0, 2], seed=2)
    gradients = []
    for job in (far, near):
        dm, cdc = closed_form_gradients(job, job.images, linear_weights())
        gradients.append((dm + 0.5 * cdc).view_as(job.images))
    large, small = (g.norm().item() for g in gradients)
    limit = (large * small) ** 0.5
    assert large > 1.2 * limit > 1.2 * small

    clipped, untouched = run([far, near], options_of(image_clip=limit))
    expected = far.images - 0.3 * gradients[0] * (limit / large)
    torch.testing.assert_close(clipped.images, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(untouched.images, near.images - 0.3 * gradients[1], rtol=1e-5, atol=1e-5)


def test_with_decay_the_learning_rate_falls_to_nearly_zero_as_a_cosine() -> None:
    job, steps = job_of(shard_of([10, 100, 200]), [0, 2]), 40
    rates = [0.3 * (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]
    assert rates[0] == 0.3
    assert rates[-1] < 0.001
    (result,) = run([job], options_of(local_steps=steps, image_momentum=0.8, image_lr_decay=True))
    images = job.images.clone().requires_grad_()
    optimiser = torch.optim.SGD([images], lr=1.0, momentum=0.8)
    for rate in rates:
        dm, cdc = closed_form_gradients(job, images.detach(), linear_weights())
        images.grad = (dm + 0.5 * cdc).view_as(images)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
    torch.testing.assert_close(result.images, images.detach(), rtol=1e-4, atol=1e-4)
    (constant,) = run([job], options_of(local_steps=steps, image_momentum=0.8))
    assert (constant.images - result.images).abs().max() > 0.01


def test_every_group_of_clients_starts_with_the_full_learning_rate() -> None:
    jobs = [job_of(varied_shard(s), [0, 2], seed=s) for s in range(2)]
    options = options_of(local_steps=4, image_lr_decay=True)
    together, in_groups = (run(jobs, options, engine=EagerEngine(CPU, budget)) for budget in (1 << 30, 1))
    for one, other in zip(together, in_groups, strict=True):
        torch.testing.assert_close(one.images, other.images, rtol=1e-4, atol=1e-5)


def test_directions_are_standard_normal_new_at_every_step_and_the_same_for_all_clients() -> None:
    seen: list[Tensor] = []

    def look(pairs: Pairs) -> Tensor:
        assert pairs.directions is not None
        seen.append(pairs.directions.clone())
        return 0 * features_distance(pairs)

    watch = (Term("look", look, directions=True),)
    jobs = [job_of(varied_shard(s), [0, 2], seed=s) for s in range(2)]
    run(jobs[:1], options_of(local_steps=3), extra=watch)
    first, second, third = seen
    assert first.shape == (16, 256)
    assert not torch.isclose(first, second).any()
    assert not torch.isclose(second, third).any()
    assert abs(float(torch.stack([first, second, third]).mean())) < 0.04
    assert float(torch.stack([first, second, third]).std()) == pytest.approx(1, abs=0.04)
    alone, seen[:] = list(seen), []
    run(jobs[1:], options_of(local_steps=3), extra=watch)
    assert all(torch.equal(a, b) for a, b in zip(alone, seen, strict=True))


def test_extra_terms_add_their_weighted_gradients_and_are_reported_by_name() -> None:
    job, model = job_of(varied_shard(1), [1, 2]), small_convnet()
    seen: list[Pairs] = []

    def look(pairs: Pairs) -> Tensor:
        seen.append(pairs)
        return 0 * features_distance(pairs)

    extra = (*EXTRA, Term("look", look))
    (result,) = run([job], options_of(), model=model, weights_at=lambda step: model.state_dict(), extra=extra)
    pairs = seen[0]
    images = job.images.clone().requires_grad_()
    features, logits = ((layer(images.flatten(0, 1))) for layer in (model.features, model))
    pairs = Pairs(
        pairs.real_features,
        None,
        features.view_as(pairs.features),
        logits.view_as(pairs.logits),
        pairs.targets,
        pairs.directions,
    )
    values = {
        "dm": features_distance(pairs),
        "cdc": targets_distance(pairs),
        "spread": spreads_distance(pairs),
        "distribution": distributions_distance(pairs),
    }
    weights = {"dm": 1, "cdc": 0.5, "spread": 0.7, "distribution": 1.3}
    gradients = {
        name: torch.autograd.grad(weights[name] * value.sum(), images, retain_graph=True)[0]
        for name, value in values.items()
    }
    expected = job.images - 0.3 * sum(gradients.values())
    torch.testing.assert_close(result.images, expected, rtol=1e-4, atol=1e-5)
    for name, value in values.items():
        assert result.losses[name] == pytest.approx(float(value.detach().mean()), rel=1e-4)
    for name in ("spread", "distribution"):
        ratios = gradients[name].flatten(1).norm(dim=1) / gradients["dm"].flatten(1).norm(dim=1)
        assert result.gradient_ratios[name] == pytest.approx(float(ratios.mean()), rel=1e-3)
        assert result.gradient_ratios[name] > 0.01, "the case must feel the term"


@pytest.mark.parametrize("changes", [{}, {"image_clip": 0.1}, {"bn_mode": "batch"}])
def test_with_extra_terms_too_a_client_gets_what_it_would_get_alone(changes: dict[str, object]) -> None:
    jobs = [
        job_of(varied_shard(1), [0, 1], seed=1),
        job_of(varied_shard(2, per_class=9), [2], seed=2),
        job_of(varied_shard(3), [0, 1, 2], seed=3),
    ]
    model = small_convnet()
    options = options_of(local_steps=3, image_momentum=0.5, image_lr_decay=True, **changes)
    given = {"model": model, "weights_at": lambda step: model.state_dict(), "extra": EXTRA}
    together = run(jobs, options, **given)
    in_groups = run(jobs, options, engine=EagerEngine(CPU, 1), **given)
    for job, *others in zip(jobs, together, in_groups, strict=True):
        (alone,) = run([job], options, **given)
        for other in others:
            torch.testing.assert_close(other.images, alone.images, rtol=1e-4, atol=1e-5)
            assert other.losses == pytest.approx(alone.losses, rel=1e-3)
            assert other.gradient_ratios == pytest.approx(alone.gradient_ratios, rel=1e-2)


@pytest.mark.parametrize("changes", [{}, {"image_clip": 0.1}, {"bn_mode": "batch"}])
def test_a_client_gets_what_it_would_get_alone(changes: dict[str, object]) -> None:
    jobs = [
        job_of(varied_shard(1), [0, 1], seed=1),
        job_of(varied_shard(2, per_class=9), [2], seed=2),
        job_of(varied_shard(3), [0, 1, 2], seed=3),
    ]
    model = small_convnet()
    options = options_of(local_steps=2, image_momentum=0.5, **changes)
    together = run(jobs, options, model=model, weights_at=lambda step: model.state_dict())
    for job, among_others in zip(jobs, together, strict=True):
        (alone,) = run([job], options, model=model, weights_at=lambda step: model.state_dict())
        torch.testing.assert_close(among_others.images, alone.images, rtol=1e-4, atol=1e-5)
        assert among_others.losses["dm"] == pytest.approx(alone.losses["dm"], rel=1e-4)
        assert among_others.losses["cdc"] == pytest.approx(alone.losses["cdc"], rel=1e-4)
        assert among_others.gradient_ratios["cdc"] == pytest.approx(alone.gradient_ratios["cdc"], rel=1e-3)


def test_batch_statistics_are_those_of_the_clients_real_and_synthetic_images_apart() -> None:
    job, model = job_of(shard_of([10, 100, 200]), [0, 2]), small_convnet()
    (result,) = run([job], options_of(bn_mode="batch"), model=model, weights_at=lambda step: model.state_dict())

    by_hand = small_convnet().train()
    real = torch.stack([real_image(job, label) for label in (0, 2)]).repeat_interleave(4, 0).view(8, 1, 4, 4)
    images = job.images.clone().requires_grad_()
    real_features = by_hand.features(real).view(2, 4, -1).detach()
    features = by_hand.features(images.flatten(0, 1))
    u = by_hand.classifier(features).view(2, 2, -1).mean(1, keepdim=True)
    assert job.targets is not None
    loss = distribution_matching(real_features, features.view(2, 2, -1)).sum()
    loss = loss + 0.5 * sliced_wasserstein(u, job.targets.unsqueeze(1)).sum()
    (gradient,) = torch.autograd.grad(loss, images)
    torch.testing.assert_close(result.images, job.images - 0.3 * gradient, rtol=1e-4, atol=1e-5)

    (with_running,) = run([job], options_of(), model=model, weights_at=lambda step: model.state_dict())
    assert (with_running.images - result.images).abs().max() > 1e-3


def test_no_steps_return_the_start_images() -> None:
    jobs = [job_of(varied_shard(1), [0, 1], seed=1), job_of(varied_shard(2), [2], seed=2)]
    for job, result in zip(jobs, run(jobs, options_of(local_steps=0)), strict=True):
        assert torch.equal(result.images, job.images)
        assert (result.losses, result.gradient_ratios) == ({"dm": 0, "cdc": 0}, {"cdc": 0})


def test_a_client_without_classes_gets_an_empty_result_and_changes_nothing_for_others() -> None:
    empty, other = job_of(varied_shard(1), [], seed=1), job_of(varied_shard(2), [0, 2], seed=2)
    (alone,) = run([other], options_of(local_steps=2))
    for jobs in ([empty, other], [other, empty]):
        nothing, something = sorted(run(jobs, options_of(local_steps=2)), key=lambda result: len(result.images))
        assert nothing.images.shape == (0, 2, *TASK.image_shape)
        assert (nothing.losses, nothing.gradient_ratios) == ({"dm": 0, "cdc": 0}, {"cdc": 0})
        torch.testing.assert_close(something.images, alone.images)


def test_a_cohort_of_clients_without_classes_gets_empty_results() -> None:
    for result in run([job_of(varied_shard(1), [], seed=s) for s in (1, 2)], options_of(image_clip=1.0)):
        assert result.images.shape == (0, 2, *TASK.image_shape)


@pytest.mark.parametrize("bn_mode", ["eval", "batch"])
def test_weights_statistics_and_start_images_are_never_written(bn_mode: str) -> None:
    model, job = small_convnet(), job_of(varied_shard(1), [0, 1])
    weights = {name: w.clone() for name, w in model.state_dict().items()}
    before = {name: w.clone() for name, w in weights.items()}
    start = job.images.clone()
    run([job], options_of(local_steps=2, bn_mode=bn_mode), model=model, weights_at=lambda step: weights)
    assert all(torch.equal(weights[name], w) for name, w in before.items())
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert torch.equal(job.images, start)


def test_a_tiny_memory_budget_gives_the_same_images_and_measures() -> None:
    jobs = [job_of(varied_shard(s), [0, 2], seed=s) for s in range(2)]
    model = small_convnet()
    options = options_of(local_steps=2, image_momentum=0.9, image_clip=0.5)
    large, tiny = (
        run(jobs, options, model=model, weights_at=lambda step: model.state_dict(), engine=EagerEngine(CPU, budget))
        for budget in (1 << 30, 1)
    )
    for a, b in zip(large, tiny, strict=True):
        torch.testing.assert_close(a.images, b.images, rtol=1e-4, atol=1e-5)
        assert a.losses["dm"] == pytest.approx(b.losses["dm"], rel=1e-4)
        assert a.losses["cdc"] == pytest.approx(b.losses["cdc"], rel=1e-4)
        assert a.gradient_ratios["cdc"] == pytest.approx(b.gradient_ratios["cdc"], rel=1e-3)


def grouped(sizes: list[int], fit: int) -> list[list[int]]:
    """The sizes of the clients in each group if the memory budget is ``fit`` pairs."""
    shard, images = varied_shard(0), torch.zeros(0)
    jobs = [Job(shard, [0] * size, images, Key(0)) for size in sizes]
    backbone = Backbone(small_convnet(), TASK, CPU)
    engine = EagerEngine(CPU, fit * 2 * backbone.activation_bytes)
    return [[len(job.classes) for job in group] for group in group_jobs(jobs, backbone, options_of(), engine)]


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 64))
def test_groups_waste_little_and_none_is_much_above_its_share(sizes: list[int], fit: int) -> None:
    groups, largest = grouped(sizes, fit), max(sizes, default=0)
    assert [size for group in groups for size in group] == sizes
    assert max(map(sum, groups), default=0) <= fit + largest
    slots = len(groups) * max(map(sum, groups), default=0)
    full = max(1, math.ceil(sum(sizes) / fit))  # as many groups as an even split would have
    assert slots + len(groups) <= full * (fit + largest + 1)


def test_ten_clients_of_two_classes_leave_no_buffer_unused() -> None:
    """As few groups as possible would be three, three, three and one client: 24 places for 20 pairs."""
    assert grouped([2] * 10, fit=5) == [[2, 2]] * 5


def test_groups_of_a_hundred_classes_leave_hardly_any_buffer_unused() -> None:
    """Ten clients of CIFAR-100. Groups filled in order up to 64 would be 51, 62 and 11, in buffers for 62 each."""
    sizes = [14, 11, 13, 13, 15, 13, 13, 12, 9, 11]
    assert [sum(group) for group in grouped(sizes, 64)] == [66, 58]


@pytest.mark.parametrize("changes", [{}, {"image_clip": 0.1}, {"bn_mode": "batch"}])
def test_groups_of_clients_of_different_sizes_share_buffers_and_keep_apart(changes: dict[str, object]) -> None:
    """The largest client sets the size of the buffers. Unused or stale parts of them must not change results."""
    jobs = [
        job_of(varied_shard(1), [0, 1, 2], seed=1),
        job_of(varied_shard(2, per_class=9), [2], seed=2),
        job_of(varied_shard(3), [], seed=3),
        job_of(varied_shard(4, per_class=3), [0, 2], seed=4),
    ]
    model = small_convnet()
    options = options_of(local_steps=3, image_momentum=0.5, **changes)
    together, in_groups = (
        run(jobs, options, model=model, weights_at=lambda step: model.state_dict(), engine=EagerEngine(CPU, budget))
        for budget in (1 << 30, 1)
    )
    for one, other in zip(together, in_groups, strict=True):
        torch.testing.assert_close(one.images, other.images, rtol=1e-4, atol=1e-5)
        assert one.losses["dm"] == pytest.approx(other.losses["dm"], rel=1e-4)
        assert one.gradient_ratios["cdc"] == pytest.approx(other.gradient_ratios["cdc"], rel=1e-3)


def test_a_tiny_memory_budget_sends_few_images_through_the_network_at_a_time() -> None:
    sizes: list[int] = []

    class Counting(nn.Sequential):
        def forward(self, images: Tensor) -> Tensor:
            sizes.append(len(images))
            return super().forward(images)

    model = Counting(nn.Flatten(), nn.Linear(16, CLASSES))
    job = job_of(varied_shard(1), [0, 1, 2])
    for budget, most in ((1 << 30, 3 * 4), (1, 2)):
        backbone_probe = len(sizes)
        run([job], options_of(), model=model, engine=EagerEngine(CPU, budget))
        assert max(sizes[backbone_probe:]) == most


def test_measures_are_the_clients_means_over_its_classes_of_losses_and_gradient_ratio() -> None:
    lambda_loc = 0.5
    jobs = [job_of(shard_of([10, 100, 200]), [0, 2], seed=1), job_of(shard_of([90, 30, 60]), [1], seed=2)]
    model = small_convnet()
    results = run(jobs, options_of(), model=model, weights_at=lambda step: model.state_dict(), lambda_loc=lambda_loc)
    for job, result in zip(jobs, results, strict=True):
        assert job.targets is not None
        losses_dm, losses_cdc, ratios = [], [], []
        for i, label in enumerate(job.classes):
            images = job.images[i].clone().requires_grad_()
            features = model.features(images)
            real = model.features(real_image(job, label).view(1, 1, 4, 4)).detach()
            dm = (real.mean(0) - features.mean(0)).square().sum()
            cdc = (model.classifier(features).mean(0) - job.targets[i]).norm() / CLASSES**0.5
            (by_dm,) = torch.autograd.grad(dm, images, retain_graph=True)
            (by_cdc,) = torch.autograd.grad(cdc, images)
            losses_dm.append(dm.item())
            losses_cdc.append(cdc.item())
            ratios.append(lambda_loc * by_cdc.norm().item() / by_dm.norm().item())
        count = len(job.classes)
        assert result.losses["dm"] == pytest.approx(sum(losses_dm) / count, rel=1e-4)
        assert result.losses["cdc"] == pytest.approx(sum(losses_cdc) / count, rel=1e-4)
        assert result.gradient_ratios["cdc"] == pytest.approx(sum(ratios) / count, rel=1e-3)


def test_measures_are_of_the_last_step_only() -> None:
    job = job_of(shard_of([10, 100, 200]), [0, 1])
    (first,) = run([job], options_of(local_steps=1))
    (both,) = run([job], options_of(local_steps=2))
    (second,) = run([Job(job.shard, job.classes, first.images, job.key, job.targets)], options_of(local_steps=1))
    assert both.losses["dm"] == pytest.approx(second.losses["dm"], rel=1e-4)
    assert both.losses["cdc"] == pytest.approx(second.losses["cdc"], rel=1e-4)
    assert both.gradient_ratios["cdc"] == pytest.approx(second.gradient_ratios["cdc"], rel=1e-4)
    assert first.losses["dm"] != pytest.approx(second.losses["dm"], rel=0.05)


def test_buffers_keep_their_address_over_steps_and_groups() -> None:
    """So that an engine may capture a step once and replay it."""
    jobs = [job_of(varied_shard(1), [0, 1]), job_of(varied_shard(2), [2], seed=2)]
    objective = Objective(Backbone(LINEAR, TASK, CPU), Scheduled(lambda step: linear_weights()))
    capacity = Capacity.of(*([job] for job in jobs))
    work = Condensation(capacity, objective, options=options_of(), task=TASK, engine=EagerEngine(CPU))

    def addresses() -> list[int]:
        tensors = [*vars(work).values(), *vars(work._source).values()]
        return [t.data_ptr() for t in tensors if isinstance(t, Tensor)]

    before = addresses()
    assert len(before) == 11
    for job in jobs:
        work.load([job])
        for step, move in enumerate((work.move, work.last_move)):
            work.draw(step)
            move()
    assert addresses() == before


def test_a_condensation_that_is_closed_frees_its_memory_at_once() -> None:
    job = job_of(varied_shard(1), [0, 1])
    objective = Objective(Backbone(LINEAR, TASK, CPU), Scheduled(lambda step: linear_weights()))
    work = Condensation(Capacity.of([job]), objective, options=options_of(), task=TASK, engine=EagerEngine(CPU))
    work.load([job])
    work.draw(0)
    work.move()
    work.close()
    watched = weakref.ref(work)
    gc.disable()
    try:
        del work
        assert watched() is None
    finally:
        gc.enable()
