"""Condensing all clients in one batch gives the same images as condensing each alone."""

import pytest
import torch

from support.small import SMALL_CONDENSING, OneByOne, Rounds, local, small_experiment


def images_of(rounds: Rounds) -> dict[str, torch.Tensor]:
    """The float images each client keeps, before they are rounded to uint8."""
    records = rounds.transport.checkpoint()
    return {name: tensors["pending/images"] for name, tensors in records.items()}


CASES = [
    *(
        ("fedaf", options)
        for options in (
            {},
            {"image_clip": 0.01},
            {"bn_mode": "batch"},
            {"shared_resampling": False},
            {"init": "noise"},
            {"cdc": False},
        )
    ),
    *(("fedaf-plus", options) for options in ({}, {"bn_mode": "batch"}, {"shared_resampling": False})),
    ("feddm", {"match_spread": 1.0, "match_distribution": 1.0}),
]


@pytest.mark.parametrize(
    ("method", "options"), CASES, ids=[f"{method} {','.join(options) or 'defaults'}" for method, options in CASES]
)
def test_all_clients_together_condense_the_same_images_as_one_at_a_time(method, options):
    experiment = small_experiment(method, **{**SMALL_CONDENSING[method], **options})
    together, single = Rounds(experiment), Rounds(experiment, OneByOne(local(experiment)))
    together.play()
    single.play()
    for name, images in images_of(together).items():
        torch.testing.assert_close(images, images_of(single)[name], rtol=1e-4, atol=1e-4)
    sizes = [len(images) for images in images_of(together).values()]
    assert sum(sizes) > max(sizes) > 1  # several clients, some with several classes
