"""The card of a condensed set: what it is, how it was made and measured, and under which terms it may be used."""

import json
from typing import Any

import tomli_w

from fedaf.common.version import __version__
from fedaf.config import Config
from fedaf.data import catalog
from fedaf.data.spec import NO_DATA, PYTHON, UNKNOWN_LICENCE
from fedaf.reporting import tables
from fedaf.runs.composition import tested_on
from fedaf.runs.condensed import CondensedRun, path_free, tested_dataset

_NO_PRIVACY = (
    "There is no differential privacy: nothing bounds what the images reveal about the private images. "
    "The figures below are measurements, and no guarantee."
)


def card(found: CondensedRun, *, settings: str, accuracy: float | None = None) -> str:
    """Return the card of a condensed set as Markdown with a YAML head.

    Args:
        found: The set and its run.
        settings: Name of the file with the settings that train on the set.
        accuracy: Test accuracy in per cent of a fresh model that was trained on the set; ``None`` if not measured.
    """
    head = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in _head(found, accuracy).items())
    sections = {
        f"Condensed images of {_source_name(found.config)}": _overview(found),
        "Accuracy": _accuracy(found, settings, accuracy),
        "Use": _use(found.config, settings),
        "Privacy": _privacy(found),
        "Permission": [found.consent],
        "Licence and source of the private data": _licence(found.config),
        "Settings of the run": ["```toml", tomli_w.dumps(path_free(found.config)).strip(), "```"],
    }
    body = "\n\n".join(
        "\n".join([f"{'#' if number == 0 else '##'} {title}", "", *lines])
        for number, (title, lines) in enumerate(sections.items())
    )
    return f"---\n{head}\n---\n\n{body}\n"


def _head(found: CondensedRun, accuracy: float | None) -> dict[str, Any]:
    """The facts for programs. Each value is JSON, which is YAML too."""
    condensed, config, figures = found.condensed, found.config, found.figures
    privacy = figures["privacy"]
    return {
        "images": len(condensed),
        "image_shape": list(condensed.images.shape[1:]),
        "classes": list(condensed.classes),
        "images_per_class": condensed.per_class,
        "clients": sorted(set(condensed.clients)),
        "condensed_from": _source_name(config),
        "licence_of_source": _terms(config)[0],
        "method": config.method_name,
        "model": config.model.name,
        "rounds": figures["rounds"],
        "seed": config.run.seed,
        "server_accuracy": figures["last_accuracy"],
        "accuracy_from_scratch": accuracy,
        "epsilon": None if privacy is None or privacy["simulated"] else privacy["epsilon"],
        "delta": None if privacy is None or privacy["simulated"] else privacy["delta"],
        "fedaf": __version__,
    }


def _overview(found: CondensedRun) -> list[str]:
    condensed, config, figures = found.condensed, found.config, found.figures
    rounds, clients = condensed.rounds.unique().tolist(), len(set(condensed.clients))
    which = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
    shape = " x ".join(map(str, condensed.images.shape[1:]))
    lines = [
        f"{len(condensed)} condensed images (uint8, {shape}) of {len(condensed.classes)} classes, made by "
        f"{config.method_name} from {_source_name(config)} of {clients} client{'s' if clients > 1 else ''}. They are "
        f"what the server trained on in round {figures['rounds']}, and were sent in {which}.",
    ]
    if missing := [name for name, count in condensed.per_class.items() if not count]:
        lines += ["", f"There are no images of {', '.join(missing)}."]
    if condensed.weights is not None:
        lines += ["", "The server drew images in proportion to their weight (`weight_train`, or column `weight`)."]
    return lines


def _accuracy(found: CondensedRun, settings: str, accuracy: float | None) -> list[str]:
    config, figures, options = found.config, found.figures, found.options
    tested = tested_on(config)
    rows = [("the server's model after the last round", tables.per_cent(figures["last_accuracy"]))]
    if accuracy is not None:
        rows.append(("a fresh model, trained on these images alone", tables.per_cent(accuracy)))
    lines = [
        f"| accuracy on {'the test split' if tested == 'test' else tested} | |",
        "|---|---|",
        *(f"| {what} | {value} |" for what, value in rows),
        "",
    ]
    lines.append(
        f"Protocol of the fresh model (`{settings}`): {figures['rounds']} times "
        f"{options.epochs(len(found.condensed))} epochs of SGD with cross-entropy, with the server's model, "
        "augmentation, batch size, learning rate and momentum."
    )
    differences = []
    if figures["rounds"] > 1 and len(found.condensed.rounds.unique()) < figures["rounds"]:
        differences.append("it also trained on the images of earlier rounds, which are not in this set")
    if "lgkm" in found.loss_terms:
        differences.append("its loss had a term that matches knowledge of the clients")
    for option, words in (
        ("server_cutmix", "it used CutMix"),
        ("server_average", "its weights are an average over its last steps"),
        ("server_weighting", "it drew images by their weight"),
    ):
        if getattr(options, option):
            differences.append(words)
    if config.model.weights is not None:
        differences.append("it started from trained weights")
    if differences:
        lines += ["", f"The server's training differed: {'; '.join(differences)}."]
    return lines


def _use(config: Config, settings: str) -> list[str]:
    name = tested_dataset(config)
    own = name is None or catalog.is_path(name)
    test = " --test-dataset DATASET" if own else ""
    lines = ["Train on the set and test on the original test split, in the folder of this card:", "", "```text"]
    lines += [f"fedaf run {settings}{test}", "```"]
    if own:
        lines += ["", "DATASET is the data set with the test split, such as `folder:DIR` or `npz:FILE`."]
    return lines


def _privacy(found: CondensedRun) -> list[str]:
    figures = found.figures
    if figures["privacy"] is not None:
        return [str(tables.privacy_sentence(figures))]
    measured = [tables.audit_sentence(figures), tables.disclosure_sentence(figures)]
    return [_NO_PRIVACY, *(line for sentence in measured if sentence for line in ("", sentence))]


def _licence(config: Config) -> list[str]:
    licence, source = _terms(config)
    return [
        f"- Data set: {_source_name(config)}",
        f"- Licence: {licence}",
        f"- Source: {source or UNKNOWN_LICENCE}",
        "",
        "fedaf adds no licence of its own to the images. Whether the terms of the source cover images that are "
        "condensed from it is for you to find out before you publish them.",
    ]


def _terms(config: Config) -> tuple[str, str]:
    """Return the licence and the source of the data of a run, as far as they are known."""
    spec = None if config.data.name.startswith(PYTHON) else catalog.find_spec(config.data.name)
    return (UNKNOWN_LICENCE, "") if spec is None else (spec.licence, spec.source)


def _source_name(config: Config) -> str:
    """Return the name of the data set, for people elsewhere."""
    name = config.data.name
    return "own data" if name == NO_DATA or name.startswith(PYTHON) or catalog.is_path(name) else name
