"""A site's ledger never forgets what was released: not after a kill, not with two processes, not in a new run."""

import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedaf.privacy.accountant import compose, epsilon_of, mu_of
from fedaf.privacy.ledger import Ledger, Limit
from fedaf.privacy.ledger_file import LEDGER, RELEASES, LedgerEntry, read_entries, write_entries
from fedaf.protocol import Guarantee
from support import TESTS
from support.errors import raises
from support.spend_and_die import EARLIER, MU, RACE_LIMIT, RELEASE

A, B, C = "a" * 16, "b" * 16, "c" * 16
DAMAGED = "FEDAF-PRIVACY-LEDGER-DAMAGED"


class Maker:
    """Draws another release each time it is called, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, torch.Tensor]:
        self.calls += 1
        return {"sums": torch.arange(6).reshape(2, 3) + 100 * self.calls, "counts": torch.tensor([self.calls, 7])}


def forbidden() -> dict[str, torch.Tensor]:
    raise AssertionError("noise was drawn")


def obtain(ledger: Ledger, release: str, make=forbidden, *, mu: float = 0.5, limit: Limit | None = None, **options):
    return ledger.obtain(release, mu=mu, make=make, **{"run": "run", "round": 1, "limit": limit, **options})


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "site" / "privacy")


def script(*args: object) -> str:
    line = [sys.executable, str(TESTS / "support" / "spend_and_die.py"), *map(str, args)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=200, env=env).stdout


def test_a_new_ledger_has_spent_nothing(ledger):
    assert ledger.entries == []
    assert ledger.spent_mu() == ledger.spent_epsilon(1e-5) == 0
    assert not ledger.folder.exists()


def test_a_stored_release_is_returned_again_and_costs_nothing(ledger):
    first = obtain(ledger, A, Maker())
    for again in (ledger, Ledger(ledger.folder)):
        stored = obtain(again, A, run="another run", round=9, limit=Limit(1e-3, 1e-5))
        assert stored.keys() == first.keys()
        assert all(torch.equal(stored[name], first[name]) and stored[name].dtype == first[name].dtype for name in first)
    assert [entry.release for entry in ledger.entries] == [A]
    assert ledger.spent_mu() == 0.5


def test_a_new_run_does_not_reset_what_was_spent(ledger):
    for number, release in enumerate((A, B, C), 1):
        obtain(ledger, release, Maker(), run=f"run {number}", mu=0.3 * number)
    assert [entry.run for entry in ledger.entries] == ["run 1", "run 2", "run 3"]
    assert ledger.spent_mu() == pytest.approx(math.sqrt(0.3**2 + 0.6**2 + 0.9**2))
    assert ledger.spent_epsilon(1e-6) == pytest.approx(epsilon_of(compose(0.3, 0.6, 0.9), 1e-6))


def test_an_entry_records_who_asked_for_what(ledger):
    obtain(ledger, A, Maker(), run="study", round=3, asked=Guarantee(4.0, 1e-6), simulated=True)
    (entry,) = ledger.entries
    assert (entry.run, entry.round, entry.release, entry.mu) == ("study", 3, A, 0.5)
    assert (entry.epsilon, entry.delta, entry.simulated) == (4.0, 1e-6, True)
    assert entry.time.endswith("+00:00")


def test_a_release_over_the_limit_is_refused_before_anything_is_made_or_spent(ledger):
    limit = Limit(2.0, 1e-5)
    whole = mu_of(2.0, 1e-5)
    obtain(ledger, A, Maker(), mu=0.6 * whole, limit=limit)
    before = (ledger.folder / LEDGER).read_bytes()
    with raises("FEDAF-PRIVACY-BUDGET") as refusal:
        obtain(ledger, B, mu=0.81 * whole, limit=limit)
    assert all(word in str(refusal.value) for word in ("spent epsilon 1.1", "costs 1.5", "max_epsilon 2"))
    assert (ledger.folder / LEDGER).read_bytes() == before
    obtain(ledger, B, Maker(), mu=0.8 * whole, limit=limit)  # exactly what is left
    with raises("FEDAF-PRIVACY-BUDGET"):
        obtain(ledger, C, mu=1e-2, limit=limit)
    obtain(ledger, C, Maker(), mu=10.0, limit=Limit(None, 1e-5))


def test_a_failed_release_stays_spent_and_is_charged_again(ledger):
    with pytest.raises(AssertionError, match="noise was drawn"):
        obtain(ledger, A)
    assert ledger.spent_mu() == 0.5
    obtain(ledger, A, Maker())
    assert [entry.release for entry in ledger.entries] == [A, A]
    assert ledger.spent_mu() == pytest.approx(math.sqrt(0.5))


def test_simulated_noise_is_counted_and_never_passes_for_private(ledger):
    obtain(ledger, A, Maker(), simulated=True)
    obtain(ledger, A, simulated=True)
    assert ledger.spent_mu() == 0.5
    with raises("FEDAF-PRIVACY-LEDGER-SIMULATED"):
        obtain(ledger, A)
    obtain(ledger, B, Maker())
    with raises("FEDAF-PRIVACY-LEDGER-SIMULATED"):
        obtain(ledger, B, simulated=True)


@pytest.mark.parametrize("name", ["", "../../etc", "a" * 7, "A" * 16, "a" * 129, f"{A}\n", f"{A}/b", f"{A}.json"])
def test_a_release_id_cannot_name_another_path(ledger, name):
    with pytest.raises(ValueError, match="hexadecimal"):
        obtain(ledger, name)
    assert not ledger.folder.exists()


@pytest.mark.parametrize("mu", [0.0, -1.0, math.inf, math.nan])
def test_a_release_costs_something(ledger, mu):
    with pytest.raises(ValueError, match="mu of a release"):
        obtain(ledger, A, mu=mu)
    assert ledger.entries == []


def test_only_the_owner_may_read_the_ledger(ledger):
    before = os.umask(0)
    try:
        obtain(ledger, A, Maker())
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (ledger.folder, *ledger.folder.rglob("*"))}
    assert modes == {"privacy": 0o700, RELEASES: 0o700, ".lock": 0o600, LEDGER: 0o600, f"{A}.safetensors": 0o600}


def test_a_payment_is_on_the_disk_before_noise_is_drawn(ledger, monkeypatch):
    """The file is synced before it gets its name, and the folder after it."""
    events: list[str] = []
    sync, replace, make = os.fsync, os.replace, Maker()

    def synced(descriptor):
        sync(descriptor)
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")

    def replaced(source, target):
        replace(source, target)
        events.append(f"name {Path(target).name}")

    def made():
        events.append("make")
        return make()

    obtain(ledger, A, make)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    obtain(ledger, B, made)
    payment = [f"sync {LEDGER}.part", f"name {LEDGER}", "sync privacy"]
    release = [f"sync {B}.safetensors.part", f"name {B}.safetensors", f"sync {RELEASES}"]
    assert events == [*payment, "make", *release]


def test_the_folders_of_a_new_ledger_are_on_the_disk_before_its_entries(ledger, monkeypatch):
    synced: list[str] = []
    sync = os.fsync

    def recorded(descriptor):
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    obtain(ledger, A, Maker())
    above = [folder.name for folder in (ledger.folder.parent.parent, ledger.folder.parent, ledger.folder)]
    assert synced[:4] == [*above, f"{LEDGER}.part"]


def refuses(ledger: Ledger) -> bool:
    """Whether both a stored and a new release are refused, without anything being made."""
    for release in (A, C):
        with raises(DAMAGED):
            obtain(ledger, release)
    return True


def test_every_changed_byte_and_every_missing_end_of_the_ledger_is_noticed(ledger):
    obtain(ledger, A, Maker())
    obtain(ledger, B, Maker(), asked=Guarantee(4.0, 1e-5))
    file = ledger.folder / LEDGER
    whole = file.read_bytes()
    changed = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    for content in (*changed, *(whole[:i] for i in range(len(whole)))):
        file.write_bytes(content)
        with raises(DAMAGED):
            read_entries(ledger.folder)
    assert refuses(ledger)
    assert file.read_bytes() == whole[:-1]  # a damaged file is never replaced
    file.write_bytes(whole)
    assert len(ledger.entries) == 2


def test_every_changed_byte_and_every_missing_end_of_a_release_is_noticed(ledger):
    obtain(ledger, A, Maker())
    file = ledger.folder / RELEASES / f"{A}.safetensors"
    whole = file.read_bytes()
    changed = [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    for content in (*changed, *(whole[:i] for i in range(len(whole)))):
        file.write_bytes(content)
        with raises(DAMAGED):
            obtain(ledger, A)
    assert ledger.spent_mu() == 0.5


@pytest.mark.parametrize("kept", [[0, 2], [1, 2], [2], [0, 1], [1, 0, 2], [0, 0, 1, 2], []])
def test_entries_that_are_removed_repeated_or_moved_are_noticed(ledger, kept):
    for release in (A, B, C):
        obtain(ledger, release, Maker())
    entries = ledger.entries
    write_entries(ledger.folder, [entries[i] for i in kept])
    assert refuses(ledger)


def test_a_ledger_that_is_missing_beside_its_releases_is_not_a_new_one(ledger):
    obtain(ledger, A, Maker())
    (ledger.folder / LEDGER).unlink()
    assert refuses(ledger)
    assert not (ledger.folder / LEDGER).exists()


def test_a_release_of_another_ledger_is_noticed(ledger, tmp_path):
    other = Ledger(tmp_path / "other")
    for each in (ledger, other):
        obtain(each, A, Maker(), run=str(each.folder))
    file = f"{RELEASES}/{A}.safetensors"
    (ledger.folder / file).write_bytes((other.folder / file).read_bytes())
    with raises(DAMAGED):
        obtain(ledger, A)


def test_a_chain_depends_on_every_field():
    entry = LedgerEntry(time="t", run="r", round=1, release=A, mu=0.5)
    others = {"time": "u", "run": "s", "round": 2, "release": B, "mu": 0.4, "epsilon": 1.0, "delta": 0.1}
    others["simulated"] = True
    assert {*others, "chain"} == set(LedgerEntry.model_fields)
    chains = {entry.model_copy(update={name: value}).chained(None).chain for name, value in others.items()}
    assert len(chains | {entry.chained(None).chain, entry.chained(entry).chain}) == len(others) + 2


def test_a_process_killed_at_any_step_has_paid_for_what_it_released(tmp_path):
    lines = [json.loads(line) for line in script("kill", tmp_path).splitlines()]
    stages = {(line["earlier"], line["made"], line["used"]) for line in lines}
    assert stages == {(earlier, *rest) for earlier in (0, 1) for rest in ((0, False), (1, False), (1, True))}
    between = 0
    for line in lines:
        ledger, earlier = Ledger(Path(line["folder"])), line["earlier"]
        entries = ledger.entries  # a kill damages nothing
        assert len(entries) in (earlier, earlier + 1)
        assert len(entries) >= earlier + line["made"]
        between += len(entries) > earlier + line["made"]
        stored = (ledger.folder / RELEASES / f"{RELEASE}.safetensors").exists()
        assert stored >= line["used"]
        maker = Maker()
        release = obtain(ledger, RELEASE, maker, mu=MU)
        assert maker.calls == (not stored)
        assert len(ledger.entries) == len(entries) + (not stored)
        assert torch.equal(obtain(ledger, RELEASE)["sums"], release["sums"])
        if line["used"]:
            assert ledger.folder.with_suffix(".used").read_text() == str(release["sums"].tolist())
        if earlier:
            obtain(ledger, EARLIER)
    assert between  # some were killed between the payment and the noise


def test_processes_at_once_never_spend_more_than_the_limit(tmp_path):
    made = json.loads(script("race", tmp_path / "site", 4))
    affordable = math.floor((mu_of(RACE_LIMIT.max_epsilon, RACE_LIMIT.max_delta) / MU) ** 2)
    assert 1 < affordable < 20
    entries = Ledger(tmp_path / "site").entries
    assert [entry.release for entry in entries] == made
    assert len(made) == len(set(made)) == affordable
    assert compose(*(entry.mu for entry in entries)) <= mu_of(RACE_LIMIT.max_epsilon, RACE_LIMIT.max_delta)


def test_what_is_prepared_comes_after_the_check_and_before_the_payment(ledger):
    seen: list[int] = []

    def prepare() -> None:
        seen.append(len(ledger.entries))

    def fails() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        obtain(ledger, A, prepare=fails)
    assert ledger.entries == []
    obtain(ledger, A, Maker(), prepare=prepare)
    obtain(ledger, A, prepare=fails)  # stored
    with raises("FEDAF-PRIVACY-BUDGET"):
        obtain(ledger, B, prepare=fails, limit=Limit(0.1, 1e-5))
    assert seen == [0]
    assert len(ledger.entries) == 1
