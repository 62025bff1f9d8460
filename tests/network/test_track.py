"""Trackers over a real network: the server's app sends the same events as a run in one process."""

import json

import pytest

from support.network.comparison import assert_as_in_one_process, tables, toml
from support.network.loopback import loopback
from support.small import SMALL_CONDENSING
from support.tracked import as_float32, expected, records, scalars, status, tensorboard

pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]


def test_tensorboard_gets_the_rounds_of_a_network_also_after_the_server_was_killed(tmp_path):
    given = tables("fedaf", rounds=2, clients=2, **SMALL_CONDENSING["fedaf"] | {"local_steps": 10})
    given["run"]["track"] = ["tensorboard", "support.observers:Broken"]  # clients must not be asked to load it
    out = tmp_path / "run"
    with loopback(tmp_path / "network", {f"client-{k}": {} for k in range(2)}) as network:
        run = network.submit(toml(given), out)
        network.until(lambda: (out / "LATEST").exists() and (out / "LATEST").read_text() == "round-1", "round 1")
        network.kill_apps("flwr-serverapp")
        network.flwr("stop", run)
        run = network.finish(toml(given), out)
        assert "the observer Broken is dropped: its round_ended raised OSError" in network.said(run)
        assert_as_in_one_process(given, out, network)
        network.kill_apps("flwr-clientapp")
    assert scalars(out) == dict(sorted(as_float32(expected(out)).items()))
    assert records(out) == [1, 2]
    assert status(out) == ["finished"]
    images = tensorboard(out)
    for client in ("client-0", "client-1"):
        *_, last = images.Images(f"condensed/{client}")
        assert last.encoded_image_string == (out / "condensed" / f"{client}.png").read_bytes()
    events = [json.loads(line)["event"] for line in (out / "events.jsonl").read_text().splitlines()]
    assert events.count("round_ended") == events.count("images_shared") == 2
    assert events[-1] == "ended"
