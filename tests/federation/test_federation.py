"""Quorum, participation, deadlines, staleness, and what a failing client costs."""

import math
import re
import time
from functools import partial

import pytest
import torch

from fedaf.client.state import ClientState
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import RoundRules, participants, play_round
from fedaf.protocol import (
    Failed,
    Key,
    Outcome,
    Payload,
    Replied,
    Request,
    Silent,
    pack,
)
from fedaf.transports.local import LocalTransport
from support.errors import raises
from support.faults import FaultyTransport
from support.small import SMALL_FEDAF, Rounds, local, shards, small_experiment


def fedaf_experiment(**options):
    return small_experiment("fedaf", **{**SMALL_FEDAF, **options})


def silent(*lost):
    """Loses what the named (client, round, phase) answered."""
    return lambda client, request, d: Silent() if (client, request.round, request.phase) in lost else d


def test_participation_asks_a_share_of_clients_and_at_least_one():
    clients = [f"client-{i}" for i in range(10)]
    assert len(participants(clients, 0.3, Key(1))) == 3
    assert len(participants(clients, 0.01, Key(1))) == 1
    assert participants(clients, 1.0, Key(1)) == clients
    drawn = {tuple(participants(clients, 0.3, Key(seed))) for seed in range(20)}
    assert len(drawn) > 10
    assert participants(clients, 0.3, Key(7)) == participants(clients, 0.3, Key(7))


def test_a_round_below_quorum_stops_with_the_reasons_and_leaves_the_state_alone():
    experiment = small_experiment("support.tally:Tally")
    fault = lambda client, request, d: Failed("out of paper") if client != "client-0" else d  # noqa: E731
    rounds = Rounds(experiment, FaultyTransport(local(experiment), fault), RoundRules(quorum=0.5))
    with raises("FEDAF-QUORUM") as stopped:
        rounds.play()
    assert re.search(r"1 of 4 .* 2 .*client-1, client-2, client-3: count: out of paper", str(stopped.value))
    assert rounds.server.round == 0


def test_at_quorum_the_round_counts():
    experiment = small_experiment("support.tally:Tally")
    fault = silent(("client-0", 1, "count"), ("client-1", 1, "count"))
    report = Rounds(experiment, FaultyTransport(local(experiment), fault), RoundRules(quorum=0.5)).play()
    assert report.accepted == ["client-2", "client-3"]


def test_a_reply_lost_after_the_client_finished_is_not_counted_twice():
    experiment = small_experiment("support.tally:Tally")
    rounds = Rounds(experiment, FaultyTransport(local(experiment), silent(("client-1", 2, "count"))))
    for _ in range(4):
        rounds.play()
    assert rounds.server.log["rounds"] == {"client-0": 4, "client-1": 3, "client-2": 4, "client-3": 4}


def test_a_refused_reply_does_not_change_the_clients_state():
    experiment = small_experiment("support.tally:Tally")

    def spoil(client, request, delivery):
        if (client, request.round) != ("client-2", 1):
            return delivery
        return Replied(Payload({"noise": torch.full((3,), math.nan)}, delivery.payload.scalars))

    rounds = Rounds(experiment, FaultyTransport(local(experiment), spoil))
    report = rounds.play()
    assert report.failures["client-2"].endswith("[FEDAF-REPLY-NOT-FINITE]")
    rounds.play()
    assert rounds.server.log["rounds"]["client-2"] == 1
    assert rounds.server.log["rounds"]["client-0"] == 2


def test_a_repeated_round_starts_from_the_state_the_server_accepted():
    """What a resumed server does: it asks for the same round again."""
    experiment = small_experiment("support.tally:Tally")
    rounds = Rounds(experiment)
    rounds.play()
    before, accepted = rounds.server, dict(rounds.accepted)
    rounds.play()
    rounds.server, rounds.accepted = before, accepted
    rounds.play()
    assert set(rounds.server.log["rounds"].values()) == {2}
    rounds.play()
    assert set(rounds.server.log["rounds"].values()) == {3}


def test_state_of_another_run_is_not_taken_over():
    request = Request("one", 1, "count", 0, Key(0), Payload())
    state = ClientState().opened(request).after(request, Outcome(Payload(), state={"x": torch.ones(1)}))
    assert state.opened(Request("one", 2, "count", 1, Key(0), Payload())).committed.keys() == {"x"}
    assert state.opened(Request("two", 2, "count", 1, Key(0), Payload())).committed == {}


def test_the_settled_state_is_that_of_the_round_that_was_accepted():
    first, second = (Request("one", round, "fit", round - 1, Key(0), Payload()) for round in (1, 2))
    state = ClientState().opened(first).after(first, Outcome(Payload(), state={"x": torch.ones(1)}))
    assert state.settled(accepted=1) == {"x": torch.ones(1)}
    later = state.opened(second).after(second, Outcome(Payload(), state={"x": torch.zeros(1)}))
    assert later.settled(accepted=1) == {"x": torch.ones(1)}
    assert later.settled(accepted=2) == {"x": torch.zeros(1)}
    assert ClientState().settled(accepted=0) == {}


def test_client_state_survives_its_disk_form():
    request = Request("one", 3, "condense", 2, Key(0), Payload())
    outcome = Outcome(Payload(), state={"x": torch.ones(2)}, scratch={"w": torch.zeros(1)})
    state = ClientState("one", committed={"x": torch.zeros(2)}).opened(request).after(request, outcome)
    again = ClientState.from_tensors(state.to_tensors())
    assert torch.equal(again.pending["x"], torch.ones(2))
    assert torch.equal(again.committed["x"], torch.zeros(2))
    assert again.scratch.keys() == {"w"}
    assert (again.run, again.pending_round, again.scratch_round) == ("one", 3, 3)
    assert again.between_rounds().scratch == {}


def test_a_client_that_raises_costs_its_own_reply_only():
    """One client's data are broken: the others' images are what they are without it, byte for byte."""
    experiment = fedaf_experiment()
    whole = shards(experiment)
    broken = dict(whole)
    broken["client-1"] = type(whole["client-1"])(
        whole["client-1"].images[:, :, :4], whole["client-1"].labels, whole["client-1"].num_classes
    )
    rounds = Rounds(experiment, LocalTransport(broken, experiment.engine))
    report = rounds.play()
    assert list(report.failures) == ["client-1"]
    assert report.failures["client-1"].startswith("knowledge: ")
    absent = Rounds(experiment, FaultyTransport(local(experiment), silent(("client-1", 1, "knowledge"))))
    absent.play()
    for name in ("client-0", "client-2", "client-3"):
        mine, theirs = rounds.server.memory.condensed[name], absent.server.memory.condensed[name]
        assert torch.equal(mine.images, theirs.images)
    assert all(torch.equal(rounds.server.model[n], absent.server.model[n]) for n in rounds.server.model)


def test_a_client_out_in_one_phase_is_not_asked_in_the_next():
    experiment = fedaf_experiment()
    rounds = Rounds(experiment, FaultyTransport(local(experiment), silent(("client-2", 1, "knowledge"))))
    report = rounds.play()
    assert "client-2" not in report.download["condense"]
    assert "client-2" in rounds.play().download["condense"]


def test_the_last_images_of_a_client_that_is_away_stay_in_use_for_max_staleness_rounds():
    experiment = fedaf_experiment(max_staleness=1, local_steps=1)
    away = [("client-0", round, "knowledge") for round in (2, 3)]
    rounds = Rounds(experiment, FaultyTransport(local(experiment), silent(*away)))
    rounds.play()
    first = rounds.server.memory.condensed["client-0"].images
    rounds.play()
    assert torch.equal(rounds.server.memory.condensed["client-0"].images, first)
    rounds.play()
    assert "client-0" not in rounds.server.memory.condensed
    rounds.play()
    assert rounds.server.memory.condensed["client-0"].seen == 4


def test_the_copy_audit_covers_all_images_of_the_run_and_no_lost_or_repeated_ones():
    experiment = fedaf_experiment(max_staleness=0, local_steps=1)
    away = [("client-0", 3, "knowledge"), ("client-1", 2, "condense")]  # client-1's reply of round 2 is lost
    rounds = Rounds(experiment, FaultyTransport(local(experiment), silent(*away)))
    rounds.play()
    sent = {name: record.images.shape[:2].numel() for name, record in rounds.server.memory.condensed.items()}
    closest = rounds.server.log["copy_audit"]["psnr_max"]
    assert rounds.server.log["copy_audit"]["images"] == sum(sent.values())
    before, accepted = rounds.server, dict(rounds.accepted)
    rounds.play()
    rounds.server, rounds.accepted = before, accepted  # what a resumed server does
    rounds.play()
    second = rounds.server.log["copy_audit"]
    assert second["images"] == 2 * sum(sent.values()) - sent["client-1"]
    rounds.play()
    third = rounds.server.log["copy_audit"]
    assert "client-0" not in rounds.server.memory.condensed
    assert third["images"] == 3 * sum(sent.values()) - sent["client-0"] - sent["client-1"]
    assert third["psnr_max"] >= second["psnr_max"] >= closest


def test_a_deadline_ends_a_phase_between_steps():
    experiment = fedaf_experiment(local_steps=100_000)
    rounds = Rounds(experiment, rules=RoundRules(deadline=1.0))
    started = time.monotonic()
    with raises("FEDAF-QUORUM") as stopped:
        rounds.play()
    assert Silent().reason in str(stopped.value)
    assert time.monotonic() - started < 20


def test_a_client_without_enough_of_any_class_answers_with_empty_arrays():
    experiment = fedaf_experiment()
    own = shards(experiment)["client-0"]
    tiny = type(own)(own.images[:3], own.labels[:3], own.num_classes)
    rounds = Rounds(experiment, LocalTransport({**shards(experiment), "client-0": tiny}, experiment.engine))
    report = rounds.play()
    assert report.failures == {}
    assert rounds.server.memory.condensed["client-0"].images.shape == (0, 5, 1, 8, 8)
    assert report.upload["condense"]["client-0"] < 1600  # its scalars


def test_bytes_are_counted_from_the_payloads_really_sent():
    experiment = fedaf_experiment()
    rounds = Rounds(experiment)
    report = rounds.play()
    for name in report.asked:
        condensed = rounds.server.memory.condensed[name]
        content = condensed.images.numel() + 8 * len(condensed.classes)
        assert content < report.upload["condense"][name] < content + 2000  # the rest is the audit's scalars
    model = sum(t.numel() * t.element_size() for t in rounds.server.model.values())
    assert set(report.download["knowledge"].values()) == {model}


def test_every_client_round_and_phase_has_a_key_of_its_own():
    experiment = fedaf_experiment(local_steps=1)
    seen = []
    transport = FaultyTransport(local(experiment), lambda client, request, d: (seen.append(request.key), d)[1])
    rounds = Rounds(experiment, transport)
    rounds.play()
    rounds.play()
    assert len(seen) == len(set(seen)) == 2 * 2 * 4
    assert rounds.server.key not in seen


def test_a_request_survives_its_wire_form():
    request = Request("run", 3, "fit", 2, Key(7), Payload({"w": torch.ones(2)}, {"a": 1}), seconds=2.5)
    again = Request.decode(request.encode())
    assert (again.run, again.round, again.phase, again.accepted, again.key, again.seconds) == (
        *("run", 3, "fit", 2, Key(7)),
        2.5,
    )
    assert torch.equal(again.ask.tensors["w"], torch.ones(2))
    assert again.ask.scalars == {"a": 1}
    assert Request.decode(Request("run", 1, "fit", 0, Key(7), Payload()).encode()).seconds is None


@pytest.mark.parametrize(
    "header",
    ["", "[]", '{"run": "x"}', '{"run":"x","round":0,"phase":"p","accepted":0,"key":1,"seconds":0.0}'],
)
def test_a_request_with_a_bad_header_is_refused(header):
    with raises("FEDAF-MESSAGE-UNREADABLE" if header == "[]" else "FEDAF-REQUEST-HEADER"):
        Request.decode(pack({}, {"request": header}))


def test_a_server_whose_model_is_no_longer_finite_stops_with_a_sentence():
    experiment = fedaf_experiment(server_lr=1e20)
    rounds = Rounds(experiment)
    with raises("FEDAF-MODEL-NOT-FINITE"):
        rounds.play()
    assert rounds.server.round == 0


def test_one_absurd_reply_costs_that_reply_only():
    experiment = small_experiment("fedavg", local_epochs=1)

    def absurd(client, request, delivery):
        if client != "client-1":
            return delivery
        tensors = {n: t + 3e38 if n.endswith("weight") else t for n, t in delivery.payload.tensors.items()}
        return Replied(Payload(tensors, delivery.payload.scalars))

    report = Rounds(experiment, FaultyTransport(local(experiment), absurd)).play()
    assert list(report.failures) == ["client-1"]


@pytest.mark.parametrize(("quorum", "needed"), [(0.07, 7), (0.28, 28), (0.5, 50), (1.0, 100)])
def test_quorum_is_not_off_by_one_in_floating_point(quorum, needed):
    experiment = small_experiment("support.tally:Tally")
    clients = {f"client-{i:02d}": shards(experiment)["client-0"] for i in range(100)}
    for answering, enough in ((needed, True), (needed - 1, False)):
        fault = lambda client, request, d, n=answering: d if int(client[-2:]) < n else Silent()  # noqa: E731
        play = partial(
            play_round,
            experiment.method.initial(Key(0)),
            method=experiment.method,
            transport=FaultyTransport(LocalTransport(clients, experiment.engine), fault),
            clients=list(clients),
            accepted={},
            run="test",
            rules=RoundRules(quorum=quorum),
            engine=experiment.engine,
            observer=Observer(),
        )
        if enough:
            assert len(play()[1].accepted) == needed
        else:
            with raises("FEDAF-QUORUM"):
                play()
