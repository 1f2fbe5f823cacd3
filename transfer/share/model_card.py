"""Writes model cards from records, and weights in the layout of the Hugging Face hub. Nothing is uploaded.

The card calls unknown what no record says.
"""

import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backbones.checkpoints.exports import CONFIG, EXPORT, PRETRAIN, WEIGHTS, pretraining_facts, read_config
from backbones.errors import UserError, visible, visible_lines
from backbones.runtime.files import check_writable, replace_folder, write_error
from backbones.runtime.scratch import scratch_folder
from backbones.settings import write_yaml
from transfer.records.checksums import size_and_sha256
from transfer.records.protocol import by_export, lineage
from transfer.records.store import Record, Run
from transfer.report.render.text import without_tags
from transfer.share.card_sections import (
    UNKNOWN,
    by_protocol,
    licence,
    made_with,
    marks_of,
    model,
    no_lineage,
    pretraining_table,
    scores,
    shared_scores,
    use,
)
from transfer.share.strip_paths import portable, short_values, without_paths

CARD = "README.md"
# The hub's names of tasks; it has none for retrieval.
_HUB_TASKS = {"detect": "object-detection", "reid": "image-feature-extraction"}


def model_card(run: Run, runs: Sequence[Run] = ()) -> str:
    """Return a model card in Markdown, with the front matter that the hub reads.

    Args:
        run: the pretraining that exported the weights, or a run that started from them.
        runs: the runs among which the pretraining of the weights and further scores with them are looked for.
    """
    others = list({other.record.run_key: other.record for other in (*runs, run)}.values())
    weights = run.record.export or run.record.weights_id
    trainings = [run.record] * bool(run.record.export) + lineage(run.record, by_export(others))
    pretrainings = [without_paths(record) for record in trainings]
    scored = [without_paths(other) for other in others if _belongs(other, run.record, weights)]
    record = without_paths(run.record)
    marks = marks_of([record, *pretrainings])
    sections = [
        f"# {visible(str(record.backbone.get('name') or UNKNOWN))}",
        *(["> " + " ".join(marks)] if marks else []),
        "## Model\n\n" + model(record, weights),
        "## Pretraining\n\n" + ("\n\n".join(map(pretraining_table, pretrainings)) or no_lineage(weights)),
        "## Scores\n\n" + scores(scored),
        "## Cost and environment\n\n" + made_with(record),
        "## Licence\n\n" + licence([record, *pretrainings]),
    ]
    body = [*map(without_tags, sections), "## Use\n\n" + use(record, weights)]  # whose code is shown as it is
    front_matter = write_yaml(_front_matter(record, scored, marks))
    return visible_lines("---\n" + front_matter + "---\n\n" + "\n\n".join(body) + "\n")


def hub_layout(run: Run, weights: Path | None, folder: Path, runs: Sequence[Run] = ()) -> Path:
    """Write a folder in the hub's layout: card, `config.json`, `model.safetensors`, `pretrain.json`.

    `timm.create_model("local-dir:FOLDER", pretrained=True)` and `--backbone FOLDER` load it.

    Args:
        run: the run that the card describes; see `model_card`.
        weights: an exported folder. None means the export of the run itself.
        folder: the folder to write, which must not exist or must be empty.
        runs: see `model_card`.

    Raises:
        UserError: the weights are missing or not those of the record, or the folder cannot be written.
    """
    source = weights or run.folder / EXPORT
    expected = run.record.export or run.record.weights_id
    if not (source / WEIGHTS).is_file():
        raise UserError(f"{source}: there is no {WEIGHTS}; name the exported folder with --weights")
    actual = f"sha256:{size_and_sha256(source / WEIGHTS)['sha256']}"
    if actual != expected:
        raise UserError(f"{source / WEIGHTS}: {actual}, but the record of {run.record.run_id} is about {expected}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--output {folder}: is there already; choose a folder that does not exist, or an empty one")
    config, facts, card = read_config(source), pretraining_facts(source), model_card(run, runs)
    config["model_args"] = short_values(config.get("model_args", {}))
    check_writable(folder.parent, "--output")
    try:
        with scratch_folder(folder.parent, folder.name) as scratch:
            staged = scratch / "new"
            staged.mkdir()
            (staged / CARD).write_text(card, encoding="utf-8")
            (staged / CONFIG).write_text(_json(config | short_values({"architecture": config["architecture"]})))
            if facts:
                (staged / PRETRAIN).write_text(_json(portable(facts)), encoding="utf-8")
            shutil.copyfile(source / WEIGHTS, staged / WEIGHTS)
            replace_folder(staged, folder)
    except OSError as error:
        raise write_error(folder, error, "--output") from error
    return folder


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n"


def _belongs(other: Record, record: Record, weights: str) -> bool:
    """Return whether a card shows a run's scores: the weights are the same, or for random ones the protocol."""
    if other.smoke > record.smoke or (other.subset is not None and record.subset is None):
        return False
    if other.config_digest == record.config_digest:
        return other.export in (None, record.export)
    return weights != "random" and other.weights_id == weights


def _front_matter(record: Record, scored: Sequence[Record], marks: Sequence[str]) -> dict[str, Any]:
    """Return the hub's keys, without scores of smoke runs, subsets and changed sources."""
    tags = ["image-feature-extraction", "vit-transfer", *(["smoke"] if record.smoke else [])]
    front_matter: dict[str, Any] = {"library_name": "timm", "license": UNKNOWN, "tags": tags}
    front_matter["pipeline_tag"] = "image-feature-extraction"
    groups = [[r for r in group if not r.training_failed and r.scores] for group in by_protocol(scored)]
    results = [_hub_result(group) for group in groups if group and not marks and not marks_of(group)]
    name = record.backbone.get("name", UNKNOWN)
    return front_matter | ({"model-index": [{"name": name, "results": results}]} if results else {})


def _hub_result(group: list[Record]) -> dict[str, Any]:
    first, seeds = group[0], f"mean of seeds {', '.join(str(record.seed) for record in group)}"
    means = {name: statistics.mean(record.scores[name] for record in group) for name in shared_scores(group)}
    return {
        "task": {"type": _HUB_TASKS.get(first.task, "image-classification"), "name": first.task},
        "dataset": {"type": first.dataset["name"], "name": first.dataset["name"]},
        "metrics": [{"type": name, "name": f"{name}, {seeds}", "value": mean} for name, mean in means.items()],
    }
