"""``examples/first_run.ipynb``: it runs, and its stored outputs are those of the current code."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

from support.examples import EXAMPLES

NOTEBOOK = EXAMPLES / "first_run.ipynb"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What each output says, without pictures."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.get("text") or output["data"]["text/plain"] for output in outputs]


def pictures(notebook: nbformat.NotebookNode) -> int:
    return sum("image/png" in o.get("data", {}) for cell in notebook.cells for o in cell.get("outputs", []))


@pytest.fixture(scope="module")
def stored() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_file_is_small_complete_and_of_no_machine(stored):
    nbformat.validate(stored)
    source = NOTEBOOK.read_text()
    assert len(source) < 500_000
    assert not re.search(r"/(tmp|home|root|work|Users|private)/", source)
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert pictures(stored) == 3


@pytest.mark.slow
def test_executed_again_it_gives_the_stored_outputs(stored, tmp_path, monkeypatch):
    """Numbers may differ a little between processors, everything else not at all."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    again = nbformat.reads(nbformat.writes(stored), as_version=4)
    for cell in again.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(again, timeout=250, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    found, expected = texts(again), texts(stored)
    assert [NUMBER.sub("#", text).split() for text in found] == [NUMBER.sub("#", text).split() for text in expected]
    for now, before in zip(found, expected, strict=True):
        values = [[float(number) for number in NUMBER.findall(text)] for text in (now, before)]
        assert values[0] == pytest.approx(values[1], rel=0.02, abs=2), (now, before)
    assert pictures(again) == pictures(stored)
    assert not list(tmp_path.iterdir())
