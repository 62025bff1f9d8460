"""``fedaf --help`` and ``fedaf run``: complete help, and a run directory with everything that is documented."""

import json
import re
import resource
import shutil
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path

import pytest
import typer
from PIL import Image

import fedaf
from fedaf.cli import main as cli
from fedaf.config import build, describe
from support.commandline import SMALL, TINY, assert_one_sentence, command
from support.errors import raises

COMMON = [
    *("--dataset", "--data-dir", "--preset", "--alpha", "--clients", "--rounds", "--ipc", "--local-steps"),
    *("--participation", "--model", "--seed", "--device", "--out", "--resume", "--set"),
    *("--verbose", "--quiet", "-v", "-q"),
]


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ([], ["run", "compare", "--version"]),
        (["run"], [*COMMON, "--method"]),
        (["compare"], [*COMMON, "--methods"]),
    ],
    ids=["fedaf", "run", "compare"],
)
def test_help_names_every_flag(call, args, names):
    code, out, err = call(*args, "--help")
    assert (code, err) == (0, "")
    words = re.sub(r"\x1b\[[0-9;]*m", "", out).replace("│", " ").replace(",", " ").split()
    parsed = typer.main.get_command(cli.app)
    if not args:
        names = [*names, *parsed.commands]
    else:
        parsed = parsed.commands[args[0]]
        names = [*names, *(opt for param in parsed.params for opt in param.opts if opt.startswith("--"))]
    assert set(names) <= set(words)


def test_every_option_of_every_command_is_described_once():
    groups = [typer.main.get_command(cli.app)]
    for group in groups:
        for name, found in group.commands.items():
            if hasattr(found, "commands"):
                groups.append(found)
                continue
            assert "Args:" not in found.help, name
            assert all(param.help for param in found.params), name
            flags = [opt for param in found.params for opt in param.opts]
            assert len(flags) == len(set(flags)), name
    assert {group.name for group in groups} == {"fedaf", "data", "policy", "privacy", "deploy"}


def test_help_lists_commands_and_groups_in_the_order_of_need(call):
    shown = [line.split()[1] for line in call("--help")[1].splitlines() if line.startswith("│ ") and line[2].isalpha()]
    using = ["sweep", "report", "condense", "predict", "evaluate", "export"]
    assert shown == [
        "demo",
        "run",
        "compare",
        *using,
        "data",
        "settings",
        "reproduce",
        "policy",
        "privacy",
        "deploy",
        "bench",
    ]
    for name in ("run", "compare"):
        out = call(name, "--help")[1]
        places = [out.index(f"─ {group} ─") for group in ("Data", "Method", "Run", "Output")]
        assert places == sorted(places)


def test_version_is_told(call):
    assert call("--version") == (0, f"fedaf {fedaf.__version__}\n", "")


def test_no_arguments_give_the_help(call):
    code, out, _ = call()
    assert code == 2
    assert "compare" in out


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run by the real command: its process and its directory."""
    folder = tmp_path_factory.mktemp("cli")
    return command("run", *TINY, "--out", "run", cwd=folder), folder / "run"


def result_of(directory: Path) -> dict:
    return json.loads((directory / "result.json").read_text())


def test_a_run_leaves_what_it_promises(finished):
    done, directory = finished
    assert (done.returncode, done.stderr) == (0, "")
    assert tomllib.loads((directory / "config.toml").read_text())["method"]["ipc"] == 5
    split = json.loads((directory / "partition.json").read_text())
    assert len(split["rows"]) == len(split["counts"]) == 10
    assert (directory / "LATEST").read_text() == "round-1"
    assert (directory / "round-1" / "model.safetensors").is_file()
    assert {path.name for path in (directory / "model").iterdir()} == {"last.safetensors", "model.json"}
    assert not list(directory.rglob("*.part"))
    for picture in ("curves.png", "partition.png", "condensed.png"):
        Image.open(directory / picture).verify()


def test_the_result_has_every_figure(finished):
    _, directory = finished
    result = result_of(directory)
    assert set(result) >= {
        "schema_version",
        "method",
        "preset",
        "dataset",
        "alpha",
        "seed",
        "rounds",
        "best_accuracy",
        "last_accuracy",
        "curve",
        "upload_bytes_per_client_round",
        "download_bytes_per_client_round",
        "seconds",
        "copy_audit",
        "disclosed",
        "versions",
        "threads",
    }
    assert (result["method"], result["preset"], result["dataset"]) == ("fedaf", "quick", "digits")
    assert (result["alpha"], result["seed"], result["rounds"], result["threads"]) == (0.1, 0, 1, 1)
    assert result["curve"] == [result["best_accuracy"]] == [result["last_accuracy"]]
    assert 0 <= result["best_accuracy"] <= 100
    assert result["seconds"] > 0
    assert set(result["versions"]) == {"fedaf", "torch", "python"}
    assert result["copy_audit"]["images"] == sum(c["total"] for c in result["disclosed"]["clients"].values()) > 0


def test_every_round_is_a_line_of_metrics_that_adds_up_to_the_result(finished):
    _, directory = finished
    (line,) = (directory / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)
    assert metrics["round"] == 1
    assert metrics["accuracy"] == result_of(directory)["curve"][0]
    assert set(metrics["losses"]) >= {"dm", "cdc", "ce"}
    assert set(metrics["seconds"]) == {"knowledge", "condense", "server", "evaluate"}
    for way in ("upload", "download"):
        assert set(metrics[f"{way}_bytes"]) == {"knowledge", "condense"}
        by_client = metrics[f"{way}_bytes"].values()
        assert all(len(phase) == 10 for phase in by_client)
        total = sum(sum(phase.values()) for phase in by_client)
        assert result_of(directory)[f"{way}_bytes_per_client_round"] == pytest.approx(total / 10)


def test_what_was_shared_lies_there_as_images(finished):
    _, directory = finished
    counts = json.loads((directory / "partition.json").read_text())["counts"]
    condensed = {name: sum(count >= 10 for count in of_client) for name, of_client in counts.items()}
    sheets = {}
    for path in (directory / "condensed").glob("*.png"):
        with Image.open(path) as sheet:
            sheets[path.stem] = sheet.size
    assert sheets == {name: (5 * 9 - 1, classes * 9 - 1) for name, classes in condensed.items() if classes}
    index = json.loads((directory / "condensed" / "index.json").read_text())
    assert {name: len(facts["classes"]) for name, facts in index.items()} == {n: c for n, c in condensed.items() if c}


def test_far_from_a_terminal_the_output_is_plain_lines(finished):
    done, directory = finished
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    accuracy = result_of(directory)["best_accuracy"]
    assert "fedaf on digits on cpu: rounds 1 to 1" in done.stdout
    assert f"round 1/1: accuracy {accuracy:.2f} %" in done.stdout
    assert done.stdout.index("Writing to run.\n") < done.stdout.index("round 1/1")
    assert "Results are in run" in done.stdout


def test_a_written_configuration_runs_to_the_same_curve(finished, call, tmp_path):
    _, directory = finished
    code, _, err = call("run", directory / "config.toml", "--out", "again")
    assert (code, err) == (0, "")
    again = result_of(tmp_path / "again")
    assert again["curve"] == result_of(directory)["curve"]
    assert (tmp_path / "again" / "partition.json").read_text() == (directory / "partition.json").read_text()
    assert (tmp_path / "again" / "config.toml").read_text() == (directory / "config.toml").read_text()


def test_another_seed_runs_to_another_split(finished, call, tmp_path):
    _, directory = finished
    code, _, _ = call("run", directory / "config.toml", "--seed", "1", "--out", "again", "-q")
    assert code == 0
    assert (tmp_path / "again" / "partition.json").read_text() != (directory / "partition.json").read_text()


def test_quiet_prints_only_the_result(call, tmp_path):
    code, out, err = call("run", *TINY, "--out", "run", "-q")
    assert (code, err) == (0, "")
    assert f"{result_of(tmp_path / 'run')['best_accuracy']:.2f}" in out
    assert "Results are in run" in out
    assert "Writing to" not in out
    assert "Samples per class of each client" not in out
    assert "round 1/1" not in out
    assert "rounds 1 to 1" not in out


def test_verbose_tells_what_takes_the_time_before_the_first_phase(tmp_path):
    """In a process of its own: pytest catches what is logged."""
    line = [sys.executable, "-m", "fedaf", "run", *map(str, TINY), "--out", "run"]
    loud, plain = (
        subprocess.run([*line, *more], cwd=tmp_path, capture_output=True, text=True, check=True)
        for more in (["-v"], ["--out", "other"])
    )
    times = [(float(when), what) for when, what in re.findall(r"^ *([0-9.]+) s: (.*)$", loud.stderr, re.MULTILINE)]
    assert [what.partition(" (")[0] for _, what in times] == [
        "the command is read",
        "PyTorch is imported",
        "the engine is ready",
        "the data are read",
        "the data are split",
        "the model is checked",
        "the run starts",
    ]
    assert times == sorted(times, key=lambda each: each[0])
    assert plain.stderr == ""


def test_verbose_tells_of_every_phase(call):
    code, out, _ = call("run", *TINY, "--out", "run", "-v")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("round 1: ")] == [
        "round 1: knowledge, 10 clients",
        "round 1: condense, 10 clients",
        "round 1: server",
    ]


def test_without_out_every_run_gets_a_directory_of_its_own(call, tmp_path):
    for _ in range(2):
        code, _, _ = call("run", *SMALL, "--method", "fedavg", "--set", "method.local_epochs=1", "-q")
        assert code == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["digits-fedavg-seed0", "digits-fedavg-seed0-2"]


def test_compare_runs_all_methods_on_the_same_split(call, tmp_path):
    code, out, err = call("compare", *TINY, "--set", "method.local_epochs=1", "--out", "both")
    assert (code, err) == (0, "")
    of_fedaf, of_fedavg = (tmp_path / "both" / name for name in ("fedaf", "fedavg"))
    assert (of_fedaf / "partition.json").read_text() == (of_fedavg / "partition.json").read_text()
    for directory in (of_fedaf, of_fedavg):
        assert f"{result_of(directory)['best_accuracy']:.2f}" in out
    assert out.count("Samples per class of each client") == 1
    assert out.count("Writing to both.\n") == 1
    assert tomllib.loads((of_fedavg / "config.toml").read_text())["method"]["local_epochs"] == 1
    code, again, _ = call("compare", "--resume", "both", "-q")
    assert code == 0
    assert f"{result_of(of_fedaf)['best_accuracy']:.2f}" in again


@pytest.mark.parametrize("name", ["run", "compare"])
def test_a_directory_in_use_is_refused_before_the_data_are_read(call, tmp_path, name):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").touch()
    code, _, err = call(name, "--dataset", "npz:missing.npz", "--out", "used")
    assert_one_sentence(code, err, ["[FEDAF-RUN-DIRECTORY-IN-USE]", "used", "--resume used"])


def test_a_comparison_without_a_target_can_be_shown_again(call, tmp_path):
    flags = ["--methods", "fedavg", *SMALL, "--set", "method.local_epochs=1", "--out", "c", "-q"]
    assert call("compare", *flags)[0] == 0
    file = tmp_path / "c" / "comparison.json"
    saved = json.loads(file.read_text())
    del saved["target"]
    file.write_text(json.dumps(saved))
    code, out, err = call("compare", "--resume", "c", "-q")
    assert (code, err) == (0, "")
    assert "fedavg" in out
    (tmp_path / "c" / "fedavg" / "result.json").write_text("{")
    code, _, err = call("compare", "--resume", "c", "-q")
    assert_one_sentence(code, err, ["[FEDAF-RUN-DAMAGED]", "c/fedavg/result.json", "--resume c/fedavg"])


def test_a_file_that_cannot_be_written_is_one_sentence_about_that_file(call):
    code, _, err = call("data", "inspect", "digits", "--out", "nowhere/sheet.png")
    assert_one_sentence(code, err, ["[FEDAF-CLI-FILE]", "No such file", "nowhere/sheet.png"])


def test_settings_are_named_in_full_at_80_columns(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call("settings", "--dataset", f"folder:[/b]{'x' * 100}")
    assert code == 0
    names = [name for name, _, _ in describe(build({}))]
    words = out.split()
    assert set(names) <= set(words)
    assert "…" not in out
    assert '"folder:[/b]x' in out


LONG = [*TINY, "--set", "run.rounds=2", "--set", "run.keep_checkpoints=0", "-q"]


def test_a_disk_that_fills_up_costs_the_round_and_not_the_run(call, tmp_path):
    """A limit on the size of files stands for the disk: clients keep more after round 2 than after round 1."""
    assert call("run", *LONG, "--out", "whole")[0] == 0
    after = {n: (tmp_path / "whole" / f"round-{n}" / "clients.safetensors").stat().st_size for n in (1, 2)}
    limit = (after[1] + after[2]) // 2
    files_of_round_1 = [p for p in (tmp_path / "whole").rglob("*") if p.is_file() and "round-2" not in str(p)]
    assert max(p.stat().st_size for p in files_of_round_1 if p.suffix != ".png") < limit < after[2]

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = command("run", *LONG, "--out", "run", cwd=tmp_path, preexec_fn=full)
    assert_one_sentence(done.returncode, done.stderr, ["[FEDAF-CLI-FILE]", "File too large", "has space"])
    run = tmp_path / "run"
    assert (run / "LATEST").read_text() == "round-1"
    assert not (run / "result.json").exists()
    code, _, err = call("run", "--resume", "run", "-q")
    assert (code, err) == (0, "")
    assert result_of(run)["curve"] == result_of(tmp_path / "whole")["curve"]


def test_a_begun_run_without_its_split_is_not_resumed_and_one_over_a_network_is_thought_of(call, tmp_path):
    assert call("run", *TINY, "--rounds", "1", "--out", "run", "-q")[0] == 0
    (tmp_path / "run" / "partition.json").unlink()
    code, _, err = call("run", "--resume", "run", "-q")
    assert_one_sentence(code, err, ["[FEDAF-RUN-NO-PARTITION]", "partition.json", "fedaf deploy run --out run"])


@pytest.mark.parametrize("left", [[], ["config.toml"], ["config.toml", "partition.json"]], ids=" ".join)
def test_a_comparison_cut_short_is_finished_and_what_was_done_stays(call, tmp_path, left):
    assert call("compare", *TINY, "--set", "method.local_epochs=1", "--out", "c", "-q")[0] == 0
    done, cut = tmp_path / "c" / "fedaf" / "result.json", tmp_path / "c" / "fedavg"
    before, curve = done.read_bytes(), result_of(cut)["curve"]
    kept = {name: (cut / name).read_text() for name in left}
    shutil.rmtree(cut)
    if kept:
        cut.mkdir()
    for name, text in kept.items():
        (cut / name).write_text(text)
    assert call("compare", "--resume", "c", "-q")[0] == 0
    assert done.read_bytes() == before
    assert result_of(cut)["curve"] == curve


def test_a_comparison_is_not_resumed_as_a_run(call, tmp_path):
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "comparison.json").write_text("{}")
    code, _, err = call("run", "--resume", "both")
    assert code == 2
    assert "fedaf compare --resume both" in err
    assert "[FEDAF-RUN-NOT-FOUND]" in err


@pytest.mark.parametrize(
    ("given", "nearest"), [("datasets", "dataset"), ("round", "rounds"), ("gama", "gamma"), ("ot", "out")]
)
def test_a_mistyped_argument_of_run_is_named_with_the_nearest_one(given, nearest):
    with raises("FEDAF-CONFIG-KEY") as caught:
        fedaf.run(**{given: 1})
    assert f"did you mean {nearest!r}" in str(caught.value)


def test_a_traceback_shows_the_code():
    with raises("FEDAF-CONFIG-KEY") as caught:
        fedaf.run(datasets="digits")
    assert any("[FEDAF-CONFIG-KEY]" in line for line in traceback.format_exception(caught.value))


def test_a_list_is_asked_for_with_an_example(call):
    code, _, err = call("run", "--set", "training.augment=flip")
    assert code == 2
    assert "for example ['flip']" in err
