"""CutMix against a loop over pixels, and within training."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedaf.data.pixels import normalise
from fedaf.engine import EagerEngine
from fedaf.protocol import Key, Task
from fedaf.training.cutmix import DRAWS, cutmix
from fedaf.training.fit import fit

ENGINE = EagerEngine(torch.device("cpu"))
CLASSES = 5
TASK = Task("tiny", 1, 6, 8, CLASSES, mean=(0.5,), std=(0.25,))


def numbered(count: int, height: int = 6, width: int = 8) -> tuple[Tensor, Tensor]:
    """Images whose pixels are their number, each of a class of its own."""
    images = torch.arange(count).float().view(-1, 1, 1, 1).expand(-1, 2, height, width)
    return images, torch.eye(count)


def draws_of(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, DRAWS, generator=Key(seed).torch())


@given(
    seed=st.integers(0, 1000), share=st.sampled_from([0.0, 0.3, 1.0]), size=st.sampled_from([(6, 8), (5, 3), (1, 1)])
)
def test_a_rectangle_comes_from_the_image_before_and_labels_are_in_proportion_to_the_area(seed, share, size):
    count, (height, width) = 7, size
    images, targets = numbered(count, height, width)
    draws = draws_of(count, seed)
    mixed, labels = cutmix(images, targets, draws, share)
    for i, (chosen, area, middle_row, middle_column) in enumerate(draws.tolist()):
        half = area**0.5 / 2 if chosen < share else 0.0
        before = (i - 1) % count
        replaced = 0
        for row in range(height):
            for column in range(width):
                near_row = abs((row + 0.5) / height - middle_row) < half
                inside = near_row and abs((column + 0.5) / width - middle_column) < half
                replaced += inside
                assert mixed[i, :, row, column].tolist() == [float(before if inside else i)] * 2
        expected = {i: 1 - replaced / (height * width), before: replaced / (height * width)}
        assert labels[i].tolist() == pytest.approx([expected.get(c, 0.0) for c in range(count)], abs=1e-6)


def test_a_share_of_zero_changes_nothing_and_of_one_every_image():
    images, targets = numbered(200, 8, 8)
    draws = draws_of(200)
    same, labels = cutmix(images, targets, draws, 0.0)
    assert torch.equal(same, images)
    assert torch.equal(labels, targets)
    draws[:, 1:] = torch.tensor([0.25, 0.5, 0.5])  # a quarter of the area, in the centre
    mixed, labels = cutmix(images, targets, draws, 1.0)
    assert (mixed != images).flatten(1).any(1).all()
    torch.testing.assert_close(labels.diagonal(), torch.full((200,), 0.75), rtol=0, atol=1e-6)


def test_the_share_is_the_share_of_images_that_are_mixed():
    images, targets = numbered(4000)
    draws = draws_of(4000)
    draws[:, 1:] = 0.5
    mixed, _ = cutmix(images, targets, draws, 0.3)
    changed = (mixed != images).flatten(1).any(1).float().mean()
    assert float(changed) == pytest.approx(0.3, abs=0.03)


def test_labels_remain_distributions_and_a_mixture_within_a_class_keeps_its_label():
    images, _ = numbered(50)
    targets = F.one_hot(torch.zeros(50, dtype=torch.int64), CLASSES).float()
    _, labels = cutmix(images, targets, draws_of(50), 1.0)
    torch.testing.assert_close(labels, targets)
    _, labels = cutmix(images, torch.eye(50), draws_of(50), 1.0)
    torch.testing.assert_close(labels.sum(1), torch.ones(50))
    assert labels.min() >= 0


def data(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = Key(count).torch()
    images = torch.randint(0, 256, (count, *TASK.image_shape), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, CLASSES, (count,), generator=generator)


def linear_model() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, CLASSES))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=Key(0).torch()) / 7)
    return model


def trained(key: int = 1, epochs: int = 3, **options) -> nn.Module:
    images, labels = data()
    model = linear_model()
    given = {"task": TASK, "batch_size": 5, "lr": 0.1, "momentum": 0.9, "key": Key(key), "engine": ENGINE}
    fit(model, images, labels, epochs=epochs, **{**given, **options})
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_training_with_cutmix_repeats_with_the_key():
    torch.manual_seed(1)
    first = trained(cutmix=0.5)
    torch.manual_seed(2)
    assert same(first, trained(cutmix=0.5))
    assert not same(first, trained(key=2, cutmix=0.5))
    assert not same(first, trained())
    assert same(trained(cutmix=0.0), trained())


def seen_by_the_loss(**options) -> list[tuple[Tensor, Tensor]]:
    seen: list[tuple[Tensor, Tensor]] = []
    model = linear_model()

    def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        seen.append((images, labels))
        return {"ce": F.cross_entropy(model(images), labels)}

    images, labels = data()
    given = {"task": TASK, "batch_size": 5, "lr": 0.1, "momentum": 0.9, "key": Key(1), "engine": ENGINE}
    fit(model, images, labels, epochs=4, loss=loss, **given, **options)
    return seen


def test_the_loss_gets_probabilities_with_cutmix_and_class_ids_without():
    plain, mixed = seen_by_the_loss(), seen_by_the_loss(cutmix=0.5)
    assert all(labels.dtype == torch.int64 for _, labels in plain)
    changes = []
    for (images, ids), (others, labels) in zip(plain, mixed, strict=True):
        one_hot = F.one_hot(ids, CLASSES).float()
        assert labels.shape == one_hot.shape
        torch.testing.assert_close(labels.sum(1), torch.ones(len(labels)))
        # the same images in the same order: all that differs is a part from the image before
        taken = (others == images).flatten(1).float().mean(1, keepdim=True)
        torch.testing.assert_close(labels, taken * one_hot + (1 - taken) * one_hot.roll(1, 0), rtol=0, atol=0.03)
        changes.append(taken.squeeze(1) < 1)
    assert 0.15 < float(torch.cat(changes).float().mean()) < 0.7
    assert not torch.equal(changes[0], changes[3])  # the first batches of two epochs


def test_an_average_of_weights_is_that_of_a_loop_by_hand():
    images, labels = data(10)
    decay, lr, epochs = 0.7, 0.3, 6
    model, by_hand = linear_model(), linear_model()
    given = {"task": TASK, "batch_size": 10, "lr": lr, "momentum": 0.0, "key": Key(1), "engine": ENGINE}
    fit(model, images, labels, epochs=epochs, ema=decay, **given)
    parameters = list(by_hand.parameters())
    averages = [p.detach().clone() for p in parameters]
    for _ in range(epochs):
        loss = F.cross_entropy(by_hand(normalise(images, TASK.mean, TASK.std)), labels)
        for p, average, gradient in zip(parameters, averages, torch.autograd.grad(loss, parameters), strict=True):
            with torch.no_grad():
                p.sub_(lr * gradient)
                average.mul_(decay).add_((1 - decay) * p)
    for p, q, average in zip(model.parameters(), parameters, averages, strict=True):
        torch.testing.assert_close(p, average, rtol=1e-4, atol=1e-5)
        assert (p - q).abs().max() > 1e-3


def test_a_decay_of_zero_keeps_the_last_weights():
    for one, other in zip(trained(ema=0.0).parameters(), trained().parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_training_runs_on_while_the_average_waits_for_the_end():
    """The average takes no part in the steps: the losses are those of training without it."""
    images, labels = data()
    given = {"task": TASK, "batch_size": 5, "lr": 0.1, "momentum": 0.9, "key": Key(1), "engine": ENGINE}
    losses = [fit(linear_model(), images, labels, epochs=5, ema=ema, **given) for ema in (None, 0.9)]
    assert losses[0] == losses[1]
