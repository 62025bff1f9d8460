"""Clients own their data and their policy: the server has neither data nor a say in it."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comparison import toml
from fedaf.config import policy_toml
from fedaf.protocol import Policy
from loopback import loopback

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]

CLASSES = ["cat", "dog", "owl"]
RUN = {
    "data": {"name": "none", "shape": [3, 32, 32], "classes": CLASSES},
    "run": {"device": "cpu", "rounds": 2, "threads": 1},
    "model": {"width": 16},
    "federation": {"deadline": 90.0, "min_clients": 3},
    "method": {"name": "fedaf", "ipc": 22, "local_steps": 10, "real_batch": 16, "server_epochs": 4},
}


def test_a_federation_of_own_data_is_evaluated_where_they_are_and_sends_little_beside_them(tmp_path):
    """A folder that lacks a class, an .npz, and one whose owner asks for more steps than the server does."""
    folder(tmp_path / "images", 55)
    (tmp_path / "policy.toml").write_text(policy_toml(Policy(min_local_steps=1000)))
    nodes = {
        "hospital": {"data": f"folder:{tmp_path / 'images'}"},
        "museum": {"data": f"npz:{npz(tmp_path / 'museum.npz', 50, 20)}"},
        "careful": {"data": f"npz:{npz(tmp_path / 'careful.npz', 50, 20)}", "policy": str(tmp_path / "policy.toml")},
    }
    out = tmp_path / "run"
    with loopback(tmp_path / "network", nodes) as network:
        run = network.finish(toml(RUN), out)
        traffic, said = network.status(run)["network-traffic"], network.said(run)
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for m in metrics:
        assert list(m["failures"]) == ["careful"]
        assert "10 condensation steps are asked for, the policy wants min_local_steps 1000" in m["failures"]["careful"]
        right = m["accuracy_by_client"]["hospital"] * 22 + m["accuracy_by_client"]["museum"] * 60
        assert m["accuracy"] == pytest.approx(right / 82)
    assert "careful is out (knowledge: 10 condensation steps are asked for" in said
    assert "Beside work, a phase took in the mean: knowledge" in said
    payload = sum(sum(sent.values()) for m in metrics for sent in m["upload_bytes"].values())
    print(f"{payload} bytes of payload, {traffic['inbound-bytes']} bytes by Flower's count")
    assert payload < traffic["inbound-bytes"] < 1.05 * payload


def folder(path: Path, count: int) -> None:
    """Photographs of two of the classes, not of the size that the federation uses."""
    for label, name in enumerate(CLASSES[:2]):
        (path / name).mkdir(parents=True)
        for number, pixels in enumerate(pictures(label, count, side=40)):
            Image.fromarray(pixels).save(path / name / f"{number}.png")


def npz(path: Path, train: int, test: int) -> Path:
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = np.concatenate([pictures(label, count) for label in range(len(CLASSES))])
        arrays[f"y_{part}"] = np.repeat(np.arange(len(CLASSES)), count)
    np.savez(path, **arrays)
    return path


def pictures(label: int, count: int, side: int = 32) -> np.ndarray:
    """Noise, brighter in one colour for each class."""
    images = np.random.default_rng(label).integers(0, 160, (count, side, side, 3), dtype=np.uint8)
    images[..., label] += 95
    return images
