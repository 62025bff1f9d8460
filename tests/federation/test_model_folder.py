"""A run keeps its last model and its best one, chosen on images that were set aside."""

import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch

import fedaf
from fedaf.federation.model_folder import Kept, ModelCard, keep, path_of, read_card, read_weights
from fedaf.federation.run_directory import read_metrics
from support.errors import raises
from support.small import SMALL

CARD = ModelCard(
    method={"name": "fedavg", "lr": 0.1},
    model={"name": "convnet", "depth": 3},
    seed=7,
    dataset="tiny",
    classes=("cat", "hæd"),
    image_shape=(1, 8, 12),
    mean=(0.5,),
    std=(0.25,),
    parameters=3,
    versions={"fedaf": "0.1.0"},
)


def model_of(round: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((3,), float(round))}


def keep_rounds(folder, scores: list[float | None], *, first: int = 1) -> dict[str, tuple[int, float]]:
    """Keep rounds with these scores; return the round of each file by the card, and what its weights are."""
    for round, score in enumerate(scores, first):
        keep(folder, CARD, model_of(round), Kept(round, score))
    files = read_card(folder).files
    return {which: (kept.round, read_weights(folder, which)["weight"][0].item()) for which, kept in files.items()}


def test_the_best_is_the_round_with_the_highest_score_and_the_earlier_of_equal_ones(tmp_path):
    assert keep_rounds(tmp_path, [50.0, 80.0, 80.0, 70.0]) == {"last": (4, 4.0), "best": (2, 2.0)}
    assert read_card(tmp_path).which == "best"


def test_a_model_that_is_never_right_is_the_best_if_there_is_no_better_one(tmp_path):
    assert keep_rounds(tmp_path, [0.0, 0.0]) == {"last": (2, 2.0), "best": (1, 1.0)}


def test_without_images_to_choose_by_the_last_model_is_the_one_to_use(tmp_path):
    assert keep_rounds(tmp_path, [None, None]) == {"last": (2, 2.0)}
    assert read_card(tmp_path).which == "last"
    assert not path_of(tmp_path, "best").exists()


@pytest.mark.parametrize("scores", [[50.0, 80.0], [80.0, 50.0]])
def test_keeping_a_round_again_changes_nothing(scores, tmp_path):
    first = keep_rounds(tmp_path, scores)
    assert keep_rounds(tmp_path, scores[-1:], first=2) == first


def test_a_best_model_of_a_round_after_the_checkpoint_is_forgotten(tmp_path):
    keep_rounds(tmp_path, [50.0, 60.0, 90.0])
    assert keep_rounds(tmp_path, [60.0, 55.0], first=2) == {"last": (3, 3.0), "best": (2, 2.0)}


def test_the_card_says_all_that_it_was_given(tmp_path):
    keep(tmp_path, CARD, model_of(1), Kept(1, 62.5))
    kept = Kept(1, 62.5)
    assert read_card(tmp_path) == replace(CARD, files={"last": kept, "best": kept})
    written = json.loads((tmp_path / "model" / "model.json").read_text())
    assert (written["format_version"], written["which"], written["classes"]) == (1, "best", ["cat", "hæd"])
    assert written["files"]["best"] == {"round": 1, "selection_accuracy": 62.5}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format_version": 2}'])
def test_a_damaged_card_is_one_sentence(content, tmp_path):
    keep(tmp_path, CARD, model_of(1), Kept(1))
    (tmp_path / "model" / "model.json").write_text(content)
    with raises("FEDAF-MODEL-DAMAGED"):
        read_card(tmp_path)


def test_damaged_weights_are_one_sentence(tmp_path):
    keep(tmp_path, CARD, model_of(1), Kept(1))
    path_of(tmp_path, "last").write_bytes(b"\xff" * 40)
    with raises("FEDAF-MODEL-DAMAGED"):
        read_weights(tmp_path, "last")


def test_a_run_keeps_the_model_that_its_metrics_say_is_best(tmp_path):
    settings = {**SMALL["settings"], "data.selection": 150, "run.keep_checkpoints": 0}
    run = {**SMALL, "settings": settings, "local_epochs": 1, "lr": 1.0}  # so that accuracy goes up and down
    result = fedaf.run(method="fedavg", **run, out=tmp_path / "run")
    metrics = read_metrics(tmp_path / "run")
    scores = [m["selection_accuracy"] for m in metrics]
    best = scores.index(max(scores)) + 1
    assert best == 2
    assert result.figures["selected_round"] == best
    assert result.figures["selected_accuracy"] == metrics[best - 1]["accuracy"]
    card = read_card(tmp_path / "run")
    assert card.files == {"last": Kept(3, scores[2]), "best": Kept(best, max(scores))}
    for which, kept in card.files.items():
        checkpoint = safetensors.torch.load_file(tmp_path / "run" / f"round-{kept.round}" / "model.safetensors")
        weights = read_weights(tmp_path / "run", which)
        assert all(torch.equal(checkpoint[name], weights[name]) for name in checkpoint)


def test_without_selection_the_result_names_no_selected_round():
    plain = fedaf.run(**{**SMALL, "rounds": 1, "local_epochs": 1, "method": "fedavg"})
    assert (plain.figures["selected_round"], plain.figures["selected_accuracy"]) == (None, None)
