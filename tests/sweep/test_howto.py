"""The grid files in docs/howto/sweep.md are valid, and mean what the page says."""

import re
import tomllib

from fedaf.sweep.findings import RUNS, SUMMARY, TABLE
from fedaf.sweep.grid import KEYS, expand
from fedaf.sweep.search import BEST, STUDY, TRIALS
from fedaf.sweep.slurm import SCRIPT
from fedaf.sweep.space import Search, SearchTable
from fedaf.sweep.sweep import PLAN
from support import ROOT

PAGE = (ROOT / "docs" / "howto" / "sweep.md").read_text()
FILES = [tomllib.loads(text) for text in re.findall(r"(?ms)^```toml\n(.*?)^```$", PAGE)]


def test_the_grids_of_the_page_have_as_many_runs_as_it_says():
    whole, options, excluded, _ = FILES
    assert len(expand(whole).cells) == 3 * 2 * 3
    assert "fedaf-alpha0.02-seed0" in [cell.directory for cell in expand(whole).cells]
    by_method = [cell.config.method_name for cell in expand(options).cells]
    assert [by_method.count(name) for name in ("fedaf", "feddm", "fedavg")] == [2 * 2 * 3, 2 * 3, 3]
    assert len(expand(excluded).cells) == 3 * 3


def test_the_search_of_the_page_is_valid():
    search = Search.read(FILES[-1])
    assert search.table.trials == 10
    assert list(search.parameters) == ["method.server_lr", "method.ipc", "method.cdc"]


def test_the_page_names_every_key_and_every_file():
    for name in (*KEYS, *SearchTable.model_fields, TABLE, RUNS, SUMMARY, PLAN, SCRIPT, BEST, TRIALS, STUDY):
        assert f"`{name}`" in PAGE or f"/{name}`" in PAGE, name
