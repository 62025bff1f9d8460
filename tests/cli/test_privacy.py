"""``fedaf privacy plan`` and ``fedaf privacy ledger``: what they say before and after a run."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedaf.privacy.accountant import Budget, compose, epsilon_of
from fedaf.privacy.ledger import Ledger
from fedaf.privacy.options import PrivacyOptions
from fedaf.protocol import Guarantee
from support.commandline import assert_one_sentence

A, B = "a" * 16, "b" * 16
DIGITS = ["--shape", "1x8x8"]


def spend(folder: Path, release: str, mu: float, **options) -> None:
    make = lambda: {"sums": torch.zeros(2)}  # noqa: E731
    Ledger(folder).obtain(release, mu=mu, make=make, **{"run": "study", "round": 1, "limit": None, **options})


def rows(out: str) -> dict[str, list[str]]:
    """The cells of each row of a printed table, after its first word."""
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}


def test_a_plan_shows_the_noise_of_a_budget(call):
    code, out, err = call("privacy", "plan", "--epsilon", "4", "--counts", "500,5000")
    budget = Budget.of(PrivacyOptions(epsilon=4.0))
    assert (code, err) == (0, "")
    assert "4, 1e-05" in out
    figures = (f"{budget.mu:.4f}", "1.081", f"± {budget.counts_noise:.1f}", f"{budget.replace_one_epsilon:.3f}")
    assert all(figure in out for figure in figures)
    assert "logits" not in out
    assert "rule of thumb" in out


def test_a_plan_says_what_to_expect_for_each_count(call):
    """The digits of the design: sqrt(10 x 64) directions, 0.47 between classes."""
    code, out, _ = call("privacy", "plan", "--epsilon", "1", "--counts", "140,400,4000", *DIGITS)
    noise = Budget.of(PrivacyOptions(epsilon=1.0)).sums_noise
    found = rows(out)
    assert code == 0
    assert found["140"] == [f"{noise * 640**0.5 / (140 * 0.47):.2g}", "expect", "failure"]
    assert found["400"] == [f"{noise * 640**0.5 / (400 * 0.47):.2g}", "noticeable", "loss"]
    assert found["4000"][1:] == ["little", "loss"]
    (warning,) = [line for line in out.splitlines() if line.startswith("WARNING")]
    assert "with 140 samples" in warning
    assert all(word in warning for word in ("epsilon", "ipc", "smaller images", "more data", "with 207 samples"))


def test_a_plan_without_a_hopeless_count_has_no_warning(call):
    assert "WARNING" not in call("privacy", "plan", "--epsilon", "1", "--counts", "4000", *DIGITS)[1]


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        (["--releases", "20"], 20**0.5),
        (["--ipc", "20"], 2**0.5),
        (["--networks", "1"], (32 / 640) ** 0.5),
        (["--shape", "1x4x4"], 0.5),
        (["--shape", "3x8x8"], (50 * 32 / 640) ** 0.5 * 0.47 / 0.19),
        (["--count-share", "0.5"], (0.95 / 0.5) ** 0.5),
        (["--count-share", "0.3", "--knowledge-share", "0.2"], (0.95 / 0.5) ** 0.5),
    ],
)
def test_every_option_of_a_plan_counts(call, more, factor):
    noise = Budget.of(PrivacyOptions(epsilon=1.0)).sums_noise
    out = call("privacy", "plan", "--epsilon", "1", "--counts", "1000", *DIGITS, *more)[1]
    assert rows(out)["1000"][0] == f"{factor * noise * 640**0.5 / (1000 * 0.47):.2g}"
    assert ("logits" in out) == ("--knowledge-share" in more)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--epsilon", "0", "--counts", "5"], ["[FEDAF-CONFIG-VALUE]", "privacy.epsilon is 0"]),
        (["--epsilon", "1", "--counts", "5", "--delta", "2"], ["[FEDAF-CONFIG-VALUE]", "privacy.delta is 2"]),
        (["--epsilon", "1", "--counts", "5", "--count-share", "1"], ["[FEDAF-CONFIG-VALUE]", "privacy.count_share"]),
        (["--epsilon", "1", "--counts", "5,none"], ["[FEDAF-PRIVACY-OPTION]", "--counts", "500,5000"]),
        (["--epsilon", "1", "--counts", "0"], ["[FEDAF-PRIVACY-OPTION]", "--counts is '0'"]),
        (["--epsilon", "1", "--counts", "5", "--shape", "28"], ["[FEDAF-PRIVACY-OPTION]", "'28'", "3x32x32"]),
        (["--counts", "5"], ["[FEDAF-CLI-USAGE]", "--epsilon"]),
    ],
)
def test_a_wrong_plan_is_one_sentence(call, args, words):
    code, _, err = call("privacy", "plan", *args)
    assert_one_sentence(code, err, words)


def test_a_plan_and_a_ledger_need_no_pytorch(tmp_path):
    spend(tmp_path / "site", A, 0.5)
    for args in (["plan", "--epsilon", "4", "--counts", "500"], ["ledger", str(tmp_path / "site")]):
        run = f"import sys; from fedaf.cli.main import app; app(['privacy', *{args!r}], standalone_mode=False)"
        code = f"{run}; print(sorted({{'torch', 'numpy', 'scipy'}} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


def test_a_ledger_shows_every_release_and_what_is_left(call, tmp_path):
    site = tmp_path / "site"
    spend(site, A, 0.3, asked=Guarantee(1.0, 1e-6))
    spend(site, B, 0.4, run="[red]\x1b[2Jhostile", round=7, simulated=True)
    code, out, err = call("privacy", "ledger", site, "--max-epsilon", "4")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    words = " ".join(out.split())
    for word in ("study", "[red]", A[:8], B[:8], "0.3", "0.4", "1, 1e-06", "entries: 2"):
        assert word in words
    assert words.count(" private ") == 1
    assert "NOT PRIVATE: simulated noise from a seed in 1 of 2 releases." in out
    spent, whole = epsilon_of(0.5, 1e-5), Budget.of(PrivacyOptions(epsilon=4.0)).mu
    left = epsilon_of((whole**2 - 0.25) ** 0.5, 1e-5)
    assert f"Spent: epsilon {spent:.4g} at delta 1e-05 (mu 0.5)" in out
    assert f"Left of max_epsilon 4: one run with epsilon {left:.4g}." in out
    assert "Left of max_epsilon 1: nothing." in call("privacy", "ledger", site, "--max-epsilon", "1")[1]
    stricter = call("privacy", "ledger", site, "--delta", "1e-7")[1]
    assert f"Spent: epsilon {epsilon_of(compose(0.3, 0.4), 1e-7):.4g} at delta 1e-07" in stricter


def test_the_ledgers_of_several_clients_are_shown_one_by_one(call, tmp_path):
    for number in (1, 2):
        spend(tmp_path / "run" / "privacy" / f"client-{number}", A, 0.1 * number)
    code, out, _ = call("privacy", "ledger", "run/privacy")
    assert code == 0
    assert [line for line in out.splitlines() if line.endswith(":")] == [
        "run/privacy/client-1:",
        "run/privacy/client-2:",
    ]
    assert "(mu 0.1)" in out
    assert "(mu 0.2)" in out
    assert call("privacy", "ledger", "run")[1].count("Spent: ") == 2


def test_a_folder_without_a_ledger_is_no_error_but_a_missing_or_damaged_one_is(call, tmp_path):
    assert call("privacy", "ledger", tmp_path) == (0, f"There is no release in {tmp_path} or below it.\n", "")
    code, _, err = call("privacy", "ledger", "nowhere")
    assert_one_sentence(code, err, ["[FEDAF-PRIVACY-LEDGER-NOT-FOUND]", "nowhere", "ledger.json"])
    code, _, err = call("privacy", "ledger", tmp_path, "--delta", "0")
    assert_one_sentence(code, err, ["[FEDAF-PRIVACY-OPTION]", "--delta is 0"])
    spend(tmp_path / "site", A, 0.5)
    (tmp_path / "site" / "ledger.json").unlink()
    code, _, err = call("privacy", "ledger", "site")
    assert_one_sentence(code, err, ["[FEDAF-PRIVACY-LEDGER-DAMAGED]", "backup"])
