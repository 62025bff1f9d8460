"""The transport over Flower and the app of its clients, with no network between them."""

import logging
import re
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="flwr, the network transport, is not installed")

from flwr.app import Error, Message, RecordDict

from fedaf import config as configuration
from fedaf.federation.rounds import RoundRules
from fedaf.protocol import Key, Payload, Request, Silent
from fedaf.runs.condense import export_condensed
from fedaf.runs.experiment import prepare
from fedaf.runs.network import play
from fedaf.transports.flower import nodes
from fedaf.transports.flower.transport import FlowerTransport
from fedaf.transports.flower.wire import HELLO, PHASE, PROTOCOL_VERSION, from_records, to_records
from support.direct_grid import DirectGrid, node
from support.errors import raises
from support.small import SMALL_CONDENSING, OneByOne, Rounds, local
from support.tiny import AVERAGING

QUICK: dict[str, dict[str, Any]] = {
    **{name: {**options, "local_steps": 10} for name, options in SMALL_CONDENSING.items()},
    **{name: {"local_epochs": 1} for name in AVERAGING},
}


def tables(method: str = "fedavg", **options: Any) -> dict[str, Any]:
    return {
        "data": {"name": "digits"},
        "run": {"device": "cpu", "rounds": 2},
        "model": {"width": 8},
        "partition": {"kind": "iid", "clients": 2},
        "method": {"name": method, **QUICK.get(method, {}), **options},
    }


def grid_of(tmp_path, given: dict[str, Any] | None = None) -> DirectGrid:
    config = configuration.build(given or tables()).to_toml()
    return DirectGrid(config, {10 + k: node(tmp_path, k) for k in range(2)})


def over(grid: DirectGrid, *, min_clients: int = 2, wait: float = 5.0) -> FlowerTransport:
    return FlowerTransport(grid, min_clients=min_clients, wait=wait)  # type: ignore[arg-type]


def rounds_over(grid: DirectGrid, given: dict[str, Any] | None = None) -> Rounds:
    experiment = prepare(configuration.build(given or tables()))
    transport = over(grid)
    assert list(transport.clients()) == ["client-0", "client-1"]
    return Rounds(experiment, transport, RoundRules(quorum=0.5, deadline=30.0))


@pytest.mark.parametrize("method", QUICK)
def test_every_method_computes_over_flower_what_it_computes_in_one_process(method, tmp_path):
    given = tables(method)
    networked = rounds_over(grid_of(tmp_path, given), given)
    alone = Rounds(networked.experiment, OneByOne(local(networked.experiment)))
    for _ in range(2):
        assert networked.play().failures == {}
        alone.play()
    assert networked.accepted == alone.accepted
    for name, tensor in alone.server.model.items():
        assert torch.equal(networked.server.model[name], tensor), name


def test_a_reply_tells_what_its_time_was_spent_on(tmp_path):
    report = rounds_over(grid_of(tmp_path)).play()
    overhead = report.overhead["fit"]
    assert set(overhead) == {"all", "import", "data", "model"}
    assert 0 < overhead["data"] < overhead["all"] < report.seconds["fit"]
    assert set(report.client_seconds["fit"]) == set(report.asked)
    assert all(overhead["data"] < seconds < report.seconds["fit"] for seconds in report.client_seconds["fit"].values())


def test_a_node_s_policy_decides_whether_its_images_are_published(tmp_path):
    policy = tmp_path / "open.toml"
    policy.write_text("allow_publication = true\n")
    given = tables("feddm", local_steps=10)
    config = configuration.build(given).to_toml()
    answers = {"open": {"policy": str(policy)}, "default": {}}
    for number, (name, of_second) in enumerate(answers.items()):
        nodes_ = {10: node(tmp_path / name, 0, policy=str(policy)), 11: node(tmp_path / name, 1, **of_second)}
        grid, out = DirectGrid(config, nodes_), tmp_path / f"run{number}"
        play(config, str(out), partial(over, grid))
        if name == "open":
            assert set(export_condensed(out)[1].condensed.clients) == {"client-0", "client-1"}
            continue
        with raises("FEDAF-EXPORT-PUBLICATION") as refused:
            export_condensed(out)
        assert "client-1 " in str(refused.value)
        assert "client-0" not in str(refused.value)


def test_a_node_that_does_not_say_forbids_publication(tmp_path):
    policy = tmp_path / "open.toml"
    policy.write_text("allow_publication = true\n")
    given = tables("feddm", local_steps=10)
    grid = DirectGrid(
        configuration.build(given).to_toml(), {10 + k: node(tmp_path, k, policy=str(policy)) for k in (0, 1)}
    )
    assert rounds_over(grid, given).play().publishable == {"client-0": True, "client-1": True}

    def silent(message: Message, records: RecordDict) -> RecordDict:
        records["facts"].pop("publishable", None)  # type: ignore[union-attr]
        return records

    grid.spoil = silent
    assert rounds_over(grid, given).play().publishable == {"client-0": False, "client-1": False}


def test_only_the_log_of_a_client_says_how_many_samples_it_leaves_out(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    given = tables("feddm", min_samples=72)  # of about 72 samples of each class
    rounds = rounds_over(grid_of(tmp_path, given), given)
    for _ in range(2):
        assert rounds.play().failures == {}
    said = [message for message in caplog.messages if "out of condensation" in message]
    assert len(said) == 2  # one line for each client, in round 1
    assert all(message.startswith("feddm leaves ") and "method.min_samples" in message for message in said)
    assert "condensation" not in str(rounds.server.log)


def test_saying_who_one_is_does_not_load_pytorch(tmp_path):
    code = f"""
import sys
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
from fedaf.deploy.apps import client
from fedaf.transports.flower.wire import HELLO, to_records
message = Message(to_records(), 1, HELLO)
message.metadata.__dict__["_message_id"] = "1"
reply = client(message, Context(1, 1, {node(tmp_path, 0)!r}, RecordDict(), {{}}))
print(reply.content["facts"]["client"], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["client-0", "False"]


def test_another_version_of_the_protocol_is_refused_by_the_client_with_both_numbers(tmp_path):
    grid = grid_of(tmp_path)
    for kind in (HELLO, PHASE):
        message = Message(to_records(protocol=PROTOCOL_VERSION + 1), 10, kind)
        facts, _ = from_records(grid.answer(message), sender="client-0")
        assert "[FEDAF-MESSAGE-VERSION]" in str(facts["failure"])
        assert f"the server uses protocol version {PROTOCOL_VERSION + 1}" in str(facts["failure"])
        assert f"version {PROTOCOL_VERSION} " in str(facts["failure"])


def test_another_version_of_the_protocol_is_refused_by_the_server_with_both_numbers(tmp_path, caplog):
    grid = grid_of(tmp_path)
    grid.spoil = lambda message, records: to_records(protocol=3, version="9.9")
    with raises("FEDAF-QUORUM-CLIENTS") as stopped:
        over(grid, wait=0.5).clients()
    assert re.search("0 clients.* 0.5 s .none.*federation.min_clients is 2", str(stopped.value))
    assert re.search(rf"version 3 .fedaf 9.9.*version {PROTOCOL_VERSION} .*FEDAF-MESSAGE-VERSION", caplog.text)


def test_another_version_of_the_package_is_a_warning_that_comes_once(caplog):
    for _ in range(2):
        from_records(to_records(version="0.0.7"), sender="an old client")
    assert caplog.text.count("an old client has fedaf 0.0.7") == 1


@pytest.mark.parametrize("records", [RecordDict(), to_records(run="other", round=1, phase="fit"), to_records(b"junk")])
def test_what_is_no_reply_to_this_round_is_dropped(records, tmp_path):
    grid = grid_of(tmp_path)
    rounds = rounds_over(grid)
    grid.spoil = lambda message, found: records if message.metadata.dst_node_id == 11 else found
    report = rounds.play()
    assert list(report.failures) == ["client-1"]
    assert report.accepted == ["client-0"]


def test_the_reply_of_an_earlier_round_does_not_count_for_this_one(tmp_path):
    grid = grid_of(tmp_path)
    rounds = rounds_over(grid)
    kept: list[RecordDict] = []
    grid.spoil = lambda message, found: (kept.append(found), found)[1]
    rounds.play()
    grid.spoil = lambda message, found: kept[1] if message.metadata.dst_node_id == 11 else found
    [(client, reason)] = rounds.play().failures.items()
    assert client == "client-1"
    assert reason.startswith("fit: ")
    assert reason.endswith("[FEDAF-REPLY-STALE]")


def test_who_does_not_answer_in_time_is_silent_and_an_error_of_flowers_is_a_reason(tmp_path):
    grid = grid_of(tmp_path)
    rounds = rounds_over(grid)
    rounds.rules = RoundRules(quorum=0.5, deadline=1.0)
    grid.spoil = lambda message, found: None if message.metadata.dst_node_id == 11 else found
    assert rounds.play().failures == {"client-1": f"fit: {Silent().reason}"}

    gone = Error(5, "node is gone")
    grid.spoil = lambda message, found: gone if message.metadata.dst_node_id == 11 else found
    assert rounds.play().failures == {"client-1": "fit: Flower error 5: node is gone [FEDAF-CLIENT-GONE]"}


def test_a_request_that_expires_while_replies_are_pulled_is_silence_and_no_error(tmp_path, monkeypatch):
    grid = grid_of(tmp_path)
    rounds, pull = rounds_over(grid), grid.pull_messages
    rounds.rules = RoundRules(quorum=0.5, deadline=1.0)
    expired = Error(3, "message unavailable")
    grid.spoil = lambda message, found: expired if message.metadata.dst_node_id == 11 else found

    def pull_late(ids):
        time.sleep(1.2)
        return pull(ids)

    monkeypatch.setattr(grid, "pull_messages", pull_late)
    assert rounds.play().failures == {"client-1": f"fit: {Silent().reason}"}


def test_a_client_id_belongs_to_who_first_had_it_and_a_node_that_came_back_takes_its_place(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    grid = grid_of(tmp_path)
    transport = over(grid)
    assert transport.clients() == ["client-0", "client-1"]
    grid.nodes[20] = node(tmp_path / "elsewhere", 1)
    grid.online.add(20)
    assert transport.clients() == ["client-0", "client-1"]
    assert re.search("node 20 does not take part: .*'client-1'.* node 11.*FEDAF-NODE-CLIENT-ID", caplog.text)
    assert transport._nodes.node_of("client-1") == 11
    grid.online -= {11, 20}
    grid.nodes[22] = node(tmp_path / "elsewhere", 1)  # while the client itself is away
    grid.online |= {22}
    assert transport._nodes.clients() == ["client-0"]
    grid.online -= {22}
    grid.online |= {11}

    grid.nodes[21] = node(tmp_path, 1)  # with the state of client-1, while its former node still seems to be there
    grid.online.add(21)
    assert transport.clients() == ["client-0", "client-1"]
    assert transport._nodes.node_of("client-1") == 21


@pytest.mark.parametrize("name", ["", "../a", "a\0b", "a\x1b[2J", "a" * 65])
def test_a_name_that_could_not_be_a_file_is_refused_by_the_server(name, tmp_path, caplog):
    grid = grid_of(tmp_path)
    grid.spoil = lambda message, found: to_records(client=name) if message.metadata.dst_node_id == 11 else found
    assert over(grid, min_clients=1).clients() == ["client-0"]
    assert f"node 11 does not take part: {name!r:.80}" in caplog.text
    assert "[FEDAF-NODE-CLIENT-ID]" in caplog.text


def test_a_node_that_leaves_before_it_said_who_it_is_is_no_trouble(tmp_path):
    grid = grid_of(tmp_path)
    pull, grid.spoil = grid.pull_messages, lambda message, found: Error(5, "node is gone")
    grid.pull_messages = lambda ids: []
    registered = nodes.Nodes(grid)
    assert registered.clients() == []
    assert registered.expecting()
    grid.online, grid.pull_messages = set(), pull
    assert registered.clients() == []
    assert not registered.expecting()


def test_a_node_answers_for_nobody_else(tmp_path):
    records = to_records(client="client-1")
    facts, _ = from_records(grid_of(tmp_path).answer(Message(records, 10, PHASE)), sender="client-0")
    assert "[FEDAF-REQUEST-CLIENT]" in str(facts["failure"])
    assert "'client-1'" in str(facts["failure"])
    assert "'client-0'" in str(facts["failure"])


def test_a_node_that_was_refused_is_asked_again_after_a_while(tmp_path, monkeypatch):
    grid = grid_of(tmp_path)
    data = grid.nodes[11].pop("data")
    transport = over(grid, min_clients=1)
    assert transport.clients() == ["client-0"]
    grid.nodes[11]["data"] = data
    assert transport.clients() == ["client-0"]
    monkeypatch.setattr(nodes, "_AGAIN", 0.0)
    transport.clients()  # asks, and does not wait for it
    assert transport.clients() == ["client-0", "client-1"]


def test_a_late_joiner_is_asked_in_the_next_round_and_one_who_left_is_not(tmp_path):
    grid = grid_of(tmp_path)
    grid.online = {10}
    transport = over(grid, min_clients=1)
    assert transport.clients() == ["client-0"]
    grid.online = {10, 11}
    assert transport.clients() == ["client-0", "client-1"]
    grid.online = {11}
    assert transport.clients() == ["client-1"]


def test_a_round_waits_for_enough_clients(tmp_path):
    grid = grid_of(tmp_path)
    grid.online = {10}
    threading.Timer(0.5, lambda: grid.online.add(11)).start()
    assert over(grid, wait=10.0).clients() == ["client-0", "client-1"]


def test_a_node_that_is_set_up_wrong_says_why(tmp_path, caplog):
    grid = grid_of(tmp_path)
    del grid.nodes[11]["data"]
    assert over(grid, min_clients=1).clients() == ["client-0"]
    assert re.search("node 11 does not take part: .*'data'.*FEDAF-NODE-CONFIG", caplog.text)


def test_code_that_the_owner_of_a_node_did_not_name_is_not_loaded(tmp_path, monkeypatch):
    (tmp_path / "evil_for_test.py").write_text("raise SystemExit('loaded')")
    monkeypatch.syspath_prepend(tmp_path)
    grid = grid_of(tmp_path)
    for table, words in (
        ('[method]\nname = "evil_for_test:Method"', "evil_for_test:Method [FEDAF-POLICY-METHOD]"),
        ('[model]\nname = "evil_for_test:make"', "evil_for_test:make [FEDAF-POLICY-MODEL]"),
    ):
        grid.config = table
        facts, _ = from_records(grid.answer(Message(request(), 10, PHASE)), sender="client-0")
        assert all(word in str(facts["failure"]) for word in words.split())


def test_a_server_that_asks_beyond_the_policy_is_refused(tmp_path):
    given = tables("fedaf", local_steps=9)
    grid = grid_of(tmp_path, given)
    with raises("FEDAF-QUORUM") as stopped:
        rounds_over(grid, given).play()
    assert re.search(r"\b9 .*min_local_steps 10.*FEDAF-POLICY-STEPS", str(stopped.value))


def test_bytes_that_are_no_request_are_refused(tmp_path):
    facts, _ = from_records(
        grid_of(tmp_path).answer(Message(to_records(b"junk", client="client-0"), 10, PHASE)), sender="client-0"
    )
    assert "[FEDAF-MESSAGE-UNREADABLE]" in str(facts["failure"])
    with raises("FEDAF-MESSAGE-FOREIGN"):
        from_records(RecordDict(), sender="client-0")


def request() -> RecordDict:
    return to_records(Request("run", 1, "fit", 0, Key(1), Payload()).encode(), client="client-0")
