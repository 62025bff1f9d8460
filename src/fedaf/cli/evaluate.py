"""``fedaf evaluate``: test the model of a run."""

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
    from fedaf.common.readable import readable_json
    from fedaf.federation.metrics import METRICS, line_of
    from fedaf.reporting import tables
    from fedaf.reporting.progress import reading
    from fedaf.runs import evaluation
    from fedaf.runs.trained import load

    console = Console(emoji=False)
    model = load(run, which=which, client=client)
    with reading(Console(quiet=True) if as_json else console) as watch:
        found = evaluation.evaluate(model, run, dataset=dataset, data_dir=data_dir, watch=watch)
    scores = line_of(found.scores)
    if as_json:
        facts = {
            **scores,
            "classes": list(model.classes),
            "samples": found.samples,
            "dataset": found.dataset,
            "which": model.which,
            "round": model.round,
            "client": model.client,
        }
        print(readable_json(facts))
        return
    whose = f"the personal model of {client}" if client else f"the {model.which} model"
    what = f"{whose} (round {model.round}) on {found.samples} test images of {found.dataset}"
    print_line(console, f"Accuracy {tables.per_cent(found.scores.accuracy)}: {what}.")
    for domain, value in found.scores.by_domain.items():
        print_line(console, f"  {domain}: {tables.per_cent(value)}")
    for metric in (METRICS[name] for name in ("balanced_accuracy", "macro_auc", "loss")):
        shown = f"{metric.format(metric.read(scores))} {metric.unit}".strip()
        print_line(console, f"{metric.title[0].upper()}{metric.title[1:]}: {shown}")
