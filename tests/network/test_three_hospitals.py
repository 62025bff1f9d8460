"""``examples/three_hospitals.sh``: from folders of images to a prediction, over Flower and TLS, and nothing is left."""

import json
import re
import signal

import pytest

from support.examples import EXAMPLES
from support.network.machines import end_of, machines

pytestmark = [pytest.mark.network, pytest.mark.timeout(290)]

SCRIPT = EXAMPLES / "three_hospitals.sh"


def test_three_hospitals_train_one_model_and_use_it(tmp_path):
    with machines(tmp_path) as here:  # asserts that no process is left and that none connected beyond loopback
        here.environment |= {"ROUNDS": "2", "STEPS": "20", "OMP_NUM_THREADS": "1"}
        code, out, err = here.do(f"{SCRIPT} hospitals", seconds=280)
        assert code == 0, out + err + here.logs()
        assert here.processes() == {}
    run = tmp_path / "hospitals" / "deployment" / "server" / "run"
    result = json.loads((run / "result.json").read_text())
    assert result["clients"] == 3
    rounds = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [sorted(m["asked"]) for m in rounds] == [["hospital-a", "hospital-b", "hospital-c"]] * 2
    assert all(m["failures"] == {} for m in rounds)
    assert rounds[-1]["accuracy"] > 30
    predicted = re.findall(r"\d+-is-(\d)\.png\s+(\d)", out)
    assert len(predicted) == 20
    assert sum(label == name for label, name in predicted) >= 6


def test_stopped_in_the_middle_it_leaves_no_process_and_no_folder(tmp_path):
    with machines(tmp_path) as here:
        here.environment["ROUNDS"] = "50"
        running = here.start(str(SCRIPT))
        here.until(here.works, seconds=200, what="a client at work")
        running.send_signal(signal.SIGTERM)
        code, _, err = end_of(running, seconds=60)
        assert code == 143, err
        here.until(lambda: not here.processes(), seconds=30, what="the end of all processes")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tmp.")]


def test_a_folder_in_use_is_refused(tmp_path):
    with machines(tmp_path) as here:
        (tmp_path / "used").mkdir()
        code, _, err = here.do(f"{SCRIPT} used; exit $?")
        assert code == 2
        assert "name a new folder" in err
        here.do("fedaf --version")  # the block expects at least one watched program
