"""Paired differences between methods: which are shown, and in which words."""

from fedaf.reporting.differences import Measure, as_csv, differences, differences_table


def result(method: str, seed: int, accuracy: float, **more) -> dict:
    bytes_ = {"upload_bytes_per_client_round": 1.0, "download_bytes_per_client_round": 2.0, "seconds": 3.0}
    figures = {"best_accuracy": accuracy, "last_accuracy": accuracy - 1, "rounds": 2}
    return {"method": method, "seed": seed, **figures, **bytes_, **more}


RESULTS = [
    *(result("fedaf", seed, 90.0 + seed) for seed in range(3)),
    *(result("fedavg", seed, 80.0 + seed + 0.1 * (seed == 1)) for seed in range(3)),
    *(result("fedprox", seed, value) for seed, value in enumerate((95.0, 85.0, 92.5))),
    *(result("fedaf-plus", seed, 95.5 + seed + 0.1 * (seed == 2)) for seed in range(3)),
    *(result("pooled", seed, 99.0, reference=True) for seed in range(3)),
]


def rows(compared) -> list[list[str]]:
    table = differences_table(compared)
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]


def test_verdicts_are_words_and_references_are_not_judged():
    found = {(row.method, row.measure.name): row.verdict for row in differences(RESULTS, "fedaf")}
    assert {method: verdict for (method, name), verdict in found.items() if name == "best_accuracy"} == {
        "fedavg": "worse",
        "fedprox": "undecided",
        "fedaf-plus": "better",
        "pooled": "reference",
    }
    shown = rows(differences(RESULTS, "fedaf"))
    methods = ["fedavg", "fedprox", "fedaf-plus", "pooled"]
    assert [row[0] for row in shown] == [f"{name}, {of}" for name in methods for of in ("best test round %", "last %")]
    assert shown[0][1:] == ["-9.97", "-10.11 to -9.82", "worse"]


def test_any_figure_can_be_compared_and_less_may_be_better():
    cost = Measure("seconds", "time", lambda run: run["seconds"], higher_is_better=False)
    results = [result("a", seed, 1.0, seconds=1.0) for seed in (0, 1)]
    results += [result("b", seed, 1.0, seconds=2.0 + 0.01 * seed) for seed in (0, 1)]
    (found,) = differences(results, "a", [cost])
    assert (found.method, found.verdict) == ("b", "worse")


def test_a_run_without_the_figure_is_left_out_of_its_pairs():
    results = [
        result("a", 0, 1.0),
        result("a", 1, 2.0),
        {**result("b", 0, 5.0), "best_accuracy": None},
        result("b", 1, 4.0),
    ]
    best = next(one for one in differences(results, "a") if one.measure.name == "best_accuracy")
    assert (best.difference.seeds, best.difference.mean, best.verdict) == (1, 2.0, "no verdict")


def test_one_seed_has_no_table():
    assert differences_table(differences([result("a", 0, 1.0), result("b", 0, 2.0)], "a")) is None
    assert differences_table([]) is None


def test_figures_that_do_not_apply_are_empty_in_the_file():
    text = as_csv([result("local", 0, 50.0, upload_bytes_per_client_round=None, reference=True)])
    header, line = (row.split(",") for row in text.splitlines())
    found = dict(zip(header, line, strict=True))
    assert (found["method"], found["reference"], found["upload_bytes_per_client_round"]) == ("local", "True", "")
    assert found["personal_best_accuracy"] == ""
