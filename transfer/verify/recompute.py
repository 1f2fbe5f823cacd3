"""Finds a run's data and weights, recomputes its scores by `tasks.reference`, and compares them with the record."""

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.checkpoints.exports import CONFIG, EXPORT, WEIGHTS
from backbones.errors import UserError
from backbones.spec import BackboneSpec
from transfer.records.per_sample import OUTCOMES, UnusableOutcomes, arrays_in
from transfer.records.record import Record
from transfer.records.store import OPTIONS
from transfer.verify.checks import PRETRAIN, found_weights, task_of
from transfer.verify.users_parts import users_file, users_metrics

if TYPE_CHECKING:
    from tasks.reference.recomputed import Recomputed, ScoreComparison
    from tasks.reference.run_inputs import RunInputs
    from tasks.task import Task


@dataclass(frozen=True)
class Search:
    """The folders in which weights and data are looked for, and the number of samples to recompute."""

    weights: Path | None = None
    """The folder in or below which weights are looked for; None means where the run found them."""
    data: Path | None = None
    """The folder of the data sets; None means where the run found them."""
    subset: int | None = None
    """The number of queries or images; None means all."""


@dataclass
class Outcome:
    """The result of recomputing a run's scores."""

    wrong: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """The lines of a table with score, recorded and recomputed value, difference and tolerance."""
    missing: str = ""
    """The reason why the run was not recomputed; empty if it was."""


def recompute(folder: Path, record: Record, search: Search) -> Outcome:
    """Recompute the scores of a run without writing anything; see `tasks.reference`."""
    if not record.scores:
        return Outcome(lines=["no scores to compute anew"])
    start = time.monotonic()
    try:
        with _plain_precision():
            computed = _reference(record)(_run_inputs(folder, record, search))
    except UserError as error:
        return Outcome(missing=f"not computed anew: {str(error).splitlines()[0]}")
    seconds = time.monotonic() - start
    lines = [f"computed anew in float64 from {computed.source} ({seconds:.1f} s)", *_table(record, computed)]
    lines += [f"not computed anew: {score}" for score in computed.not_recomputed]
    if (precision := _scored_in(record)) not in ("fp32", "fp64"):
        lines.append(f"scored in {precision}, whose rounding moves scores as well: only errors beyond it can be told")
    wrong = [_difference_text(row) for row in computed.rows if not row.agrees]
    lines += [f"not computed anew: {name}, a metric of the user's" for name in users_metrics(record)]
    missing = record.scores.keys() - {row.name for row in computed.rows} - {*users_metrics(record)}
    wrong += [f"{name}: in the record, and not among the scores of its task" for name in sorted(missing)]
    return Outcome(wrong, lines)


def _reference(record: Record) -> "Callable[[RunInputs], Recomputed]":
    """Return the function that recomputes the scores of a run: one of `tasks.reference`, or of the user's task."""
    if users_file(record, "task") or users_file(record, "method"):
        return partial(_by_users_task, task_of(record))
    task = record.task
    name = task.replace("-", "_")
    try:
        statement: Callable[[RunInputs], Recomputed] = importlib.import_module(f"tasks.reference.{name}").recompute
        return statement
    except ModuleNotFoundError as error:
        if error.name != f"tasks.reference.{name}":
            raise UserError(f"{error.name} is not installed here") from None
        raise UserError(f"there is no plain statement of task {task} in tasks/reference") from None


def _by_users_task(task: "Task", run: "RunInputs") -> "Recomputed":
    """Return what the method `recompute` of a user's task gives. Raises UserError if it has none."""
    from tasks.reference.recomputed import SCORE_TOLERANCES, Recomputed, ScoreComparison

    try:
        scores = task.recompute(run)
    except NotImplementedError:
        raise UserError(f"{task.file} has no method `recompute`") from None
    tolerance = SCORE_TOLERANCES[run.precision] + 2 / len(run.outcomes["sample"])
    rows = [ScoreComparison(name, run.scores.get(name), score, tolerance) for name, score in scores.items()]
    return Recomputed(f"images and weights by {Path(task.file).name}", rows)


@contextmanager
def _plain_precision() -> Iterator[None]:
    """Disable autocast, whatever the caller has enabled."""
    import torch

    with torch.autocast("cpu", enabled=False):
        yield


def _run_inputs(folder: Path, record: Record, search: Search) -> "RunInputs":
    """Collect all inputs of the reference implementation. Raises UserError that names what is missing."""
    from tasks.reference.run_inputs import RunInputs

    task = task_of(record)
    for part in record.user_code:
        users_file(record, part)
    if record.task_version != task.version:
        raise UserError(
            f"version {record.task_version} of task {record.task} scored the run, and here is version {task.version}"
        )
    options = _options(folder, record, task.options)
    try:
        outcomes = arrays_in(folder / OUTCOMES)
    except UnusableOutcomes as error:
        raise UserError(f"{OUTCOMES}: {error}") from None
    spec, weights, note = _weights(record, search)
    export = folder / EXPORT
    store = record.options.get("features")
    return RunInputs(
        folder=folder,
        options=options,
        dataset=_dataset(record, task, options, search.data),
        spec=spec,
        weights_description=weights,
        missing_weights=note,
        export=export if (export / WEIGHTS).is_file() and (export / CONFIG).is_file() else None,
        store=Path(store) if store else None,
        seed=record.seed,
        precision=_scored_in(record),
        scores=record.scores,
        details=record.details,
        outcomes=outcomes,
        subset=search.subset,
    )


def _options(folder: Path, record: Record, kind: type[Any]) -> Any:
    """Return the options of the run from its options.yaml."""
    from transfer.cli.command import pretraining_recipe, read_command, task_recipe
    from transfer.cli.options import PretrainRunOptions, RunOptions

    path = folder / OPTIONS
    if not path.is_file():
        raise UserError(f"the run's options: there is no {path} here")
    try:
        if record.task.startswith(PRETRAIN):
            return read_command(pretraining_recipe(str(path)), kind, [], PretrainRunOptions).options
        recipe = task_recipe(users_file(record, "task") or record.task)
        return read_command(recipe, kind, ["--config", str(path)], RunOptions).options
    except SystemExit:
        raise UserError(f"{path}: its options are not those of this version") from None


def _dataset(record: Record, task: Any, options: Any, data: Path | None) -> Any:
    from backbones.data.spec import resolve_dataset
    from backbones.user_code import check_allowed

    recorded_root = record.options.get("data")
    root = data or (Path(recorded_root) if recorded_root else None)
    spec = resolve_dataset(record.options["dataset"][0])
    check_allowed(spec.reader)
    try:
        opened = task.open(
            spec,
            options,
            root=root,
            subset=record.subset,
            skip_unreadable=bool(record.options.get("skip_unreadable")),
        )
    except UserError as error:
        raise UserError(f"the images: {str(error).splitlines()[0]}; --data FOLDER says where they are") from None
    digest = record.dataset.get("digest") or "no digest"
    if opened.digest != digest:
        raise UserError(
            f"the images: those of {opened.name} here are not those of the run (digest {opened.digest[:12]}, "
            f"{digest[:12]} in the record); --data FOLDER says where they are"
        )
    return opened


def _weights(record: Record, search: Search) -> tuple[BackboneSpec, str, str]:
    """Return the run's backbone with its initial weights, their description, and why they are missing if they are."""
    spec = BackboneSpec.from_dict(record.backbone)
    wanted = record.weights_id
    if wanted == "random":
        return replace(spec, weights="random"), f"weights drawn anew from seed {record.seed}", ""
    if not wanted.startswith("sha256:"):
        return spec, f"weights {wanted}", ""
    for file, digest in found_weights(record, search.weights).items():
        if digest == wanted:
            exported = (file.parent / CONFIG).is_file()
            return replace(spec, weights=str(file.parent if exported else file)), "weights", ""
    where = f"in {search.weights}" if search.weights else "where the run found them"
    return spec, "", f"the weights {wanted[:19]} are not {where}; --weights FOLDER looks elsewhere"


def _scored_in(record: Record) -> str:
    """Return the precision in which the run was scored."""
    return str(record.environment["eval_precision"])


def _table(record: Record, recomputed: "Recomputed") -> list[str]:
    """Return the lines of the table, aligned in columns."""
    width = max([len(row.name) for row in recomputed.rows] or [0])
    title = f"{'':{width}}  {'record':>10}  {'anew':>10}  {'difference':>10}  {'tolerance':>9}"
    return [
        title,
        *(_line(row, width) for row in recomputed.rows if row.recorded is not None or row.recomputed is not None),
    ]


def _line(row: "ScoreComparison", width: int) -> str:
    recorded, anew = ("none" if value is None else f"{value:.6f}" for value in (row.recorded, row.recomputed))
    return f"{row.name:{width}}  {recorded:>10}  {anew:>10}  {row.difference:10.1e}  {row.tolerance:9.1e}"


def _difference_text(row: "ScoreComparison") -> str:
    if row.differing_samples and row.recorded is None:
        return f"{row.name}: {row.differing_samples}"
    values = f"{row.recorded} in the record, {row.recomputed} computed anew"
    if row.difference <= row.tolerance:
        return f"{row.name}: scored differently in {row.differing_samples}"
    return f"{row.name}: {values}, {row.difference:.2g} apart for {row.tolerance:.2g}" + (
        f"; {row.differing_samples}" if row.differing_samples else ""
    )
