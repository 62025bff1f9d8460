"""A grid file becomes exactly the runs that its author means, and every mistake in it is one sentence."""

import tomllib

import pytest

from fedaf.config import build
from fedaf.errors import UserError
from fedaf.sweep.grid import Grid, expand


def expanded(text: str) -> Grid:
    return expand(tomllib.loads(text))


def directories(text: str) -> list[str]:
    return [cell.directory for cell in expanded(text).cells]


def test_all_methods_of_a_seed_come_before_the_next_seed():
    grid = """
        [grid]
        run.seed = [0, 1]
        method.name = ["fedaf", "fedavg"]
        partition.alpha = [0.02, 0.1]
    """
    assert directories(grid) == [
        "fedaf-alpha0.02-seed0",
        "fedavg-alpha0.02-seed0",
        "fedaf-alpha0.1-seed0",
        "fedavg-alpha0.1-seed0",
        "fedaf-alpha0.02-seed1",
        "fedavg-alpha0.02-seed1",
        "fedaf-alpha0.1-seed1",
        "fedavg-alpha0.1-seed1",
    ]


def test_a_cell_is_the_run_that_the_same_settings_give():
    cells = expanded("""
        preset = "quick"
        run.rounds = 7
        [grid]
        method.name = ["fedaf", "fedavg"]
        partition.alpha = [0.5]
        run.seed = [3]
    """).cells
    for cell, method in zip(cells, ("fedaf", "fedavg"), strict=True):
        settings = {"run": {"rounds": 7, "seed": 3}, "partition": {"alpha": 0.5}, "method": {"name": method}}
        assert cell.config == build(settings, preset="quick")
        assert (cell.variant, cell.setting, cell.seed) == (method, "alpha 0.5", 3)


def test_keys_with_and_without_quotes_mean_the_same():
    assert directories('grid."run.seed" = [4, 5]') == directories("grid.run.seed = [4, 5]") == ["seed4", "seed5"]


def test_options_go_to_the_methods_that_have_them():
    grid = expanded("""
        method = { local_epochs = 2, gamma = 0.5 }
        [grid]
        method.name = ["fedaf", "fedavg"]
        method.ipc = [10, 20]
    """)
    assert [cell.directory for cell in grid.cells] == ["fedaf-ipc10", "fedaf-ipc20", "fedavg"]
    assert [getattr(cell.config.method, "ipc", None) for cell in grid.cells] == [10, 20, None]
    assert grid.cells[0].config.method.gamma == 0.5
    assert grid.cells[2].config.method.local_epochs == 2
    assert [cell.variant for cell in grid.cells] == ["fedaf, ipc 10", "fedaf, ipc 20", "fedavg"]


def test_a_table_for_one_method_changes_that_method_only():
    grid = expanded("""
        [grid]
        method.name = ["fedaf", "feddm", "fedavg"]
        method.ipc = [10, 20]
        [for.feddm]
        method.ipc = 5
        run.rounds = 2
        [for.fedaf.grid]
        method.gamma = [0.5, 0.9]
        [for.fedavg]
        method.lr = 0.5
    """)
    assert [cell.directory for cell in grid.cells] == [
        *("fedaf-ipc10-gamma0.5", "fedaf-ipc10-gamma0.9", "fedaf-ipc20-gamma0.5", "fedaf-ipc20-gamma0.9"),
        *("feddm", "fedavg"),
    ]
    feddm, fedavg = (cell.config for cell in grid.cells[-2:])
    assert (feddm.method.ipc, feddm.run.rounds, fedavg.method.lr, fedavg.run.rounds) == (5, 2, 0.5, 10)


def test_what_is_excluded_is_left_out():
    grid = """
        [grid]
        method.name = ["fedaf", "fedavg"]
        partition.alpha = [0.02, 0.1]
        [[exclude]]
        method.name = "fedavg"
        partition.alpha = 0.02
    """
    assert directories(grid) == ["fedaf-alpha0.02", "fedaf-alpha0.1", "fedavg-alpha0.1"]


def test_without_methods_other_settings_are_compared_on_the_same_split():
    grid = expanded("""
        [grid]
        model.width = [8, 16]
        partition.alpha = [0.02, 0.1]
    """)
    assert list(grid.rows) == [
        ("alpha 0.02", "width 8"),
        ("alpha 0.02", "width 16"),
        ("alpha 0.1", "width 8"),
        ("alpha 0.1", "width 16"),
    ]
    assert grid.against == "width 8"


def test_rows_are_in_the_order_of_the_file_with_a_cell_per_seed():
    grid = expanded("""
        against = "fedavg"
        [grid]
        run.seed = [2, 0]
        partition.alpha = [1.0, 0.1]
        method.name = ["fedavg", "fedaf"]
        method.ipc = [5, 1]
    """)
    assert list(grid.rows) == [
        *(("alpha 1.0", variant) for variant in ("fedavg", "fedaf, ipc 5", "fedaf, ipc 1")),
        *(("alpha 0.1", variant) for variant in ("fedavg", "fedaf, ipc 5", "fedaf, ipc 1")),
    ]
    assert all([cell.seed for cell in row] == [2, 0] for row in grid.rows.values())
    assert grid.against == "fedavg"


def test_the_variant_to_compare_with_is_named_by_its_method_or_in_full():
    text = """
        against = {against!r}
        [grid]
        method.name = ["fedavg", "fedaf"]
        method.ipc = [10, 50]
    """
    assert expanded(text.format(against="fedaf")).against == "fedaf, ipc 10"
    assert expanded(text.format(against="fedaf, ipc 50")).against == "fedaf, ipc 50"


def test_values_that_cannot_be_in_a_name_get_a_hash_and_stay_apart():
    names = directories("""
        [grid]
        data.name = ["npz:/one/a.npz", "npz:/two/a.npz"]
        training.augment = [[], ["flip", "shift"]]
    """)
    assert len(set(names)) == 4
    assert all(name.replace("-", "").replace(".", "").isalnum() for name in names)
    assert all(name.startswith("npz-") for name in names)
    again = directories('[grid]\ndata.name = ["npz:/two/a.npz"]\ntraining.augment = [["flip", "shift"]]')
    assert again == names[-1:]


def test_settings_with_the_same_key_are_named_with_their_table():
    text = "privacy.epsilon = 8.0\n[grid]\nmodel.width = [8]\nprivacy.width = [16]"
    assert directories(text) == ["model.width8-privacy.width16"]


def test_a_split_that_is_left_to_the_data_stays_so():
    (cell,) = expanded("[grid]\nrun.seed = [0]").cells
    assert cell.config.partition.model_fields_set == set()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["SWEEP-GRID", "no [grid]", "run.seed = [0, 1, 2]"]),
        ("grid = 3", ["SWEEP-GRID", "3"]),
        ("[grid]\nseed = [1]", ["SWEEP-GRID", "'seed'", "run.seed"]),
        ("[grid]\nmetod.name = ['fedaf']", ["SWEEP-GRID", "metod.name", "did you mean 'method'"]),
        ("[grid]\nrun.seed = 3", ["SWEEP-GRID", "run.seed", "[3]"]),
        ("[grid]\nrun.seed = []", ["SWEEP-GRID", "run.seed", "empty"]),
        ("[grid]\nrun.seed = [1, 2, 1]", ["SWEEP-GRID", "run.seed", "1 twice"]),
        ("[grid]\nrun.seed = [-1]", ["CONFIG-VALUE", "run.seed", "-1"]),
        ("[grid]\nrun.sed = [1]", ["CONFIG-KEY", "run.sed", "'seed'"]),
        ("[grid]\nmethod.name = ['fedav']", ["METHOD-UNKNOWN", "fedav", "'fedavg'"]),
        ("[grid]\nmethod.name = [1]", ["SWEEP-GRID", "method.name", "1"]),
        ("[grid]\nmethod.name = ['fedavg']\nmethod.ipc = [1]", ["CONFIG-KEY", "method.ipc", "fedavg"]),
        ("[grid]\nmethod.ipc = ['many']", ["CONFIG-VALUE", "method.ipc", "many"]),
        ("run.seed = 1\n[grid]\nrun.seed = [1]", ["SWEEP-GRID", "run.seed", "fixed"]),
        ("run.sed = 1\n[grid]\nrun.seed = [1]", ["CONFIG-KEY", "run.sed"]),
        ("preset = 'fast'\n[grid]\nrun.seed = [1]", ["PRESET-UNKNOWN", "fast"]),
        ("runs.seed = 1\n[grid]\nrun.seed = [1]", ["SWEEP-GRID", "'runs'", "'run'"]),
        ("partition.kind = 'iid'\n[grid]\npartition.alpha = [1.0, 2.0]", ["SWEEP-GRID", "same run", "partition.alpha"]),
        ("[grid]\nrun.threads = [1, 2]", ["SWEEP-GRID", "same run", "run.threads"]),
        ("[grid]\nrun.seed = [1]\n[for.fedavg]\nrun.rounds = 2", ["SWEEP-GRID", "for.fedavg", "fedaf"]),
        ("[grid]\nrun.seed = [1]\n[for.fedaf]\nrun.seed = 2", ["SWEEP-GRID", "for.fedaf", "run.seed", "same"]),
        ("[grid]\nrun.seed = [1]\n[for.fedaf]\npartition.alpha = 2.0", ["SWEEP-GRID", "partition.alpha", "same"]),
        ("[grid]\nrun.seed = [1]\n[for.fedaf.grid]\nrun.rounds = [2]", ["SWEEP-GRID", "run.rounds", "same"]),
        ("for = 1\n[grid]\nrun.seed = [1]", ["SWEEP-GRID", "'for'"]),
        ("[grid]\nrun.seed = [1]\n[[exclude]]\nrun.seed = 2", ["SWEEP-GRID", "exclude", "run.seed = 2"]),
        ("[grid]\nrun.seed = [1]\n[[exclude]]\nrun.seed = 1", ["SWEEP-GRID", "exclude", "no run"]),
        ("[grid]\nrun.seed = [1]\n[exclude]\nrun.seed = 1", ["SWEEP-GRID", "[[exclude]]"]),
        ("against = 'fedavg'\n[grid]\nrun.seed = [1]", ["SWEEP-GRID", "against", "fedaf"]),
        ("metrics = ['los']\n[grid]\nrun.seed = [1]", ["METRIC-UNKNOWN", "los"]),
        ("metrics = 'loss'\n[grid]\nrun.seed = [1]", ["SWEEP-GRID", "metrics"]),
        (f"[grid]\nrun.seed = {list(range(101))}\nmodel.width = {list(range(1, 101))}", ["SWEEP-GRID", "10,000"]),
    ],
)
def test_a_mistake_is_one_sentence(text, words):
    with pytest.raises(UserError) as caught:
        expanded(text)
    said = caught.value.labelled
    assert "\n" not in said
    assert [word for word in words if word not in said] == []
