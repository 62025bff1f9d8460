"""A client's states on its own disk."""

import os
import threading
import time

import torch

from fedaf.client.state import UNKNOWN_CLASS, ClientState
from fedaf.client.state_folder import StateFolder
from fedaf.protocol import Key, Outcome, Payload, Policy, Request, pack
from support.errors import raises


def state(run: str, value: float, sent: dict[int, int] | None = None) -> ClientState:
    return ClientState(run=run, committed={"h": torch.tensor([value])}, images_sent=sent or {})


def test_each_run_has_a_state_of_its_own(tmp_path):
    folder = StateFolder(tmp_path)
    folder.write(state("one", 1.0))
    folder.write(state("two", 2.0))
    assert folder.read("one").committed["h"].item() == 1
    assert folder.read("two").committed["h"].item() == 2
    assert folder.read("three") == ClientState()


def test_images_are_counted_over_all_runs(tmp_path):
    folder = StateFolder(tmp_path)
    folder.write(state("one", 1.0, sent={0: 50, 7: 5}))
    folder.write(state("two", 1.0, sent={0: 60, 3: 10, 7: 5}))
    for run in ("one", "two", "three"):
        assert folder.read(run).images_sent == {0: 60, 3: 10, 7: 5}


def test_a_state_of_the_older_form_has_a_total_that_still_counts(tmp_path):
    folder = StateFolder(tmp_path)
    tensors = {**state("old", 1.0).to_tensors(), "images_sent": torch.tensor(80)}
    folder._file("old").write_bytes(pack(tensors))
    assert folder.read("old").committed["h"].item() == 1
    opened = folder.read("new").opened(Request("new", 1, "condense", 0, Key(1), Payload()))
    assert opened.images_sent == {UNKNOWN_CLASS: 80}
    policy, images, counts = Policy(methods=[], max_images=100), {0: 10, 1: 10}, [30, 30]
    assert policy.allowance(images, counts, opened.images_sent) == images
    folder.write(opened.after(Request("new", 1, "condense", 0, Key(1), Payload()), Outcome(Payload(), images=images)))
    after = folder.read("third").images_sent
    assert after == {UNKNOWN_CLASS: 80, 0: 10, 1: 10}
    assert policy.allowance(images, counts, after) == {}
    assert policy.allowance(images, counts, {0: 10, 1: 10}) == images


def test_what_earlier_runs_sent_limits_later_ones(tmp_path):
    folder = StateFolder(tmp_path)
    policy = Policy(methods=[], max_images_per_sample=1.0, max_total_images_per_sample=1.0)
    sent = []
    for run in ("one", "two", "three", "four"):
        request = Request(run, 1, "condense", 0, Key(1), Payload())
        opened = folder.read(run).opened(request)
        images = policy.allowance({0: 10, 1: 10}, [30, 15], opened.images_sent)
        folder.write(opened.after(request, Outcome(Payload(), images=images)))
        sent.append(images)
    assert sent == [{0: 10, 1: 10}, {0: 10}, {0: 10}, {}]
    assert folder.read("five").images_sent == {0: 30, 1: 10}


def test_a_name_from_the_server_leads_nowhere(tmp_path):
    (tmp_path / "states").mkdir()
    StateFolder(tmp_path / "states").write(state("../../escape", 1.0))
    assert [path.name for path in tmp_path.iterdir()] == ["states"]
    assert StateFolder(tmp_path / "states").read("../../escape").run == "../../escape"


def test_runs_of_long_ago_are_forgotten_but_not_the_count(tmp_path):
    folder = StateFolder(tmp_path)
    for number in range(25):
        folder.write(state(f"run-{number}", 1.0, sent={0: number}))
        os.utime(folder._file(f"run-{number}"), ns=(0, number))
    folder.write(state("last", 1.0, sent={0: 25}))
    assert len(list(tmp_path.glob("*.safetensors"))) == 20
    assert folder.read("run-0").committed == {}
    assert folder.read("run-24").committed
    assert folder.read("new").images_sent == {0: 25}


def test_a_damaged_state_is_named_whichever_run_asks(tmp_path):
    folder = StateFolder(tmp_path)
    folder.write(state("one", 1.0))
    folder._file("one").write_bytes(b"x" * 40)
    for run in ("one", "two"):
        with raises("FEDAF-CLIENT-STATE-DAMAGED") as caught:
            folder.read(run)
        assert str(folder._file("one")) in str(caught.value)


def test_one_process_waits_for_another_and_gives_up_in_time(tmp_path):
    folder, entered, done = StateFolder(tmp_path), threading.Event(), threading.Event()

    def work() -> None:
        with folder.locked(seconds=None):
            entered.set()
            time.sleep(0.6)
            done.set()

    other = threading.Thread(target=work)
    other.start()
    entered.wait()
    with raises("FEDAF-CLIENT-BUSY"), folder.locked(seconds=0.1):
        pass
    with folder.locked(seconds=5):
        assert done.is_set()
    other.join()
