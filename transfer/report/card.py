"""Writes the model card of a run's weights from records. The card calls unknown what no record says."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from backbones.archs import ARCHS
from transfer.core.errors import visible, visible_lines
from transfer.core.files import rendered
from transfer.core.user_code import VARIED_PARTS, is_in_file
from transfer.data.spec import dataset_names, resolve_dataset
from transfer.records.fields import value_label
from transfer.records.grouping import dataset_label
from transfer.records.protocol import by_export, lineage
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.tables.columns import COST_COLUMNS
from transfer.report.tables.scores import summary
from transfer.report.tables.table import RUN
from transfer.report.tables.text import markdown, without_tags
from transfer.verify.bundle import without_paths

_RECIPE = (
    *("epochs", "batch_size", "optimizer", "lr", "warmup_epochs"),
    *("weight_decay", "drop_path", "size", "label_fraction"),
)
_COST = ("train_seconds", "device_hours", "peak_mib", "images_per_second")
_ENVIRONMENT = ("device", "world_size", "precision", "git", "started")
_MARKS = {
    "smoke": "bundled synthetic data and a few seconds of training (`--smoke`)",
    "dirty": "source code that was changed after its commit",
    "modified": "weights that were changed after their export",
}
Rows = list[tuple[object, ...]]


def model_card(run: StoredRun, runs: Sequence[StoredRun] = ()) -> str:
    """Return a model card in Markdown, with the front matter that the hub reads.

    Args:
        run: the pretraining that exported the weights, or a run that started from them.
        runs: the runs among which the pretraining of the weights and further scores with them are looked for.
    """
    known = {other.record.run_key: other for other in (*runs, run)}.values()
    weights = run.record.export or run.record.weights_id
    before = lineage(run.record, by_export(other.record for other in known))
    trainings = [run.record, *before] if run.record.export else before
    record, *pretrainings = map(without_paths, (run.record, *trainings))
    scored = [other for other in known if _belongs(other.record, run.record, weights)]
    shown = StoredRuns.of((replace(other, record=without_paths(other.record)) for other in scored), known)
    tables = [summary(shown.of_task(task)).without(RUN, *COST_COLUMNS) for task in sorted(shown.tasks)]
    bundled = dataset_names()
    datasets = dict.fromkeys(str(training.dataset["name"]) for training in (record, *pretrainings))
    parts = [(part, str(record.backbone.get(part))) for part in VARIED_PARTS]
    arch, released = record.backbone.get("arch", ""), weights.startswith("timm:")
    flags = f"--backbone {record.backbone['name']} --weights {weights}" if released else "--backbone FOLDER"
    return rendered(
        Path(__file__).parent / "card.md",
        lambda text: without_tags(visible_lines(text)),
        cell=_cell,
        record=record,
        weights=weights,
        marks=list(dict.fromkeys(chain.from_iterable(map(_marks, (record, *pretrainings))))),
        model=_model(record, weights),
        classifies=any(training.primary == "top1" for training in trainings[:1]),
        trainings=list(map(_training, pretrainings)),
        scores="\n\n".join(map(markdown, tables)),
        licences=[(_in_code(name), resolve_dataset(name).license if name in bundled else "") for name in datasets],
        can_load=".py:" not in arch and not (released and arch in ARCHS),
        is_ours=arch in ARCHS,
        copies={part: json.dumps(_in_code(f"FOLDER/{text}")) for part, text in parts if is_in_file(text)},
        source=json.dumps(_in_code(weights.removeprefix("timm:") if released else "local-dir:FOLDER")),
        flags=_in_code(flags),
    )


def _belongs(other: Record, record: Record, weights: str) -> bool:
    """Return whether a card shows a run's scores: the weights are the same, or for random ones the protocol."""
    if other.smoke > record.smoke or (other.subset is not None and record.subset is None):
        return False
    if other.config_digest == record.config_digest:
        return other.export in (None, record.export)
    return weights != "random" and other.weights_id == weights


def _marks(record: Record) -> list[str]:
    """Return the reasons why numbers must not be taken for results, of a run and of the trainings before it."""
    marks = [_MARKS.get(mark, mark) for mark in (*record.marks, *record.origin_marks)]
    return [*marks, "a failed training run"] if record.training_failed else marks


def _model(record: Record, weights: str) -> Rows:
    rows = {name: value for name, value in record.backbone.items() if name not in ("name", "weights", "files")}
    rows |= {f"file of the {part}": f"sha256 {digest}" for part, digest in (record.backbone.get("files") or {}).items()}
    rows |= {"weights": weights, "left untrained": record.untrained, "run": record.run_id}
    rows |= {"params": record.cost.get("params")}
    return _known(rows | {"GFLOPs of an image (two per multiply-add)": record.cost.get("gflops")})


def _training(record: Record) -> Rows:
    outcome = ": ".join(filter(None, (record.status, record.reason)))
    recipe = {name: record.options.get(name) for name in _RECIPE}
    counts = record.dataset.get("counts", {}).items()
    splits = ", ".join(f"{name} {part['images']}" for name, part in counts if isinstance(part, dict))
    facts = {"recipe": record.task, "data": dataset_label([record], {}), "images": splits, "seed": record.seed}
    images = record.details.get("preprocessing", {}).items()
    facts |= {"preprocessing": [f"{name} {value_label(value)}" for name, value in images]}
    facts |= {"outcome": outcome, **recipe, "started from": record.weights_id, "run": record.run_id}
    facts |= {name: record.cost.get(name) for name in _COST}
    facts |= {name: record.environment.get(name) for name in _ENVIRONMENT}
    return _known(facts | record.environment.get("versions", {}))


def _in_code(text: str) -> str:
    """Return a text that cannot end the code in which it stands."""
    return visible(text).replace("`", "'")


def _known(facts: dict[str, Any]) -> Rows:
    return [(name, value) for name, value in facts.items() if value not in (None, "", [])]


def _cell(value: object) -> str:
    """Return a value as it stands in a cell, on one line."""
    values = value if isinstance(value, list | tuple) else [value]
    text = ", ".join(f"{item:.4g}" if isinstance(item, float) else value_label(item) for item in values)
    return text.replace("|", "\\|").replace("\n", " ")
