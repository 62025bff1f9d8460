"""``--track`` on the command line."""

import pytest

from fedaf.cli import options
from support import tracked

SMALL = ["--preset", "quick", "--clients", "2", "--alpha", "10", "--set", "model.width=8", "--set", "run.device=cpu"]
RUN = ["run", *SMALL, "--method", "support.tally:Tally", "--rounds", "2", "--out", "run"]


def test_trackers_can_be_repeated_or_separated_by_commas(call, tmp_path):
    code, out, _ = call(*RUN, "--track", "tensorboard,support.observers:Broken", "--track", "support.observers:Diary")
    assert code == 0
    assert "Tracking with tensorboard: tensorboard/ in the run directory" in out
    assert tracked.records(tmp_path / "run") == [1, 2]
    assert (tmp_path / "run" / "diary.txt").read_text().splitlines()[1:] == ["round 1", "round 2", "finished"]


def test_a_run_without_the_flag_has_no_tracker(call, tmp_path):
    assert call(*RUN)[0] == 0
    assert "track = []" in (tmp_path / "run" / "config.toml").read_text()
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_an_observer_can_stop_a_run_and_resume_takes_other_trackers(call, tmp_path):
    code, _, err = call(*RUN, "--track", "support.observers:Stopping,tensorboard")
    assert (code, err) == (130, "fedaf: stopped; continue with: fedaf run --resume run\n")
    code, _, err = call("run", "--resume", "run", "--track", "support.observers:Stopping")
    assert (code, err.splitlines()[-1].partition("continue with: ")[2]) == (
        130,
        "fedaf run --resume run --track support.observers:Stopping",
    )
    assert tracked.records(tmp_path / "run") == [1]
    code, _, _ = call("run", "--resume", "run", "--track", "tensorboard")
    assert code == 0
    assert tracked.records(tmp_path / "run") == [1, 2]


def test_the_command_to_continue_names_the_trackers(tmp_path):
    command = options.resume_command("run", tmp_path, {"track": ["mlflow", "a:B"], "data_dir": None})
    assert command == f"fedaf run --resume {tmp_path} --track mlflow,a:B"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--track", "tensorbord"], "FEDAF-TRACKER-UNKNOWN"),
        (["--track", "support.observers:Needy"], "FEDAF-TRACKER-TYPE"),
        (["--track", "support.nothing:Tracker"], "FEDAF-CUSTOM-LOAD"),
    ],
)
def test_a_wrong_tracker_is_refused_before_anything_is_written(call, tmp_path, arguments, code):
    status, _, err = call(*RUN, *arguments)
    assert status == 2
    assert err.endswith(f"[{code}]\n")
    assert not (tmp_path / "run").exists()


def test_every_run_of_a_comparison_is_tracked(call, tmp_path):
    arguments = ["compare", *SMALL, "--methods", "support.tally:Tally,fedavg", "--set", "method.local_epochs=1"]
    code, out, _ = call(*arguments, "--rounds", "1", "--out", "both", "--track", "tensorboard")
    assert code == 0
    assert "tensorboard --logdir both" in out
    runs = [file.parent for file in (tmp_path / "both").glob("*/tensorboard")]
    assert len(runs) == 2
    assert [tracked.records(run) for run in runs] == [[1], [1]]
