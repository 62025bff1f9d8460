"""Tables at the width of a terminal: whole names, whole numbers, all columns."""

import io
import re

import pytest
from rich.console import Console
from rich.table import Table

from fedaf.methods.registry import METHODS
from fedaf.reporting.fitting import fitted
from fedaf.reporting.tables import domains_table, results_table

SIZES = {"upload_bytes_per_client_round": 1021.37 * 1024, "download_bytes_per_client_round": 1203.4 * 1024}


def a_result(method: str, seed: int) -> dict:
    reference = method in ("pooled", "local")
    facts = {"dataset": "digits", "clients": 10, "alpha": 0.02, "partition": "dirichlet", "rounds": 2, "seed": seed}
    figures = {"best_accuracy": 82.35 + seed, "last_accuracy": 71.25 + seed, "curve": [71.25 + seed, 82.35 + seed]}
    sizes = dict.fromkeys(SIZES) if reference else SIZES
    personal = {"best_accuracy": 64.5, "last_accuracy": 63.5} if method == "fedbn" else None
    disclosed = {"most_images": 1500, "per_sample_at_most": 10.0} if method.startswith("fedaf") else None
    more = {"personal": personal, "disclosed": disclosed, "reference": reference, "seconds": 5025.0}
    return {"method": method, **facts, **figures, **sizes, **more}


def printed(table: Table, width: int) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, emoji=False)
    for part in fitted(table, width):
        console.print(part)
    return text.getvalue()


@pytest.mark.parametrize("width", [80, 60, 160])
@pytest.mark.parametrize("seeds", [1, 3])
def test_all_methods_and_all_columns_fit_without_a_broken_word(seeds, width):
    results = [a_result(method, seed) for seed in range(seeds) for method in METHODS]
    table = results_table(results)
    text = printed(table, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for cell in (cell for column in table.columns for cell in column.cells if cell):
        assert re.search(rf"(?<![\w.]){re.escape(cell)}(?![\w.])", text), cell
    words = {word for column in table.columns for word in str(column.header).split()}
    assert words <= set(re.split(r"[\s│┃]+", text))


def test_a_table_with_room_stays_as_it_is():
    table = results_table([a_result("fedavg", 0)])
    assert fitted(table, 160) == [table]


def test_one_seed_of_all_methods_is_one_table_at_80_columns():
    small = dict.fromkeys(SIZES, 121.37 * 1024)
    results = [{**a_result(method, 0), **small, "seconds": 25.0} for method in METHODS]
    (table,) = fitted(results_table(results), 80)
    assert "last %" in [column.header for column in table.columns]


def test_domains_fit_too():
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    results = [
        {**a_result("fedavg", seed), "best_accuracy_by_domain": dict.fromkeys(domains, 50.0 + seed)}
        for seed in range(3)
    ]
    text = printed(domains_table(results), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("51.00 ± 1.00") == 6
    assert all(domain in text for domain in domains)
