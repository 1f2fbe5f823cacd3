"""The sections of a model card as Markdown, from records whose paths were removed."""

import json
from collections.abc import Sequence
from typing import Any

from backbones.archs import ARCHS
from backbones.data.spec import dataset_names, resolve_dataset
from backbones.errors import visible
from transfer.records.protocol import processes
from transfer.records.record import Record
from transfer.report.render.text import without_tags
from transfer.statistics.intervals import mean_and_deviation

UNKNOWN = "unknown"
_PARTS = (
    *("arch", "stem", "attention", "ffn", "patch", "depth", "pool", "pos", "pos_resample"),
    *("qk_norm", "gate", "alpha", "length"),
)
_RECIPE = (
    "epochs",
    "batch",
    "optimizer",
    "lr",
    "warmup_epochs",
    "weight_decay",
    "drop_path",
    "size",
    "label_fraction",
    "export",
)


def marks_of(records: Sequence[Record]) -> list[str]:
    """Return the reasons why the numbers must not be taken for results."""
    smoke = any(r.smoke or r.origin.get("smoke") for r in records)
    subset = any(r.subset is not None or r.origin.get("subset") is not None for r in records)
    dirty = any(r.dirty or r.origin.get("dirty") for r in records)
    marks = {
        "Made with `--smoke`: embedded toy data and a few seconds of training. No result.": smoke,
        "Made from a subset of the data.": subset,
        "Made by source code that was changed after its commit.": dirty,
        "Its training broke down.": any(r.training_failed for r in records),
    }
    return [text for text, applies in marks.items() if applies]


def model(record: Record, weights: str) -> str:
    """Return a table of the backbone's parts, its size, and the id of its weights."""
    parts = {name: record.backbone.get(name) for name in _PARTS}
    files = record.backbone.get("files") or {}
    rows = {name: value for name, value in parts.items() if value is not None}
    rows |= {f"file of the {part}": f"sha256 {digest}; not part of this card" for part, digest in files.items()}
    rows |= {f"image {name}": record.backbone.get(name) or UNKNOWN for name in ("mean", "std")}
    rows |= {"parameters": record.cost.get("params", UNKNOWN), "GFLOPs of an image": record.cost.get("gflops", UNKNOWN)}
    rows["weights"] = weights
    rows |= {"left untrained": ", ".join(record.untrained)} if record.untrained else {}
    return _table(("", "value"), [(name, value) for name, value in rows.items()])


def pretraining_table(record: Record) -> str:
    """Return a table that describes one pretraining."""
    rows: list[tuple[str, Any]] = [
        ("recipe", record.task),
        ("data", _dataset(record)),
        ("images by split", _counts(record)),
    ]
    rows += [("digest of the data", record.dataset.get("digest")), ("seed", record.seed), ("outcome", _outcome(record))]
    rows += [(name, record.options[name]) for name in _RECIPE if record.options.get(name) is not None]
    rows += [("started from", record.weights_id), ("run", record.run_id), ("train_seconds", _seconds(record))]
    return _table(("", "value"), rows)


def no_lineage(weights: str) -> str:
    """Return the text for a card whose pretraining is not known."""
    if weights == "random":
        return "None: the runs started from random weights."
    return f"{UNKNOWN.capitalize()}: no record of it is at hand. The weights are `{weights}`."


def scores(records: Sequence[Record]) -> str:
    """Return a table with a row for each protocol and score."""
    rows = []
    for group in by_protocol(records):
        trained = [record for record in group if not record.training_failed]
        seeds = ", ".join(str(record.seed) for record in group)
        broken = len(group) - len(trained)
        ended = f"{len(trained)} completed" + (f", {broken} broke down" if broken else "")
        where = (group[0].task, _dataset(group[0]))
        about = (seeds, ended, group[0].config_digest[:12], ", ".join(record.run_id for record in group))
        names = shared_scores(trained) or [""]
        rows += [
            (*where, name, _mean([record.shown(name) for record in trained] if name else []), *about) for name in names
        ]
    head = ("task", "data", "score", "percent", "seeds", "outcomes", "protocol", "records")
    note = "In percent: the mean over the seeds that completed, and their standard deviation."
    return f"{note}\n\n{_table(head, rows)}" if rows else f"{UNKNOWN.capitalize()}: there are no records of scores."


def shared_scores(records: Sequence[Record]) -> list[str]:
    """Return the names of the scores that all records have; foreign records of one protocol may lack some."""
    return [name for name in (records[0].scores if records else ()) if all(name in other.scores for other in records)]


def by_protocol(records: Sequence[Record]) -> list[list[Record]]:
    """Group records that differ only in seeds, sorted by task, data set and seed.

    They have equal run keys without the seed, and equal numbers of processes where that belongs to the protocol.
    """
    groups: dict[Any, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.task, record.dataset["name"], record.seed)):
        groups.setdefault((record.config_digest, processes(record)), []).append(record)
    return list(groups.values())


def _mean(scores: list[float]) -> str:
    if not scores:
        return "none"
    mean, deviation = mean_and_deviation(scores)
    return f"{mean:.2f}" + (f" ± {deviation:.2f}" if len(scores) > 1 else "")


def made_with(record: Record) -> str:
    """Return a table of what a run cost and where it was made."""
    cost, environment = record.cost, record.environment
    names = ("train_seconds", "eval_seconds", "device_hours", "peak_mib", "images_per_second")
    rows = [(name, f"{cost[name]:.4g}") for name in names if isinstance(cost.get(name), int | float)]
    facts = ("device", "world_size", "threads", "precision", "git", "started")
    rows += [(name, environment.get(name) or UNKNOWN) for name in facts]
    rows += [(name, version) for name, version in environment.get("versions", {}).items() if version]
    return f"The run is `{record.run_id}`.\n\n{_table(('', 'value'), rows)}"


def licence(records: Sequence[Record]) -> str:
    """Return what is known of the licences of the data; records do not state one for the weights."""
    lines = ["The licence of the weights is unknown: records do not say it."]
    for name in dict.fromkeys(record.dataset["name"] for record in records):
        license = resolve_dataset(name).license if name in dataset_names() else ""
        lines.append(f"Data `{_in_code(name)}`: {license or UNKNOWN}.")
    return "\n\n".join(lines)


def use(record: Record, weights: str) -> str:
    """Return how to load the weights, if there are any and timm can build the model."""
    if weights == "random":
        return "There are no weights to load."
    arch = record.backbone.get("arch", "")
    released = weights.startswith("timm:")
    source, name = (weights.removeprefix("timm:"), weights) if released else ("local-dir:FOLDER", "FOLDER")
    registration = "import backbones.vit  # registers the architecture\n" if arch in ARCHS else ""
    code = f"{registration}import timm\n\nmodel = timm.create_model({json.dumps(_in_code(source))}, pretrained=True)\n"
    sections = [] if ".py:" in arch or (released and arch in ARCHS) else [f"```python\n{code}```"]
    sections += [
        f"The user's file behind its {without_tags(visible(part))} must lie in the working directory."
        for part in record.backbone.get("files") or {}
    ]
    flags = f"--backbone {record.backbone.get('name')} --weights {name}" if released else f"--backbone {name}"
    return "\n\n".join([*sections, f"`python -m transfer.run reid {_in_code(flags)}` evaluates it."])


def _in_code(text: str) -> str:
    """Return a text that cannot end the code in which it stands."""
    return visible(text).replace("`", "'")


def _dataset(record: Record) -> str:
    version = record.dataset.get("version")
    remarks = [f"version {version}"] * bool(version) + ["smoke"] * record.smoke
    remarks += [f"subset {record.subset}"] * (record.subset is not None)
    return str(record.dataset["name"]) + (f" ({', '.join(remarks)})" if remarks else "")


def _counts(record: Record) -> str:
    splits = {name: counts for name, counts in record.dataset.get("counts", {}).items() if isinstance(counts, dict)}
    return ", ".join(f"{name} {counts.get('images', UNKNOWN)}" for name, counts in splits.items()) or UNKNOWN


def _outcome(record: Record) -> str:
    reason = record.outcome.get("reason")
    return str(record.outcome["status"]) + (f": {reason}" if reason else "")


def _seconds(record: Record) -> str:
    seconds = record.cost.get("train_seconds")
    return UNKNOWN if seconds is None else f"{seconds:.4g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(item) for item in line) + " |" for line in lines)


def _cell(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
