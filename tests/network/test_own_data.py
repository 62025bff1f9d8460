"""Sites with their own data and policies, and certificates of an existing authority: the server has no data, and trains
with a site that has a folder, one that has an .npz, and one that joins late."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedaf.config.policies import default_policy, policy_toml
from fedaf.deploy.processes import free_ports
from support.network.authority import certify
from support.network.comparison import toml
from support.network.machines import Machines, machines

pytestmark = [pytest.mark.network, pytest.mark.timeout(290)]

CLASSES = ["cat", "dog", "owl"]
RUN = {
    "data": {"name": "none", "shape": [3, 32, 32], "classes": CLASSES},
    "run": {"device": "cpu", "rounds": 2, "threads": 1},
    "model": {"width": 16},
    "federation": {"deadline": 90.0, "min_clients": 2},
    "method": {"name": "fedaf", "ipc": 22, "local_steps": 10, "real_batch": 16, "server_epochs": 4},
}
SITES = ("hospital", "careful", "museum")


@dataclass(frozen=True)
class Played:
    """The output of a run, the server's log, its rounds, and Flower's byte counts. The deployment still runs."""

    here: Machines
    server: Path
    shown: str
    log: str
    rounds: list[dict[str, Any]]
    result: dict[str, Any]
    traffic: dict[str, int]


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Iterator[Played]:
    folder = tmp_path_factory.mktemp("own")
    with machines(folder) as here:
        server = set_up(here)
        here.start("fedaf deploy link", server)
        here.until(lambda: "Uvicorn running" in here.logs(), seconds=60, what="a link")
        keys = "; ".join(f"flwr supernode register keys/{name}.pub link" for name in SITES)
        assert here.do(f". ./env.sh; {keys}", server)[0] == 0
        for name in ("hospital", "careful"):
            here.start("fedaf deploy node", folder / "all" / "sites" / name)
        run = here.start("fedaf deploy run", server)
        state = folder / "all" / "sites" / "hospital" / "state"
        here.until(lambda: list(state.glob("*/*.safetensors")), seconds=120, what="the first phase")
        here.start("fedaf deploy node", folder / "all" / "sites" / "museum")
        shown, err = run.communicate(timeout=200)
        assert (run.returncode, err) == (0, ""), shown + here.logs()
        _, listed, _ = here.do(". ./env.sh; flwr list link --format json", server)
        yield Played(
            here,
            server,
            shown,
            (server / "logs" / "run.log").read_text(),
            [json.loads(line) for line in (server / "run" / "metrics.jsonl").read_text().splitlines()],
            json.loads((server / "run" / "result.json").read_text()),
            json.loads(listed)["runs"][0]["network-traffic"],
        )


def set_up(here: Machines) -> Path:
    """Write the folders with ``deploy init``, and add certificates and data. Returns the folder of the server."""
    (here.folder / "config.toml").write_text(toml(RUN))
    port = free_ports(1)[0]
    names = f"--server 127.0.0.1 --sites {','.join(SITES)}"
    init = f"fedaf deploy init all {names} --port {port} --config config.toml --bring-certificates"
    assert here.do(init)[0] == 0
    server, sites = here.folder / "all" / "server", here.folder / "all" / "sites"
    (server / "link.toml").write_text(f'host = "127.0.0.1"\nport = {port}\n')  # not on all addresses
    certify(server, [server, *(sites / name for name in SITES)])
    photographs(sites / "hospital" / "images", 55)  # where node.toml expects them
    for name in ("careful", "museum"):
        npz(sites / name / "own.npz", 50, 20)
        file = sites / name / "node.toml"
        file.write_text(file.read_text().replace("folder:images", "npz:own.npz"))
    (sites / "careful" / "policy.toml").write_text(policy_toml(default_policy(min_local_steps=1000)))
    return server


def test_a_site_that_came_late_takes_part_in_the_next_round(played):
    assert [m["asked"] for m in played.rounds] == [["careful", "hospital"], ["careful", "hospital", "museum"]]


def test_progress_and_table_say_whose_data_it_was(played):
    assert "fedaf on own data on the network" in played.shown
    assert "own data, 3 clients, 2 rounds, seed 0" in played.shown


def test_a_server_that_asks_beyond_a_sites_policy_is_told_why(played):
    for number, m in enumerate(played.rounds, 1):
        assert list(m["failures"]) == ["careful"]
        assert "min_local_steps 1000" in m["failures"]["careful"]
        for text in (played.shown, played.log):
            (line,) = [line for line in text.splitlines() if f"round {number}: careful" in line]
            assert "min_local_steps 1000" in line
            assert "knowledge" in line


def test_accuracy_is_what_sites_measure_weighed_by_their_test_images(played):
    """The folder lacks a class, and a fifth of its images are held out; the .npz has its own test set."""
    first, second = (m["accuracy_by_client"] for m in played.rounds)
    assert played.rounds[0]["accuracy"] == first["hospital"]
    right = second["hospital"] * 22 + second["museum"] * 60
    assert played.rounds[1]["accuracy"] == pytest.approx(right / 82)
    assert played.result["tested_on"] == "test data of the clients"


def test_little_is_sent_beside_what_is_shared(played):
    """Compared with Flower's count of every byte that nodes sent in this run."""
    payload = sum(sum(sent.values()) for m in played.rounds for sent in m["upload_bytes"].values())
    counted = played.traffic["inbound-bytes"]
    print(f"{payload} bytes of payload, {counted} bytes by Flower's count: {100 * counted / payload - 100:.1f} % more")
    assert payload < counted < 1.05 * payload


def test_what_the_network_cost_is_shown_by_phase(played):
    phases = ("knowledge", "condense", "evaluate")
    for text in (played.shown, played.log):
        assert [line for line in text.splitlines() if all(f"{phase} " in line for phase in phases)]
    for m in played.rounds:
        assert set(m["overhead"]) == {"knowledge", "condense", "evaluate"}


def test_a_run_that_fails_is_told_with_its_reason_and_does_not_end_with_0(played):
    """The run asks for fewer steps than any of the policies allows."""
    config = played.server / "config.toml"
    config.write_text(config.read_text().replace("local_steps = 10", "local_steps = 2"))
    code, _, err = played.here.do("fedaf deploy run -q --out failing", played.server, seconds=100)
    assert code == 1
    assert err.count("\n") == 1, err
    assert "the run ended as finished:failed" in err
    assert "min_local_steps 10" in err
    assert "[FEDAF-QUORUM]" in err


def test_a_site_can_check_its_policy_with_the_command_of_its_page(played):
    for site, code in (("hospital", 0), ("careful", 1)):
        folder = played.here.folder / "all" / "sites" / site
        page = (folder / "README.md").read_text()
        (command,) = [line for line in page.splitlines() if line.startswith("fedaf policy check")]
        if site == "careful":
            command = command.replace("folder:images", "npz:own.npz")
        assert played.here.do(command, folder)[0] == code


def photographs(path: Path, count: int) -> None:
    """Write images of two of the classes, of another size than the run's."""
    for label, name in enumerate(CLASSES[:2]):
        (path / name).mkdir(parents=True)
        for number, pixels in enumerate(pictures(label, count, side=40)):
            Image.fromarray(pixels).save(path / name / f"{number}.png")


def npz(path: Path, train: int, test: int) -> None:
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = np.concatenate([pictures(label, count) for label in range(len(CLASSES))])
        arrays[f"y_{part}"] = np.repeat(np.arange(len(CLASSES)), count)
    np.savez(path, **arrays)


def pictures(label: int, count: int, side: int = 32) -> np.ndarray:
    """Noise, brighter in one colour for each class."""
    images = np.random.default_rng(label).integers(0, 160, (count, side, side, 3), dtype=np.uint8)
    images[..., label] += 95
    return images
