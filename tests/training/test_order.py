"""The order of an epoch: every image once, or in proportion to its weight."""

import pytest
import torch

from fedaf.protocol import Key
from fedaf.training.fit import fit
from fedaf.training.order import epoch_order
from support.tiny import CONVNET, ENGINE, TASK

COUNT = 40
HOW = {"task": TASK, "epochs": 3, "batch_size": 8, "lr": 0.1, "momentum": 0.9, "key": Key(1), "engine": ENGINE}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_without_weights_every_row_is_drawn_once():
    order = epoch_order(COUNT, generator())
    assert sorted(order.tolist()) == list(range(COUNT))
    assert not torch.equal(order, epoch_order(COUNT, generator(1)))


def test_equal_weights_draw_every_row_once():
    order = epoch_order(COUNT, generator(), torch.full((COUNT,), 0.3, dtype=torch.float64))
    assert sorted(order.tolist()) == list(range(COUNT))


def test_a_row_is_drawn_in_every_epoch_as_often_as_its_weight_says():
    weights = torch.tensor([0.0, 1.0, 2.5, 10.0], dtype=torch.float64).repeat(COUNT // 4)
    expected = weights / weights.sum() * COUNT
    draws, total = generator(), torch.zeros(COUNT, dtype=torch.float64)
    for _ in range(2000):
        order = epoch_order(COUNT, draws, weights)
        counts = torch.bincount(order, minlength=COUNT)
        assert len(order) == COUNT
        assert (counts >= expected.floor()).all()
        assert (counts <= expected.ceil()).all()
        total += counts
    # The number of draws of a row in an epoch has a standard deviation of at most 1/2.
    assert (total / 2000 - expected).abs().max() < 5 * 0.5 / 2000**0.5


def test_rows_of_a_large_weight_are_spread_over_the_epoch():
    weights = torch.ones(COUNT, dtype=torch.float64)
    weights[7] = COUNT
    where = [(epoch_order(COUNT, generator(seed), weights) == 7).nonzero().double().mean() for seed in range(200)]
    assert torch.stack(where).mean() == pytest.approx((COUNT - 1) / 2, abs=1)


def test_training_never_sees_an_image_of_weight_zero():
    images = torch.randint(0, 256, (COUNT, *TASK.image_shape), dtype=torch.uint8, generator=generator())
    labels = torch.arange(COUNT) % TASK.num_classes
    weights = torch.ones(COUNT, dtype=torch.float64)
    weights[::2] = 0
    trained = []
    for shift in (0, 1):
        model = CONVNET.build(Key(0))
        wrong = torch.where(weights == 0, (labels + shift) % TASK.num_classes, labels)
        fit(model, images, wrong, weights=weights, **HOW)
        trained.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*trained)
    unweighted = CONVNET.build(Key(0))
    fit(unweighted, images, labels, **HOW)
    assert not torch.equal(trained[0], torch.cat([p.detach().flatten() for p in unweighted.parameters()]))
