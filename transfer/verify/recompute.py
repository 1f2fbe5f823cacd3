"""Evaluates a finished run again from its weights and data, and compares the scores with those of its record.

The task scores the weights as `--epochs 0` does: same options, same precision, in a temporary folder. The results of
its samples are scored by the oracles of `tasks.reference`.
"""

import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from backbones.checkpoints.exports import CONFIG, EXPORT, WEIGHTS
from backbones.errors import UserError
from backbones.spec import BackboneSpec
from transfer.cli.command import Command
from transfer.records.per_sample import Outcomes
from transfer.records.record import Record
from transfer.records.store import OPTIONS
from transfer.verify.checks import PRETRAIN, found_weights, task_of
from transfer.verify.users_parts import scores_of_metrics, users_file

if TYPE_CHECKING:
    from tasks.task import Scores, Task

TOLERANCES = {"fp32": 0.002, "fp16": 0.01, "bf16": 0.03}
"""Largest difference of a score, by the precision of the run, to which two samples are added: another device or version
of torch rounds differently, and may move a sample across a threshold. bfloat16 changed scores by up to 0.01."""


@dataclass
class Outcome:
    """The result of recomputing a run's scores."""

    wrong: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """The lines of a table with score, recorded and recomputed value, difference and tolerance."""
    missing: str = ""
    """The reason why the run was not recomputed; empty if it was."""


def recompute(folder: Path, record: Record, weights: Path | None, data: Path | None) -> Outcome:
    """Recompute the scores of a run; nothing is written to its folder.

    Args:
        weights: the folder in or below which weights are looked for; None means where the run found them.
        data: the folder of the data sets; None means where the run found them.
    """
    if not record.scores:
        return Outcome(lines=["no scores to recompute"])
    start = time.monotonic()
    try:
        scores, outcomes = _evaluated(folder, record, weights, data)
    except UserError as error:
        return Outcome(missing=f"not recomputed: {str(error).splitlines()[0]}")
    samples, precision = len(outcomes["sample"]), record.environment["eval_precision"]
    tolerance = TOLERANCES[precision] + 2 / samples
    seconds = time.monotonic() - start
    lines = [f"evaluated again in {precision}: {samples} samples ({seconds:.1f} s); tolerance {tolerance:.2g}"]
    wrong, width = [], max(map(len, record.scores))
    for name, recorded in record.scores.items():
        again = scores.get(name, np.nan)
        lines.append(f"{name:{width}}  {recorded:10.6f} in the record  {again:10.6f} again")
        if not abs(again - recorded) <= tolerance:
            wrong.append(f"{name}: {recorded} in the record, {again} recomputed, for a tolerance of {tolerance:.2g}")
    return Outcome(wrong, lines)


def _evaluated(folder: Path, record: Record, weights: Path | None, data: Path | None) -> "tuple[Scores, Outcomes]":
    """Return scores and results of samples. Raises UserError that names what is missing."""
    from backbones.engine.cost import Cost
    from backbones.engine.outcome import Outcome as TrainingOutcome
    from tasks.reference.scores import plain_scores
    from transfer.evaluation.evaluator import make_context

    task = task_of(record)
    for part in record.user_code:
        users_file(record, part)
    command = _command(folder, record, task)
    spec, dataset = _weights(folder, record, command, weights), _dataset(record, task, command.options, data)
    with TemporaryDirectory() as scratch:
        context = replace(
            make_context(command),
            seed=record.seed,
            eval_precision=record.environment["eval_precision"],
            folder=Path(scratch),
            quiet=True,
            progress=False,
            save_weights=False,
            cost=Cost(),
            outcome=TrainingOutcome(),
            notes=[],
            details={},
        )
        scores, outcomes = task.recompute(spec, dataset, command.options, context)
        if not scores:
            raise UserError(f"its evaluation broke down: {context.outcome.reason}")
        scores = scores | plain_scores(record.scores, outcomes) | scores_of_metrics(record, outcomes)
        if record.task == "detect" and "classes" not in record.details:
            scores |= _of_detections(Path(scratch), dataset, record.scores)
    return scores, outcomes


def _of_detections(folder: Path, dataset: Any, names: "Scores") -> "Scores":
    """Return COCO's scores of detections by pycocotools."""
    from tasks.facts.detect import RESULTS
    from tasks.reference.detection import coco_numbers

    truth, results = dataset.as_coco(dataset.val), json.loads((folder / RESULTS).read_bytes())
    images = [image.id for image in dataset.val.images]
    scores: Scores = {}
    for prefix, kind in (("box", "bbox"), ("mask", "segm")):
        if any(name.startswith(f"{prefix}_") for name in names):
            numbers = coco_numbers(truth, results, kind, images)
            scores |= {f"{prefix}_{name}": number for name, number in numbers.items()}
    return scores


def _command(folder: Path, record: Record, task: "Task") -> Command:
    """Return the command of the run from its options.yaml, for this process alone."""
    from transfer.cli.command import pretraining_recipe, read_command, task_recipe
    from transfer.cli.options import PretrainRunOptions, RunOptions

    path = folder / OPTIONS
    try:
        if record.task.startswith(PRETRAIN):
            command = read_command(pretraining_recipe(str(path)), task.options, [], PretrainRunOptions)
        else:
            recipe = task_recipe(task.file or record.task)
            command = read_command(recipe, task.options, ["--config", str(path)], RunOptions)
    except SystemExit:
        raise UserError(f"{path}: its options are not those of this version") from None
    return replace(command, run=replace(command.run, sequence_parallel=1))


def _dataset(record: Record, task: "Task", options: Any, data: Path | None) -> Any:
    from backbones.data.spec import resolve_dataset
    from backbones.user_code import check_allowed

    recorded = record.options.get("data")
    spec = resolve_dataset(record.options["dataset"][0])
    check_allowed(spec.reader)
    opened = task.open(
        spec,
        options,
        root=data or (Path(recorded) if recorded else None),
        subset=record.subset,
        skip_unreadable=bool(record.options.get("skip_unreadable")),
    )
    if opened.digest != record.dataset["digest"]:
        raise UserError(f"{opened.name}: the data here is not that of the run; --data FOLDER says where that is")
    return opened


def _weights(folder: Path, record: Record, command: Command, elsewhere: Path | None) -> BackboneSpec:
    """Return the backbone with the weights that the run left, or with those that it scored if it trained nothing."""
    spec = BackboneSpec.from_dict(record.backbone)
    if getattr(command.options, "epochs", 0):
        if not (folder / EXPORT / WEIGHTS).is_file():
            raise UserError(f"the run's weights: there are none in {folder / EXPORT}")
        return replace(spec, weights=str(folder / EXPORT), load="strict")
    if record.weights_id == "random":
        return replace(spec, weights="random")
    if not record.weights_id.startswith("sha256:"):
        return spec
    for file, digest in found_weights(record, elsewhere).items():
        if digest == record.weights_id:
            return replace(spec, weights=str(file.parent if (file.parent / CONFIG).is_file() else file))
    where = f"in {elsewhere}" if elsewhere else "where the run found them"
    raise UserError(f"the weights {record.weights_id[:19]} are not {where}; --weights FOLDER looks elsewhere")
