"""``fedaf deploy demo`` runs a whole deployment and leaves no process behind."""

import json
import re
import signal
import time
from collections.abc import Iterator

import pytest

from support.network.machines import Machines, end_of, machines

pytest.importorskip("flwr", reason="flwr, the network transport, is not installed")
pytestmark = [pytest.mark.network, pytest.mark.timeout(290)]

SMALL = "--clients 2 --rounds 2 --set model.width=16 --set method.local_steps=10 --set method.server_epochs=4"


@pytest.fixture(scope="module", autouse=True)
def killed(tmp_path_factory) -> Iterator[Machines]:
    """A demo that was killed in the middle; its programs have the time of the other tests to notice."""
    with machines(tmp_path_factory.mktemp("killed")) as here:
        program = here.start(f"fedaf deploy demo {SMALL}")
        here.until(here.works, seconds=120, what="a client works")
        program.kill()
        program.communicate()
        yield here


def test_the_demo_runs_prints_its_table_and_leaves_what_was_asked_for(tmp_path):
    with machines(tmp_path) as here:
        code, out, err = here.do(f"fedaf deploy demo {SMALL} -v --keep kept", seconds=280)
        assert code == 0, out + err + here.logs()
        assert all(re.match(r" +[0-9.]+ s: the |.* s: PyTorch ", line) for line in err.splitlines()), err
        assert not here.processes()
    for line in ("client-0", "round 1: knowledge, 2 clients", "round 2: condense, 2 clients", "round 2/2: accuracy"):
        assert line in out
    assert "digits, 2 clients, Dirichlet 0.5, 2 rounds" in out
    run = tmp_path / "kept" / "run"
    result = json.loads((run / "result.json").read_text())
    assert (result["rounds"], result["clients"]) == (2, 2)
    assert f"{result['best_accuracy']:.2f}" in out
    assert not [m for m in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if m["failures"]]
    assert (run / "curves.png").is_file()


def test_ctrl_c_ends_everything_the_demo_started(tmp_path):
    with machines(tmp_path) as here:
        program = here.start(f"fedaf deploy demo {SMALL}")
        here.until(here.works, seconds=120, what="a client works")
        began = time.monotonic()
        program.send_signal(signal.SIGINT)
        code, _, err = end_of(program, seconds=30)
        assert (code, err.count("\n")) == (130, 1)
        assert err.startswith("fedaf: stopped; ")
        assert time.monotonic() - began < 20
        assert not here.processes()
    assert not list(tmp_path.glob("fedaf-demo-*"))


def test_nothing_outlives_a_demo_that_was_killed(killed):
    killed.until(lambda: not killed.processes(), seconds=90, what="the end of all that it started")
