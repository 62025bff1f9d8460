"""Observers: several at once; one that raises costs a warning and nothing else."""

import json
import logging

import pytest

import fedaf
from fedaf.errors import BelowQuorum
from fedaf.federation.observer import Observer, Observers, StopRun, ending
from support.errors import raises
from support.observers import Broken, Diary, Stopping
from support.small import SMALL, final_tensors

TALLY = {**SMALL, "method": "support.tally:Tally"}
FEDAVG = {**SMALL, "rounds": 2, "method": "fedavg", "local_epochs": 1}
EVENTS = ("described", "started", "round_started", "phase_started", "progressed", "round_ended", "ended", "closed")


class Raising(Observer):
    """Raises in one event, and counts the events after it."""

    def __init__(self, name: str, error: BaseException) -> None:
        self.later = 0

        def fail(*_: object, **__: object) -> None:
            for each in EVENTS:
                setattr(self, each, self._count)
            raise error

        setattr(self, name, fail)

    def _count(self, *_: object, **__: object) -> None:
        self.later += 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    fedaf.run(**FEDAVG, out=out)
    return out


def numbers(out) -> list[dict]:
    """The lines of ``metrics.jsonl`` without times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def test_an_observer_that_raises_costs_one_warning_and_changes_no_number(undisturbed, tmp_path, caplog):
    other = Observer()
    seen = []
    other.round_ended = lambda metrics: seen.append(metrics["round"])
    with caplog.at_level(logging.WARNING):
        fedaf.run(**FEDAVG, out=tmp_path / "run", observer=[Broken(), other], track=["support.observers:Diary"])
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    for word in ("Broken", "round_ended", "OSError: the disk of the tracker is full", "continues"):
        assert word in warning.getMessage()
    assert numbers(tmp_path / "run") == numbers(undisturbed)
    tensors, expected = final_tensors(tmp_path / "run"), final_tensors(undisturbed)
    assert tensors.keys() == expected.keys()
    assert all(tensor.equal(expected[name]) for name, tensor in tensors.items())
    assert seen == [1, 2]
    assert (tmp_path / "run" / "diary.txt").read_text().splitlines() == [
        "fedavg on digits, 0 rounds done, seed 0",
        *("round 1", "round 2", "finished"),
    ]


@pytest.mark.parametrize("name", EVENTS)
def test_an_observer_is_dropped_whatever_event_it_raises_in(name, tmp_path, caplog):
    observer = Raising(name, LookupError("no such thing"))
    with caplog.at_level(logging.WARNING):
        result = fedaf.run(**{**TALLY, "rounds": 2}, observer=observer)
    assert len(result.curve) == 2
    assert len(caplog.records) == 1
    assert f"its {name} raised LookupError" in caplog.text
    assert observer.later == 0  # it gets no more events


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), StopRun("noon")])
def test_an_observer_can_stop_a_run_on_purpose(error, tmp_path, caplog):
    class After(Observer):
        told = ()

        def closed(self, status, reason):
            self.told = (status, reason)

    after = After()
    with pytest.raises(type(error)):
        fedaf.run(**TALLY, out=tmp_path / "run", observer=[after, Raising("round_ended", error)])
    assert after.told == ("interrupted", "")
    assert not caplog.records
    assert len(fedaf.resume(tmp_path / "run").curve) == 3


def test_what_a_run_depends_on_is_never_dropped():
    both = Observers(Observer(), essential=[Raising("round_started", OSError("disk full"))])
    with pytest.raises(OSError, match="disk full"):
        both.round_started(1)
    outer = Observers(Observers(Stopping()))
    with pytest.raises(StopRun):
        outer.round_ended({"round": 1})


def test_observers_learn_how_a_run_ended(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('methods = ["fedavg"]')
    with pytest.raises(BelowQuorum):
        fedaf.run(
            **{**TALLY, "settings": {**SMALL["settings"], "federation.policy": str(policy)}},
            out=tmp_path / "run",
            observer=Diary(),
        )
    assert (tmp_path / "run" / "diary.txt").read_text().splitlines()[-1].startswith("failed BelowQuorum: ")

    def angry(metrics):
        raise ZeroDivisionError("the caller's own\nmistake")

    with pytest.raises(ZeroDivisionError):
        fedaf.run(**TALLY, out=tmp_path / "own", observer=Diary(), on_round=angry)
    assert (tmp_path / "own" / "diary.txt").read_text().splitlines()[1:] == [
        "round 1",
        "failed ZeroDivisionError: the caller's own mistake",
    ]
    fedaf.resume(tmp_path / "own", observer=Diary(), rounds=2)
    assert (tmp_path / "own" / "diary.txt").read_text().splitlines()[3:] == [
        "support.tally:Tally on digits, 1 rounds done, seed 0",
        *("round 2", "finished"),
    ]


@pytest.mark.parametrize("wrong", [Diary, "tensorboard", [Diary(), print], 5])
def test_what_is_no_observer_is_refused(wrong, tmp_path):
    with raises("FEDAF-OBSERVER-TYPE"):
        fedaf.run(**TALLY, out=tmp_path / "run", observer=wrong)
    assert not (tmp_path / "run").exists()


def test_how_a_run_ends_follows_from_the_error():
    assert ending(None) == ("finished", "")
    assert ending(GeneratorExit()) == ("interrupted", "")
    assert ending(BelowQuorum("2 of 3")) == ("failed", "BelowQuorum: 2 of 3")


def test_the_example_of_an_observer_works(tmp_path, monkeypatch):
    """That of the docstring, which also continues after a resume."""
    lines = (Observer.__doc__ or "").partition("Example:\n")[2].splitlines()
    code = "\n".join(line.strip().removeprefix(">>> ").removeprefix("... ").removeprefix("...") for line in lines)
    source = code.partition("fedaf.run(")[0]
    names: dict = {"fedaf": fedaf}
    exec(source, names)
    out = tmp_path / "run"
    fedaf.run(**TALLY, out=out, observer=names["Csv"](), on_round=lambda metrics: metrics["round"] == 1)
    fedaf.resume(out, observer=names["Csv"]())
    curve = [json.loads(line)["accuracy"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [f"{number},{accuracy}" for number, accuracy in enumerate(curve, 1)]
    assert (out / "accuracy.csv").read_text().splitlines() == ["round,accuracy", *rows]
    assert len(rows) == 3
