"""The paper's tables as cells: its numbers, its settings, and which runs come first."""

import pytest

from fedaf.data.registry import DATASETS
from fedaf.methods.registry import PAPER_METHODS
from fedaf.reproduce.cells import Cell, config_of
from fedaf.reproduce.order import Filter, plan
from fedaf.reproduce.tables import ALPHAS, CONTROLS, CORE, LABEL_SKEW, METHODS, paper, tables
from fedaf.sweep.identity import identity
from support.errors import raises

ALL = plan("all", Filter())
PAPER = [method for method in METHODS if method != "fedaf-plus"]


def names(cells: list[Cell]) -> list[str]:
    return [cell.directory for cell in cells]


@pytest.mark.parametrize("method", PAPER)
def test_the_papers_averages_over_domains_are_those_of_its_rows(method):
    row = dict(paper()["feature-skew"][method])
    average = row.pop("average")
    assert set(row) == set(DATASETS.find("domainnet").domains)
    assert sum(row.values()) / 6 == pytest.approx(average, abs=0.0051)


def test_numbers_that_the_paper_prints_twice_agree():
    skew, ipc, core = (paper()[name] for name in ("label-skew", "ipc", "core-designs"))
    for alpha in ("0.02", "0.05", "0.1"):
        assert skew["fedaf"][alpha]["cifar10"] == ipc["50"][alpha] == core["fedaf"][alpha]
        assert skew["feddm"][alpha]["cifar10"] == core["feddm"][alpha]


def test_every_number_of_the_paper_stands_in_a_line():
    made = tables()
    counts = {name: sum(line.paper is not None for _, line in table.lines) for name, table in made.items()}
    assert list(counts.values()) == [8 * 3 * 3, 0, 5 * 3, 4 * 3, 5, 8 * 3, 2 + 3 * 3, 2, 2, 0]
    assert sum(line.paper_by_domain is not None for _, line in made["feature-skew"].lines) == 8


def test_methods_are_those_of_the_paper_and_fedaf_plus():
    assert set(METHODS) == set(PAPER_METHODS)


def test_cells_differ_in_directory_and_in_settings():
    assert len(set(names(ALL))) == len(ALL)
    assert len({tuple(sorted(identity(config_of(cell)).items())) for cell in ALL}) == len(ALL)


def test_a_cell_in_several_tables_is_one():
    fedaf = Cell("cifar10", 0.02, "fedaf")
    assert [name for name, table in tables().items() if fedaf in table.cells] == [
        *("label-skew", "ipc", "core-designs", "convergence")
    ]
    assert ALL.count(fedaf) == 1
    assert Cell("cifar10", 0.02, "feddm") in tables()["plus"].cells


def test_cells_have_the_settings_of_their_names():
    by_name = {cell.directory: config_of(cell) for cell in ALL}
    assert by_name["cifar10-alpha0.02/fedaf-ipc20-seed1"].method.ipc == 20
    assert by_name["cifar10-alpha0.1/fedaf-gamma0.8-seed0"].method.gamma == 0.8
    assert by_name["cifar10-alpha0.1/fedaf-gamma0.8-seed0"].run.rounds == 10
    assert not by_name["cifar10-alpha0.05/fedaf-without-cdc-seed0"].method.cdc
    assert not by_name["cifar10-alpha0.05/fedaf-without-lgkm-seed0"].method.lgkm
    assert by_name["cifar10-alpha0.1/moon-resnet18-seed2"].model.name == "resnet18"
    assert by_name["pacs/fedaf-seed0"].partition.kind == "domain"
    assert by_name["cifar10-alpha0.02/fedaf-plus-ipc20-seed1"].method.ipc == 20
    assert by_name["cifar10-alpha0.02/fedaf-plus-ipc20-seed1"].method_name == "fedaf-plus"
    assert by_name["cifar10-alpha0.1/fedaf-plus-resnet18-seed2"].model.name == "resnet18"
    random = by_name["fashionmnist-alpha0.02/fedaf-random-images-seed0"].method
    assert (random.init, random.local_steps, random.ipc) == ("real", 0, 50)


def held_out_of_plus() -> list[Cell]:
    return [cell for cell in tables()["plus"].cells if cell.seed >= 100]


def test_each_part_of_fedaf_plus_is_taken_away_alone():
    cells = [cell for cell in held_out_of_plus() if cell.method == "fedaf-plus" and cell.seed == 100]
    whole = dict(config_of(cells[0]).method)
    off = {
        cell.variant.removeprefix("fedaf-plus-ablation-"): {
            key: value for key, value in config_of(cell).method if value != whole[key]
        }
        for cell in cells
    }
    assert off == {
        "none": {},
        "rho": {"resampling": "blend"},
        "new-images": {"continue_images": True},
        "whole-class": {"match_clusters": False},
        "clusters": {"init": "mean"},
        "replay": {"replay": 1},
        "spread": {"match_spread": 0.0},
        "distribution": {"match_distribution": 0.0},
        "decay": {"image_lr_decay": False},
        "cdc": {"cdc": False},
        "lgkm": {"lgkm": False},
        "average": {"server_average": 0.0},
        "cutmix": {"server_cutmix": 0.0},
        "weighting": {"server_weighting": 0.0},
        "photographs": {"init": "real", "allow_real_init": True, "local_steps": 0},
    }
    assert {(cell.seed, config_of(cell).run.rounds) for cell in held_out_of_plus()} == {(100, 8), (101, 8)}


def test_feddm_with_the_server_of_fedaf_plus_has_its_values():
    by_name = {cell.variant: config_of(cell).method for cell in held_out_of_plus()}
    mixed, plus = by_name["feddm-ablation-server"], by_name["fedaf-plus-ablation-none"]
    names = (
        "continue_images",
        "replay",
        "server_steps",
        "server_average",
        "server_cutmix",
        "server_weighting",
        "server_lr",
        "server_batch",
    )
    assert [getattr(mixed, name) for name in names] == [getattr(plus, name) for name in names]


def test_published_feddm_stands_beside_the_papers_number_for_feddm():
    lines = {line.cells[0].variant: line for _, line in tables()["plus"].lines}
    published, held_out = lines["feddm-published"], lines["feddm-ablation-published"]
    assert published.paper == lines["feddm"].paper == (60.28, 0.82)
    assert held_out.paper is None
    config = config_of(published.cells[0])
    assert (config.data.validation, config.run.seed, config.run.rounds) == (None, 0, 20)
    for method, training in ((each.method, each.training) for each in (config, config_of(held_out.cells[0]))):
        assert (method.continue_images, method.match_logits, method.image_momentum) == (False, True, 0.5)
        assert training.augment == []


def test_settings_are_tried_on_images_and_a_seed_that_nothing_else_has():
    searched = tables(seeds=(0,))["settings"].cells + held_out_of_plus()
    assert all(config_of(cell).data.validation == 5000 for cell in searched)
    assert {cell.seed for cell in searched}.isdisjoint(cell.seed for cell in set(ALL) - set(searched))
    for method in ("fedaf", "feddm", "fedaf-plus"):
        (as_it_is,) = (cell for cell in searched if cell.directory.endswith(f"/{method}-ablation-none-seed100"))
        assert config_of(as_it_is).method == config_of(Cell("cifar10", 0.02, method)).method
    for dataset in ("cifar10", "fashionmnist"):
        (as_it_is,) = (cell for cell in searched if cell.kind == f"{dataset}-alpha0.02/fedaf-held-out-chosen")
        chosen, plain = config_of(as_it_is), config_of(Cell(dataset, 0.02, "fedaf"))
        assert (chosen.method, chosen.training, chosen.model) == (plain.method, plain.training, plain.model)


def test_the_most_valuable_cells_come_first():
    order = names(ALL)
    first = [f"cifar10-alpha0.02/{name}-seed0" for name in (*METHODS, *CONTROLS)]
    assert set(order[: len(first)]) == set(first)
    assert order[: len(CORE)] == [f"cifar10-alpha0.02/{name}-seed0" for name in CORE]
    assert "fedaf-plus" in CORE
    ablation = names([cell for cell in tables()["plus"].cells if cell.variant != "feddm"])
    order = order[len(first) :]
    assert set(order[: len(ablation)]) == set(ablation)
    order = order[len(ablation) :]
    second = [
        f"{at}/{name}-seed0"
        for at in ("cifar10-alpha0.1", "cifar100-alpha0.02", "fashionmnist-alpha0.02")
        for name in CORE
    ]
    assert order[: len(second)] == second
    places = [
        order.index(name)
        for name in (
            *("cifar10-alpha0.05/moon-seed0", "cifar10-alpha0.02/fedaf-seed1", "fashionmnist-alpha0.02/moon-seed0"),
            *("cifar100-alpha0.1/moon-seed0", "pacs/moon-seed0", "cifar10-alpha0.1/fedaf-gamma0.5-seed0"),
            *("cifar10-alpha0.02/fedaf-without-cdc-seed0", "cifar10-alpha0.02/fedaf-plus-ipc10-seed0"),
            *("cifar10-alpha0.02/fedaf-resnet18-seed0", "cifar10-alpha0.02/moon-seed1"),
        )
    ]
    assert places == sorted(places)


def test_a_table_is_planned_in_the_order_of_all():
    for name in tables():
        of_table = plan(name, Filter())
        assert of_table == [cell for cell in ALL if cell in set(of_table)]


def test_choices_narrow_a_plan():
    chosen = plan("label-skew", Filter(("cifar10",), (0.02,), ("fedaf", "fedavg"), (0,)))
    assert names(chosen) == ["cifar10-alpha0.02/fedaf-seed0", "cifar10-alpha0.02/fedavg-seed0"]
    of_plus = plan("label-skew", Filter(("cifar10",), (0.02,), ("fedaf-plus",), (0,)))
    assert names(of_plus) == ["cifar10-alpha0.02/fedaf-plus-seed0"]
    controls = plan("label-skew", Filter(("cifar10",), (0.02,), ("controls",), (0,)))
    assert {cell.variant for cell in controls} == set(CONTROLS)
    assert names(plan("ipc", Filter((), (0.1,), ("fedaf-ipc10",), (4,)))) == ["cifar10-alpha0.1/fedaf-ipc10-seed4"]
    assert len(plan("communication", Filter(seeds=(0,)))) == len(LABEL_SKEW) * len(ALPHAS) + 2


@pytest.mark.parametrize(
    ("table", "wanted", "code", "words"),
    [
        ("lable-skew", Filter(), "TABLE", ["lable-skew", "'label-skew'"]),
        ("ipc", Filter(alphas=(0.3,)), "FILTER", ["--alpha 0.3", "0.02, 0.05, 0.1"]),
        ("gamma", Filter(datasets=("pacs",)), "FILTER", ["--dataset pacs", "cifar10"]),
        ("all", Filter(datasets=("pacs",), methods=("fedaf-ipc10",)), "FILTER", ["all"]),
        ("resnet18", Filter(methods=("fedsgd",)), "FILTER", ["--methods fedsgd", "fedavg"]),
    ],
)
def test_a_choice_that_a_table_does_not_have_is_one_sentence(table, wanted, code, words):
    with raises(f"FEDAF-REPRODUCE-{code}") as error:
        plan(table, wanted)
    assert all(word in str(error.value) for word in words)
