"""Every way for one client to fail, in every phase: it costs that client its reply of that round, and nothing else."""

import json
import re
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from fedaf.client.state import ClientState
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import RoundReport, RoundRules
from fedaf.protocol import BelowQuorum, Key, Outcome, Payload, Request, ServerState, Silent, Tensors
from fedaf.runs.experiment import Experiment
from support.fault_kinds import DEADLINE, IN_ANY_PHASE, IN_PHASE, Fault, fault_of
from support.faults import Damage, Illness, Recording, Unreached, Wire, afflicted
from support.small import Rounds, federation, final_tensors, local, small_experiment

VICTIM, ROUND = "client-1", 2
TINY_FEDAF = {"ipc": 2, "local_steps": 2, "real_batch": 8, "server_epochs": 1}

#: The federations of the matrix, by name: a method, and its options.
METHODS = {
    "fedaf": ("fedaf", {**TINY_FEDAF, "continue_images": True}),
    "fedaf, no client state used": ("fedaf", {**TINY_FEDAF, "continue_images": False}),
    "fedaf-plus": ("fedaf-plus", {**TINY_FEDAF, "server_steps": 2}),
    "fedavg": ("fedavg", {"local_epochs": 1}),
    "tally": ("support.tally:Tally", {}),
    "feddyn": ("feddyn", {"local_epochs": 1}),
    "fedbn": ("fedbn", {"local_epochs": 1}),
    "moon": ("moon", {"local_epochs": 1}),
    "scaffold": ("scaffold", {"local_epochs": 1}),
}


@cache
def experiment(name: str) -> Experiment:
    method, options = METHODS[name]
    return small_experiment(method, **options)


PHASES = [
    ("fedaf", "knowledge"),
    ("fedaf", "condense"),
    ("fedaf, no client state used", "knowledge"),
    ("fedaf, no client state used", "condense"),
    ("fedavg", "fit"),
    ("tally", "count"),
]
#: Averaging with state of clients: what a reply may be is fedavg's, so only faults of each sort, and those after which
#: a client has worked in vain.
WITH_STATE = ("feddyn", "fedbn", "moon", "scaffold")
IN_VAIN = ("raises when done", "silent", "its reply comes a round late", "late")
MATRIX = [
    *((method, phase, kind) for method, phase in PHASES for kind in (*IN_ANY_PHASE, *IN_PHASE[phase])),
    *((method, "fit", kind) for method in WITH_STATE for kind in (*IN_VAIN, "NaN")),
    *(("feddyn", "count", kind) for kind in IN_VAIN),
    *(("fedaf-plus", "condense", kind) for kind in (*IN_VAIN, "NaN", "missing scalar")),
]
#: In one cohort there is no wire to damage, and a deadline is that of all: see the test of it below.
IN_ONE_COHORT = [
    (method, phase, kind)
    for method, phase in PHASES
    for kind in ("raises at once", "raises when done", "NaN", "wrong shape", "extra tensor")
]


class Listening(Observer):
    def __init__(self) -> None:
        self.told: list[tuple] = []

    def client_failed(self, *failure: object) -> None:
        self.told.append(failure)


@dataclass(frozen=True)
class Course:
    """What became of a federation in some rounds after an undisturbed first one, by round."""

    replies: dict[tuple[str, int, str], bytes]
    reports: dict[int, RoundReport]
    models: dict[int, Tensors]
    kept: dict[int, dict[str, ClientState]]
    told: list[tuple]

    def of_others(self, phase: str) -> dict[str, bytes]:
        """What all clients but the victim replied in the round of the fault."""
        return {
            c: data for (c, round, of), data in self.replies.items() if (round, of) == (ROUND, phase) if c != VICTIM
        }


@cache
def after_one_round(name: str, cohort: bool) -> tuple[ServerState, dict, dict]:
    clients = local(experiment(name))
    rounds = Rounds(experiment(name), clients if cohort else Wire(clients))
    rounds.play()
    return rounds.server, rounds.accepted, dict(clients.checkpoint())


def course(
    name: str,
    *,
    cohort: bool,
    fault: Fault | None = None,
    at: tuple[str, int, str] = (VICTIM, ROUND, ""),
    away: bool = False,
    last_round: int = 3,
) -> Course:
    healthy, fault = experiment(name), fault or Fault("")
    clients = local(healthy)
    transport = clients if cohort else Wire(clients, Damage(at, **fault.damage) if fault.damage else None)
    recording = Recording(Unreached(transport, at) if away else transport)
    method = afflicted(healthy.method, Illness(at, **fault.illness)) if fault.illness else healthy.method
    observer = Listening()
    rounds = Rounds(replace(healthy, method=method), recording, fault.rules, observer)
    rounds.server, rounds.accepted, records = after_one_round(name, cohort)
    rounds.accepted = dict(rounds.accepted)
    clients.restore(records)
    found = Course(recording.replies, {}, {}, {}, observer.told)
    for round in range(ROUND, last_round + 1):
        found.reports[round] = rounds.play()
        found.models[round] = rounds.server.model
        found.kept[round] = {n: ClientState.from_tensors(t) for n, t in clients.checkpoint().items()}
    return found


@cache
def undisturbed(name: str, cohort: bool) -> Course:
    return course(name, cohort=cohort)


@cache
def missed(name: str, phase: str, cohort: bool) -> Course:
    """The victim never heard of the phase."""
    return course(name, cohort=cohort, away=True, at=(VICTIM, ROUND, phase))


def committed(state: ClientState, round: int, accepted: int) -> Tensors:
    """What the client works from in ``round``, if the server says that it accepted this one last."""
    return state.opened(Request("test", round, "", accepted, Key(0), Payload())).committed


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def phases_after(name: str, phase: str) -> list[str]:
    names = [p.name for p in experiment(name).method.phases]
    return names[names.index(phase) + 1 :]


def by_default(case: tuple[str, str, str]) -> bool:
    """Whether a case runs by default: every kind of fault with a small method, every rule of a schema, every method."""
    method, phase, kind = case
    if method == "fedaf, no client state used":
        return False
    return method == "tally" or kind == "silent" or (kind in IN_PHASE[phase] and method not in WITH_STATE)


def cases(matrix, by_default=by_default):
    """The cases of a matrix, of which those that do not run by default are slow."""
    return [pytest.param(*case, marks=() if by_default(case) else pytest.mark.slow) for case in matrix]


@pytest.mark.parametrize(("method", "phase", "kind"), cases(MATRIX))
def test_a_fault_costs_that_client_one_round_and_nobody_else_anything(method, phase, kind):
    fault = fault_of(phase, kind)
    found = course(method, cohort=False, fault=fault, at=(VICTIM, ROUND, phase))
    whole, absent = undisturbed(method, cohort=False), missed(method, phase, cohort=False)

    [(client, reason)] = found.reports[ROUND].failures.items()
    assert client == VICTIM
    assert re.match(f"{phase}: .*({fault.reason})", reason)
    assert found.told == [(ROUND, phase, VICTIM, reason.removeprefix(f"{phase}: "))]

    assert found.of_others(phase) == whole.of_others(phase)
    assert len(found.of_others(phase)) == 3
    for later in phases_after(method, phase):
        assert found.of_others(later) == absent.of_others(later)
    assert same(found.models[ROUND], absent.models[ROUND])

    before = committed(ClientState.from_tensors(after_one_round(method, False)[2][VICTIM]), ROUND, accepted=1)
    assert same(committed(found.kept[ROUND][VICTIM], ROUND + 1, accepted=1), before)
    assert bool(before) == (method != "fedavg")

    assert found.reports[ROUND + 1].failures == {}
    assert VICTIM in found.reports[ROUND + 1].accepted
    next_round = {tag: data for tag, data in found.replies.items() if tag[1] == ROUND + 1}
    expected = {tag: data for tag, data in absent.replies.items() if tag[1] == ROUND + 1}
    if (tag := (VICTIM, ROUND + 1, "condense")) in expected:
        next_round[tag], expected[tag] = without_disclosure(next_round[tag]), without_disclosure(expected[tag])
    assert next_round == expected
    assert same(found.models[ROUND + 1], absent.models[ROUND + 1])
    for name, state in found.kept[ROUND + 1].items():
        other = absent.kept[ROUND + 1][name]
        # Images that left the client count as sent, whatever the server made of them.
        assert state.images_sent == other.images_sent or name == VICTIM
        assert same(replace(state, images_sent=other.images_sent).to_tensors(), other.to_tensors())


def without_disclosure(data: bytes) -> bytes:
    """A reply without the client's count of what it sent, which includes replies that were of no use."""
    reply = Payload.decode(data)
    scalars = {name: value for name, value in reply.scalars.items() if not name.startswith("disclosed_")}
    assert len(scalars) == len(reply.scalars) - 2
    return Payload(reply.tensors, scalars).encode()


def assert_nearly(left: bytes, right: bytes) -> None:
    """Equal up to what sums over one client or over a cohort differ by: one grey level in an image."""
    mine, theirs = Payload.decode(left), Payload.decode(right)
    assert mine.tensors.keys() == theirs.tensors.keys()
    for name, values in mine.tensors.items():
        if values.dtype == torch.uint8:
            assert int((values.int() - theirs.tensors[name].int()).abs().max()) <= 1
        else:
            torch.testing.assert_close(values, theirs.tensors[name], rtol=1e-4, atol=1e-4)
    for name in mine.scalars:
        if name.startswith("loss"):
            assert mine.scalars[name] == pytest.approx(theirs.scalars[name], rel=1e-3)


@pytest.mark.parametrize(("method", "phase", "kind"), cases(IN_ONE_COHORT))
def test_in_one_process_too_the_others_reply_as_if_nothing_had_happened(method, phase, kind):
    fault = fault_of(phase, kind)
    found = course(method, cohort=True, fault=fault, at=(VICTIM, ROUND, phase), last_round=ROUND)
    assert re.match(f"{phase}: .*({fault.reason})", found.reports[ROUND].failures[VICTIM])
    references = {phase: undisturbed(method, cohort=True)}
    references |= dict.fromkeys(phases_after(method, phase), missed(method, phase, cohort=True))
    for name, reference in references.items():
        assert found.of_others(name).keys() == reference.of_others(name).keys()
        assert len(found.of_others(name)) == 3
        for client, data in found.of_others(name).items():
            assert_nearly(data, reference.of_others(name)[client])


def test_in_one_process_a_deadline_is_that_of_all_and_who_has_answered_stays():
    """Clients share the device there: the time one takes too long is time those after it do not have."""

    def dawdle(outcome: Outcome) -> Outcome:
        time.sleep(DEADLINE)
        return outcome

    fault = Fault("", illness={"to_outcome": dawdle}, rules=RoundRules(deadline=DEADLINE, quorum=0.5))
    found = course("fedavg", cohort=True, fault=fault, at=(VICTIM, ROUND, "fit"), last_round=ROUND)
    assert found.reports[ROUND].accepted == ["client-0", VICTIM]
    assert set(found.reports[ROUND].failures.values()) == {f"fit: {Silent().reason}"}
    assert found.of_others("fit") == {"client-0": undisturbed("fedavg", cohort=True).of_others("fit")["client-0"]}


OF_EACH_SORT = ("raises at once", "NaN", "silent", "late")
RUNS = [
    *((method, phase, kind) for method, phase in PHASES if "no client" not in method for kind in OF_EACH_SORT),
    *((method, "fit", kind) for method in WITH_STATE for kind in ("NaN", "silent")),
]
RUNS_BY_DEFAULT = [*(("tally", "count", kind) for kind in OF_EACH_SORT if kind != "late"), ("feddyn", "fit", "silent")]


def play(whole, begun):
    """Play all rounds that are left."""
    for _ in whole.play(begun, Observer()):
        pass


def run_with_fault(method, phase, kind, out, quorum):
    """A whole run of clients that keep their own state, with one fault in it; returns those clients too."""
    after_one_round(method, False)  # so that nothing is slow for being the first when a deadline counts
    healthy, fault, at = experiment(method), fault_of(phase, kind), (VICTIM, ROUND, phase)
    ill = afflicted(healthy.method, Illness(at, **fault.illness)) if fault.illness else healthy.method
    clients = local(healthy)
    wire = Wire(clients, Damage(at, **fault.damage) if fault.damage else None)
    rules = replace(fault.rules, quorum=quorum)
    whole = federation(replace(healthy, method=ill), out, wire, rules)
    with closing(whole.directory):
        try:
            play(whole, whole.start(Key(0)))
        except BelowQuorum as stopped:
            return clients, str(stopped)
    return clients, None


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("method", "phase", "kind"), cases(RUNS, RUNS_BY_DEFAULT.__contains__))
def test_the_log_of_a_run_says_who_failed_in_which_round_and_why(method, phase, kind, tmp_path):
    _, stopped = run_with_fault(method, phase, kind, tmp_path, quorum=0.5)
    assert stopped is None
    first, second, third = (m["failures"] for m in metrics(tmp_path))
    assert first == third == {}
    assert second.keys() == {VICTIM}
    assert re.match(f"{phase}: .*({fault_of(phase, kind).reason})", second[VICTIM])


@pytest.fixture(scope="module")
def never_disturbed(tmp_path_factory):
    """The directory of a run that nothing happened to."""
    made = {}

    def make(method):
        if method not in made:
            made[method] = tmp_path_factory.mktemp("whole")
            whole = federation(experiment(method), made[method], Wire(local(experiment(method))))
            with closing(whole.directory):
                play(whole, whole.start(Key(0)))
        return made[method]

    return make


@pytest.mark.parametrize(("method", "phase", "kind"), cases(RUNS, RUNS_BY_DEFAULT.__contains__))
def test_a_run_stopped_below_quorum_goes_on_from_the_last_good_round(method, phase, kind, never_disturbed, tmp_path):
    """The clients have worked in the round that did not count, and keep their own state: it must not count."""
    clients, stopped = run_with_fault(method, phase, kind, tmp_path, quorum=1.0)
    assert re.match(
        rf"round 2, phase {phase}: 3 of 4 .* 4 .*\({VICTIM}: {phase}: .*"
        rf"({fault_of(phase, kind).reason})",
        stopped,
    )
    assert (tmp_path / "LATEST").read_text() == "round-1"
    assert len(metrics(tmp_path)) == 1
    again = federation(experiment(method), tmp_path, Wire(clients))
    with closing(again.directory):
        play(again, again.resume())
    expected, found = final_tensors(never_disturbed(method)), final_tensors(tmp_path)
    assert same(expected, found)
    assert [m["accuracy"] for m in metrics(tmp_path)] == [m["accuracy"] for m in metrics(never_disturbed(method))]
    assert [m["failures"] for m in metrics(tmp_path)] == [{}, {}, {}]
