"""``fedaf evaluate``: test the model of a run."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedaf.cli.options import Client, Which
from fedaf.cli.terminal import print_line


def evaluate(
    run: Path,
    dataset: str | None = None,
    data_dir: Path | None = None,
    client: Client = None,
    which: Which = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Test the model of a run on the test split of its data set, or of another one with the same classes.

    A personal model is tested on the test data of its client, as in the run.

    Args:
        run: Directory of the run.
        dataset: Another data set, as for fedaf run. (default: that of the run)
        data_dir: Folder that holds the data sets. (default: that of the run)
    """
    from fedaf.reporting import tables
    from fedaf.reporting.progress import reading
    from fedaf.runs import evaluation
    from fedaf.runs.trained import load

    console = Console(emoji=False)
    model = load(run, which=which, client=client)
    with reading(Console(quiet=True) if as_json else console) as watch:
        found = evaluation.evaluate(model, run, dataset=dataset, data_dir=data_dir, watch=watch)
    accuracy, by_domain = found.score.accuracy, found.score.by_domain
    if as_json:
        facts = {
            "accuracy": accuracy,
            "accuracy_by_domain": dict(by_domain) or None,
            "samples": found.samples,
            "dataset": found.dataset,
            "which": model.which,
            "round": model.round,
            "client": model.client,
        }
        print(json.dumps(facts, indent=2))
        return
    whose = f"the personal model of {client}" if client else f"the {model.which} model"
    what = f"{whose} (round {model.round}) on {found.samples} test images of {found.dataset}"
    print_line(console, f"Accuracy {tables.per_cent(accuracy)}: {what}.")
    for domain, value in by_domain.items():
        print_line(console, f"  {domain}: {tables.per_cent(value)}")
