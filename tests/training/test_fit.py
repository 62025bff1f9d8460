"""Training and evaluation."""

import gc
import time
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.data.dataset import Split
from fedaf.data.pixels import normalise
from fedaf.engine import EagerEngine
from fedaf.methods.averaging import weighted_average
from fedaf.protocol import DeadlineExceeded, Key, Task
from fedaf.training.evaluate import predict, score
from fedaf.training.fit import Training, fit

ENGINE = EagerEngine(torch.device("cpu"))
TASK = Task("tiny", 1, 2, 2, 3, mean=(0.5,), std=(0.25,))


def random_data(count: int) -> tuple[Tensor, Tensor]:
    generator = Key(count).torch()
    images = torch.randint(0, 256, (count, 1, 2, 2), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, 3, (count,), generator=generator)


def linear_model() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=Key(0).torch()))
    return model


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_one_full_batch_with_momentum_and_weight_decay_is_sgd_by_hand(decay) -> None:
    images, labels = random_data(10)
    lr, momentum, epochs = 0.3, 0.9, 4
    model, by_hand = linear_model(), linear_model()
    losses = fit(
        model,
        images,
        labels,
        task=TASK,
        epochs=epochs,
        batch_size=10,
        lr=lr,
        momentum=momentum,
        weight_decay=decay,
        key=Key(1),
        engine=ENGINE,
    )

    parameters = list(by_hand.parameters())
    velocity = [torch.zeros_like(p) for p in parameters]
    for _ in range(epochs):
        loss = F.cross_entropy(by_hand(normalise(images, TASK.mean, TASK.std)), labels)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for p, v, g in zip(parameters, velocity, gradients, strict=True):
                v.mul_(momentum).add_(g + decay * p)
                p.sub_(lr * v)
    for p, q in zip(model.parameters(), parameters, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    assert losses == {"ce": pytest.approx(loss.item(), rel=1e-4)}


def batches_of(count: int, batch_size: int, epochs: int) -> list[list[int]]:
    """Return the rows of each optimiser step, read from images whose pixels are their row number."""
    seen: list[list[int]] = []
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    model = linear_model()

    def loss(batch: Tensor, labels: Tensor) -> dict[str, Tensor]:
        rows = ((batch * 0.25 + 0.5) * 255).round().long()[:, 0, 0, 0]
        assert torch.equal(labels, rows % 3), "images and labels must be shuffled together"
        seen.append(rows.tolist())
        return {"ce": F.cross_entropy(model(batch), labels)}

    fit(
        model,
        images,
        torch.arange(count) % 3,
        task=TASK,
        epochs=epochs,
        batch_size=batch_size,
        lr=0.1,
        momentum=0.0,
        key=Key(3),
        engine=ENGINE,
        loss=loss,
    )
    return seen


def test_every_epoch_sees_every_sample_once_in_a_new_order() -> None:
    seen = batches_of(6, 4, 2)
    assert [len(rows) for rows in seen] == [4, 2, 4, 2]
    epochs = [seen[0] + seen[1], seen[2] + seen[3]]
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert seen == batches_of(6, 4, 2)


def test_a_last_batch_of_one_sample_is_dropped() -> None:
    assert [len(rows) for rows in batches_of(9, 4, 3)] == [4, 4] * 3


def test_batch_norm_trains_if_one_sample_is_left_over() -> None:
    images, labels = random_data(5)
    model = nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3))  # maps of 1x1
    model.eval()
    losses = fit(
        model, images, labels, task=TASK, epochs=3, batch_size=4, lr=0.1, momentum=0.9, key=Key(0), engine=ENGINE
    )
    assert model[1].num_batches_tracked == 3
    assert 0 < losses["ce"] < 10


def test_a_single_sample_trains_nothing() -> None:
    images, labels = random_data(1)
    model = linear_model()
    losses = fit(
        model, images, labels, task=TASK, epochs=2, batch_size=4, lr=0.1, momentum=0.9, key=Key(0), engine=ENGINE
    )
    assert losses == {}
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), linear_model().parameters(), strict=True))


def test_training_minimises_the_sum_of_loss_terms_and_reports_each() -> None:
    images, labels = random_data(4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False))
    nn.init.zeros_(model[1].weight)

    def loss(batch: Tensor, labels: Tensor) -> dict[str, Tensor]:
        total = model[1].weight.sum()
        return {"a": 2 * total + 1, "b": -3 * total}

    losses = fit(
        model,
        images,
        labels,
        task=TASK,
        epochs=2,
        batch_size=2,
        lr=0.5,
        momentum=0.0,
        key=Key(0),
        engine=ENGINE,
        loss=loss,
    )
    # d(a + b)/dw = -1, so each of the four steps adds 0.5 to each of the four weights; the last epoch is steps 3, 4.
    assert model[1].weight.flatten().tolist() == [2.0] * 4
    assert losses == {"a": pytest.approx((9 + 13) / 2), "b": pytest.approx((-12 - 18) / 2)}


def test_training_reports_progress_and_stops_at_the_deadline() -> None:
    images, labels = random_data(4)
    reported: list[tuple[int, int]] = []
    late = ENGINE.watch(lambda done, total: reported.append((done, total))).until(time.monotonic() - 1)
    with pytest.raises(DeadlineExceeded):
        fit(
            linear_model(),
            images,
            labels,
            task=TASK,
            epochs=3,
            batch_size=4,
            lr=0.1,
            momentum=0.0,
            key=Key(0),
            engine=late,
        )
    assert reported == [(1, 3)]


def test_training_augments_its_batches_as_the_task_says() -> None:
    images, labels = random_data(4)
    batches: list[Tensor] = []
    model = linear_model()

    def loss(batch: Tensor, labels: Tensor) -> dict[str, Tensor]:
        batches.append(batch)
        return {"ce": F.cross_entropy(model(batch), labels)}

    task = Task("tiny", 1, 2, 2, 3, mean=(0.5,), std=(0.25,), augment=("brightness",))
    options = {"epochs": 1, "batch_size": 4, "lr": 0.1, "momentum": 0.0, "key": Key(0), "engine": ENGINE}
    fit(model, images, labels, task=task, loss=loss, **options)
    fit(model, images, labels, task=TASK, loss=loss, **options)
    change = (batches[0] - batches[1]).flatten(1)
    assert change.std(1).max() < 1e-5
    assert (change.mean(1).abs() > 1e-3).all()


def test_the_average_of_identical_models_is_that_model() -> None:
    model = {"w": torch.randn(3, 2, generator=Key(0).torch()), "steps": torch.tensor(7)}
    averaged = weighted_average({"a": model, "b": model, "c": model}, {"a": 1.0, "b": 10.0, "c": 3.0})
    assert torch.equal(averaged["w"], model["w"])
    assert torch.equal(averaged["steps"], model["steps"])


def test_the_average_weighs_clients_by_their_samples() -> None:
    models = {"a": {"w": torch.tensor([0.0, 4.0])}, "b": {"w": torch.tensor([8.0, 0.0])}}
    assert weighted_average(models, {"b": 1.0, "a": 3.0})["w"].tolist() == [2.0, 3.0]


def test_averaged_integers_are_rounded_and_dtypes_stay() -> None:
    models = {
        "a": {"n": torch.tensor(3), "h": torch.tensor([1.0], dtype=torch.float16)},
        "b": {"n": torch.tensor(4), "h": torch.tensor([2.0], dtype=torch.float16)},
    }
    averaged = weighted_average(models, {"a": 1.0, "b": 3.0})
    assert averaged["n"].dtype == torch.int64
    assert averaged["n"].item() == 4  # 3.75 rounded, not cut
    assert averaged["h"].dtype == torch.float16
    assert averaged["h"].item() == 1.75


class ByBrightness(nn.Module):
    """Predicts class 2 for bright images and class 0 for dark ones in eval mode, and class 1 in train mode."""

    def forward(self, images: Tensor) -> Tensor:
        bright = images.mean((1, 2, 3))
        logits = torch.stack([-bright, torch.zeros_like(bright), bright], 1)
        return logits + 100 * F.one_hot(torch.tensor(1), 3) if self.training else logits


def test_accuracy_is_the_percentage_of_correct_predictions_in_eval_mode() -> None:
    images = torch.tensor([0, 10, 250, 240], dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    model = ByBrightness().train()
    for labels, percent in (([0, 0, 2, 2], 100), ([0, 1, 2, 2], 75), ([1, 1, 1, 0], 0)):
        assert score(model, Split(images, torch.tensor(labels)), (), TASK, ENGINE).accuracy == percent


def test_accuracy_over_domains_is_their_unweighted_mean() -> None:
    images = torch.tensor([0, 0, 255, 255]).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    test = Split(images, torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 0, 2]))
    scored = score(ByBrightness(), test, ("photo", "empty", "sketch"), TASK, ENGINE)
    assert scored.by_domain == {"photo": pytest.approx(100 / 3), "sketch": 100}
    assert scored.accuracy == pytest.approx(200 / 3)


def test_predictions_keep_the_order_of_more_images_than_one_batch_holds() -> None:
    images = (torch.arange(2001) % 256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    logits = predict(ByBrightness(), images, TASK, ENGINE)
    torch.testing.assert_close(logits[:, 2], normalise(images, TASK.mean, TASK.std)[:, 0, 0, 0])
    assert not predict(linear_model(), images, TASK, ENGINE).requires_grad


def test_predictions_of_no_images_are_empty() -> None:
    assert predict(ByBrightness(), torch.empty(0, 1, 2, 2, dtype=torch.uint8), TASK, ENGINE).shape == (0, 3)


def test_predictions_keep_to_the_memory_budget() -> None:
    sizes: list[int] = []
    model = linear_model()
    model.register_forward_pre_hook(lambda _module, inputs: sizes.append(len(inputs[0])))
    images, _ = random_data(100)
    predict(
        model, images, TASK, EagerEngine(torch.device("cpu"), memory_budget=10 * 2 * 16)
    )  # flattened: 16 in, 16 out
    assert max(sizes) == 10
    assert sum(sizes) == 100 + 1  # one more image to measure its memory


def test_dropout_follows_from_the_key_alone() -> None:
    images, labels = random_data(12)

    def trained(seed: int, key: Key) -> Tensor:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Dropout(0.5), linear_model())
        fit(model, images, labels, task=TASK, epochs=2, batch_size=5, lr=0.1, momentum=0.0, key=key, engine=ENGINE)
        return model[1][1].weight

    first = trained(1, Key(0))
    assert torch.equal(first, trained(2, Key(0)))
    assert not torch.equal(first, trained(1, Key(1)))


def test_predictions_do_not_depend_on_the_memory_layout_of_images() -> None:
    class Layout(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            seen.append(images.is_contiguous())
            return images.flatten(1)

    seen: list[bool] = []
    task = Task("tiny", 3, 2, 2, 12, mean=(0.5,) * 3, std=(0.25,) * 3)
    predict(Layout(), torch.zeros(5, 2, 2, 3, dtype=torch.uint8).permute(0, 3, 1, 2), task, ENGINE)
    assert all(seen)


def test_a_training_that_is_closed_frees_its_memory_at_once() -> None:
    images, labels = random_data(6)
    training = Training(
        linear_model(), images, labels, task=TASK, batch_size=4, lr=0.1, momentum=0.0, key=Key(0), engine=ENGINE
    )
    training.epoch()
    training.close()
    watched = weakref.ref(training)
    gc.disable()
    try:
        del training
        assert watched() is None
    finally:
        gc.enable()
