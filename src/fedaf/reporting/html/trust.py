"""Sections about trust: the privacy statement, the audits, the settings, and what computed the numbers."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedaf.reporting import tables
from fedaf.reporting.html.blocks import Block, Cell, Facts, Num, Section, Table, Text
from fedaf.reporting.html.groups import Group, Variant
from fedaf.reporting.html.summary import name_of

_AUDITED = (
    ("psnr_mean", "mean PSNR, dB", 1.0, 1),
    ("psnr_max", "highest PSNR, dB", 1.0, 1),
    ("held_out_psnr_mean", "mean PSNR of real images, dB", 1.0, 1),
    ("held_out_psnr_max", "highest PSNR of real images, dB", 1.0, 1),
    ("from_source", "nearest is a source, %", 100.0, 0),
    ("held_out_from_source", "by chance, %", 100.0, 0),
    ("copied", "stand out as copies, %", 100.0, 1),
)

_AUDIT = (
    "PSNR is the similarity of a shared image to the nearest private image of its class; higher is closer. That of "
    "real images among each other is the baseline. 'Nearest is a source' counts shared images whose nearest private "
    "image is one that they were made from. 'Stand out as copies' counts those that are, as a whole or in a part, "
    "similar to a single private image, also if shifted, mirrored or recoloured; up to 3 % are expected by chance."
)


def privacy(group: Group) -> Section | None:
    """Return the privacy statement of the runs with differential privacy."""
    blocks: list[Block] = []
    for variant in (v for v in group.variants if v.first.is_private):
        stated = variant.first.result.get("privacy")
        if not isinstance(stated, Mapping):
            blocks.append(Text([f"{variant.label} has differential privacy, but its result.json has no statement."]))
            continue
        blocks.append(Text([sentence for r in variant.results[:1] if (sentence := tables.privacy_sentence(r))]))
        rows: list[list[Cell]] = [[_words(name), _plain(value)] for name, value in _flat(stated)]
        blocks.append(Table(f"The guarantee of {variant.label} and its mechanism", ["parameter", "value"], rows))
        if outside := stated.get("outside_guarantee"):
            blocks.append(Text([f"Not covered by the guarantee: {'; '.join(map(str, outside))}."]))
    intro = "With differential privacy, exact counts of samples and audits against private images are not shown."
    return Section("privacy", "Privacy", intro, blocks) if blocks else None


def audits(group: Group) -> Section | None:
    """Return the copy audit and the disclosure of the methods that share images without differential privacy."""
    shown = [variant for variant in group.variants if not variant.first.is_private]
    blocks: list[Block] = []
    rows = [_audit_row(variant, result) for variant in shown for result in variant.results if _audit(result)]
    if rows:
        columns = ["method", "seed", "shared images", *(title for _, title, _, _ in _AUDITED)]
        blocks.append(Table("Copy audit: similarity of shared images to the nearest private image", columns, rows))
        blocks.append(Text([_AUDIT]))
    said = [sentence for variant in shown if (sentence := tables.disclosure_sentence(variant.results[0]))]
    if said:
        blocks.append(Text(said))
    blocks += [table for variant in shown if (table := _disclosed(variant))]
    intro = "Measured by the clients on their own data: numbers over all shared images, nothing about a single image."
    return Section("audits", "Audits", intro, blocks) if blocks else None


def _audit(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = result.get("copy_audit")
    return found if isinstance(found, Mapping) and found else None


def _audit_row(variant: Variant, result: Mapping[str, Any]) -> list[Cell]:
    audit = _audit(result) or {}
    cells: list[Cell] = [name_of(variant), _number(result["seed"]), _number(audit.get("images"))]
    for key, _, factor, digits in _AUDITED:
        value = audit.get(key)
        cells.append("\N{EN DASH}" if value is None else Num(f"{factor * value:.{digits}f}", factor * value))
    return cells


def _disclosed(variant: Variant) -> Table | None:
    found = (variant.first.result.get("disclosed") or {}).get("clients")
    if not found:
        return None
    names = variant.first.classes
    rows: list[list[Cell]] = []
    for client, facts in found.items():
        images = ", ".join(f"{_class_name(names, label)}: {count}" for label, count in facts["images"].items())
        ratio = Num(f"{facts['per_sample_at_most']:g}", facts["per_sample_at_most"])
        rows.append([client, Num(str(facts["total"]), facts["total"]), ratio, images])
    caption = f"Condensed images that each client of {variant.label} sent, seed {variant.first.result['seed']}"
    return Table(caption, ["client", "images", "per sample at most", "by class"], rows, folded=True)


def _class_name(names: Sequence[str], label: str) -> str:
    return names[int(label)] if label.isdigit() and int(label) < len(names) else label


def settings(group: Group) -> Section | None:
    """Return the settings in which the runs differ from their presets, and from each other."""
    changed = {v.label: v.first.result.get("settings_changed") for v in group.variants}
    blocks: list[Block] = []
    known = {label: found for label, found in changed.items() if isinstance(found, Mapping)}
    presets = {v.label: str(v.first.result.get("preset", "unknown")) for v in group.variants}
    if known:
        blocks.append(_changed_table(known, presets))
    if unknown := [label for label in changed if label not in known]:
        what = f"The difference to the preset is not recorded by the runs of {', '.join(unknown)}, which are older."
        blocks.append(Text([what]))
    if differing := _differing(group.variants):
        blocks.append(differing)
    named = "; ".join(dict.fromkeys(presets.values()))
    intro = f"What differs from the preset ({named}), of the first seed. config.toml of a run has all settings."
    return Section("settings", "Settings", intro, blocks)


def _changed_table(changed: Mapping[str, Mapping[str, Any]], presets: Mapping[str, str]) -> Block:
    paths = list(dict.fromkeys(path for found in changed.values() for path in found))
    if not paths:
        return Text(["Every setting has the value of the preset."])
    rows: list[list[Cell]] = []
    for path in paths:
        has = [found[path] for found in changed.values() if isinstance(found.get(path), Mapping)]
        usual = "; ".join(dict.fromkeys(_plain(one.get("preset")) for one in has))
        values = [_plain(found[path].get("run")) if path in found else "" for found in changed.values()]
        rows.append([path, usual, *values])
    caption = "Settings that differ from the preset; an empty cell has the value of the preset"
    return Table(caption, ["setting", "preset", *changed], rows)


def _differing(variants: Sequence[Variant]) -> Table | None:
    """Return the settings in which variants of the same method differ, which their labels may not name."""
    several = [v for v in variants if sum(v.method == other.method for other in variants) > 1]
    paths = dict.fromkeys(path for v in several for path in v.first.settings)
    rows: list[list[Cell]] = []
    for path in paths:
        values = [_plain(v.first.settings.get(path)) for v in several]
        if len(set(values)) > 1 and path not in ("run.seed", "data.dir"):
            rows.append([path, *values])
    if not rows:
        return None
    return Table("Settings in which these runs differ", ["setting", *(v.label for v in several)], rows)


def versions(group: Group) -> Section:
    """Return what computed the numbers: versions, commit and device of each run."""
    rows: list[list[Cell]] = []
    for variant in group.variants:
        for run in variant.runs:
            result = run.result
            named = result.get("versions") or {}
            commit = str(result.get("commit") or "not recorded")
            cells = [str(named.get(name) or "not recorded") for name in ("fedaf", "torch", "python")]
            device = _device(result)
            computed = ", ".join(str(result[key]) for key in ("engine", "precision") if result.get(key))
            rows.append(
                [name_of(variant), _number(result["seed"]), *cells, commit[:12], device, computed or "not recorded"]
            )
    columns = ["method", "seed", "fedaf", "torch", "python", "commit", "device", "engine and precision"]
    first = group.variants[0].first.result
    facts: dict[str, Sequence[Cell]] = {
        "Model": [str(first.get("model") or "not recorded")],
        "Version of the method": [
            _several(str(v.first.result.get("method_version", "not recorded")) for v in group.variants)
        ],
    }
    return Section(
        "versions", "Versions", "", [Table("What computed each run", columns, rows), Facts("Model and method", facts)]
    )


def _device(result: Mapping[str, Any]) -> str:
    threads = result.get("threads")
    named = str(result.get("device") or "not recorded")
    return f"{named}, {threads} {'thread' if threads == 1 else 'threads'}" if threads else named


def _several(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _flat(stated: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in stated.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}: ")
        elif name not in ("outside_guarantee", "warning"):
            yield f"{prefix}{name}", value


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: Any) -> Cell:
    """Return a number of a JSON file."""
    return Num(f"{value:g}", value) if isinstance(value, int | float) else _plain(value)


def _plain(value: Any) -> str:
    """Return a value of a JSON file as text."""
    if value is None:
        return "unset"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value)
