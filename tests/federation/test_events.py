"""events.jsonl: what happened in a run, once, also after a resume."""

import json
from pathlib import Path

import pytest

import fedaf
from fedaf.errors import BelowQuorum
from fedaf.federation.events import EVENTS, EventReader, EventWriter, replay
from fedaf.federation.observer import EVENT_NAMES, Observer, Observers, RunInfo
from fedaf.federation.run_directory import RunDirectory
from support.errors import raises
from support.small import SMALL, SMALL_FEDAF

TALLY = {**SMALL, "method": "support.tally:Tally"}


class Recorder(Observer):
    """Keeps every call as (name, arguments)."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __getattribute__(self, name: str):
        if not hasattr(Observer, name) or name.startswith("__"):
            return super().__getattribute__(name)
        return lambda *values, **fields: self.calls.append((name, *values, *fields.values()))


def names(directory) -> list[str]:
    return [event["event"] for event in EventReader(directory).read()]


def test_a_run_writes_what_it_tells_its_observer(tmp_path):
    observer, replayed = Recorder(), Recorder()
    fedaf.run(**{**TALLY, "rounds": 2}, out=tmp_path / "run", observer=observer)
    events = EventReader(tmp_path / "run").read()
    for event in events:
        replay(event, replayed, tmp_path / "run")
    told = [call for call in observer.calls if call[0] != "progressed"]
    assert replayed.calls == told
    assert [event["event"] for event in events] == [
        "described",
        "started",
        *["round_started", "phase_started", "phase_started", "round_ended"] * 2,
        "ended",
    ]
    assert [event["time"] for event in events] == sorted(event["time"] for event in events)


def test_shared_images_are_named_by_their_files(tmp_path):
    observer, replayed = Recorder(), Recorder()
    settings = {**SMALL, "rounds": 1, "method": "fedaf", **SMALL_FEDAF}
    fedaf.run(**settings, out=tmp_path / "run", observer=observer)
    (shared,) = [call for call in observer.calls if call[0] == "images_shared"]
    assert shared[1:] == (1, {f"client-{k}": tmp_path / "run" / "condensed" / f"client-{k}.png" for k in range(4)})
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in shared[2].values())
    assert [call[0] for call in observer.calls][-4:] == ["images_shared", "round_ended", "ended", "closed"]
    for event in EventReader(tmp_path / "run").read():
        replay(event, replayed, tmp_path / "run")
    assert shared in replayed.calls


def test_a_failed_run_records_its_error(tmp_path):
    settings = {**TALLY["settings"], "federation.policy": str(tmp_path / "policy.toml")}
    (tmp_path / "policy.toml").write_text('methods = ["fedavg"]')
    with raises("FEDAF-QUORUM"):
        fedaf.run(**{**TALLY, "settings": settings}, out=tmp_path / "run")
    *_, client_failed, failed = EventReader(tmp_path / "run").read()
    assert client_failed["reason"].endswith("[FEDAF-POLICY-METHOD]")
    assert failed["event"] == "failed"
    assert failed["code"] == "FEDAF-QUORUM"
    assert "client-3" in failed["message"]
    replayed = Recorder()
    replay(failed, replayed, tmp_path / "run")
    assert replayed.calls == [("ended",), ("closed", "failed", failed["message"])]


def test_an_interrupted_run_says_so_and_can_go_on(tmp_path):
    class Impatient(Observer):
        def round_ended(self, metrics):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedaf.run(**TALLY, out=tmp_path / "run", observer=Impatient())
    assert names(tmp_path / "run")[-2:] == ["round_ended", "interrupted"]
    fedaf.resume(tmp_path / "run")
    assert names(tmp_path / "run").count("round_ended") == 3
    assert names(tmp_path / "run")[-1] == "ended"


def test_a_directory_records_only_errors_of_fedaf(tmp_path):
    for error, recorded in ((BelowQuorum("too few"), True), (ValueError("a bug"), False)):
        out = tmp_path / type(error).__name__
        with pytest.raises(type(error)), RunDirectory.create(out):
            raise error
        assert (out / EVENTS).exists() == recorded
        RunDirectory.create(out).close()  # a run that failed before it started does not occupy its directory


def test_rewound_events_agree_with_the_metrics(tmp_path):
    writer = EventWriter(tmp_path)
    for round in (1, 2, 3):
        writer.round_started(round)
        if round != 2:  # killed between its checkpoint and its event
            writer.round_ended({"round": round})
    writer.rewind([{"round": 1}, {"round": 2}])
    events = [(e["event"], e.get("round") or e["metrics"]["round"]) for e in EventReader(tmp_path).read()]
    assert events == [("round_started", 1), ("round_ended", 1), ("round_started", 2), ("round_ended", 2)]


def test_a_reader_returns_every_event_once_also_when_the_file_is_rewound(tmp_path):
    reader, writer = EventReader(tmp_path), EventWriter(tmp_path)
    assert reader.read() == []
    writer.round_started(1)
    writer.round_ended({"round": 1})
    writer.round_started(2)
    assert len(reader.read()) == 3
    assert reader.read() == []
    writer.rewind([{"round": 1}])
    assert reader.read() == []
    writer.round_started(2)
    assert [event["round"] for event in reader.read()] == [2]


def test_a_reader_leaves_an_incomplete_line_for_the_next_call(tmp_path):
    line = json.dumps({"time": 1.0, "event": "ended"})
    reader = EventReader(tmp_path)
    (tmp_path / EVENTS).write_text(line[:10])
    assert reader.read() == []
    with open(tmp_path / EVENTS, "a") as file:
        file.write(line[10:] + "\n")
    assert [event["event"] for event in reader.read()] == ["ended"]


def test_observers_are_told_in_order():
    one, two = Recorder(), Recorder()
    both = Observers(one, two)
    both.described(RunInfo("run", "t", Path(), {}, {}, 3))
    both.started(title="t", rounds=3, first_round=1, phases=2, device="cpu")
    both.round_started(1)
    both.phase_started("fit", 4)
    both.progressed("client-0", 1, 2)
    both.client_failed(1, "fit", "client-0", "why")
    both.images_shared(1, {})
    both.round_ended({"round": 1})
    both.ended()
    both.closed("finished", "")
    assert one.calls == two.calls
    assert [call[0] for call in one.calls] == EVENT_NAMES
