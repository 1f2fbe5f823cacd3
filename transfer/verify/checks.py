"""The checks of a run's consistency for `python -m transfer.verify` and imported bundles.

Each check returns two lists of sentences: what is wrong, and what could not be checked.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backbones.checkpoints.exports import EXPORT, WEIGHT_FILES, WEIGHTS, pretraining_facts
from backbones.errors import UserError
from backbones.user_code import is_in_file
from backbones.weights import sha256
from transfer.records.checksums import file_checksums
from transfer.records.per_sample import OUTCOMES, ScoreMismatch, UnusableOutcomes, check, read
from transfer.records.record import Record, RunKey
from transfer.records.store import NOT_LISTED
from transfer.verify.users_parts import scores_of_metrics, users_file, users_metrics

if TYPE_CHECKING:
    from tasks.task import Task

Checks = tuple[list[str], list[str]]
PRETRAIN = "pretrain-"


def check_files(folder: Path, record: Record) -> Checks:
    """Check that the files of a run are those of its record."""
    if not record.files:
        return [], ["files not checked: the record is of a version that did not list them"]
    present = file_checksums(folder, without=NOT_LISTED, export=(folder / EXPORT).is_dir())
    wrong = [f"{name}: missing" for name in record.files if name not in present]
    for name, recorded in record.files.items():
        actual = present.get(name, recorded)
        if actual != recorded:
            change = (
                "changed"
                if actual["size"] == recorded["size"]
                else f"{actual['size']} bytes instead of {recorded['size']}"
            )
            wrong.append(f"{name}: not the file that the run wrote ({change})")
    extra = [name for name in present if name not in record.files]
    notes = [f"not of the record: {', '.join(extra)}"] if extra else []
    left_out = (record.shared or {}).get("left_out", [])
    return wrong, notes + ([f"a shared copy, without {', '.join(left_out) or 'its paths'}"] if record.shared else [])


def check_run_key(folder: Path, record: Record) -> Checks:
    """Check that the run's name and key are what the content of its key gives."""
    wrong = []
    if not record.run_id.endswith(f"-{record.run_key[:12]}"):
        wrong.append(f"run_id: {record.run_id} is not that of run key {record.run_key[:12]}")
    if folder.resolve().name != record.run_id:
        wrong.append(f"the folder is named {folder.resolve().name}, its run {record.run_id}")
    content = record.run_key_content
    run_key = RunKey(content)
    if run_key.digest != record.run_key:
        wrong.append(f"run_key: {record.run_key[:12]} in the record, {run_key.digest[:12]} from its content")
    if run_key.without("seed").digest != record.config_digest:
        wrong.append("config_digest: not the digest of the run key's content without the seed")
    if content.get("user_code", {}) != {part: code.get("sha256") for part, code in record.user_code.items()}:
        wrong.append("user_code: other files in the record than in its identity")
    return wrong + _contradictions(content, record), []


def _contradictions(content: dict[str, Any], record: Record) -> list[str]:
    """Return the entries that differ between the record and the content of its key."""
    names = ("task", "task_version", "weights_id", "seed", "smoke", "subset")
    pairs = [(name, content.get(name), getattr(record, name)) for name in names]
    pairs += [(f"dataset {name}", value, record.dataset.get(name)) for name, value in content["dataset"].items()]
    pairs += [
        (name, value, record.options.get(name))
        for name, value in content["options"].items()
        if not _is_digest(value)  # then the option names a file
    ]
    resolved = (name for name in ("precision", "eval_precision") if name in content)
    pairs += [(name, content[name], record.environment.get(name)) for name in resolved]
    return [f"{name}: {entry} in the record, {keyed} in its identity" for name, keyed, entry in pairs if keyed != entry]


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def check_scores(folder: Path, record: Record) -> Checks:
    """Check that the task computes exactly these scores from the per-sample results, and that intervals can be made."""
    path = folder / OUTCOMES
    if not record.scores and not path.exists():
        return [], []
    try:
        outcomes = read(path)
    except UnusableOutcomes as error:
        return [f"{OUTCOMES}: {error}"], []
    unusable, mismatch = _check_outcomes(record, outcomes)
    try:
        task = task_of(record)
        outcomes = {name: array for name, array in outcomes.items() if name not in users_metrics(record)}
        computed = task.rescore(outcomes) | scores_of_metrics(record, outcomes)
    except UserError as error:  # or a library that scoring needs is not here
        return unusable + mismatch, [f"scores not computed anew: {error}"]
    except Exception as error:  # whatever a damaged file leads to
        reason = f"{OUTCOMES}: cannot be scored ({type(error).__name__}: {error})"
        return list(dict.fromkeys([*unusable, *mismatch, reason])), []
    names = dict.fromkeys([*record.scores, *computed])
    differing = [name for name in names if record.scores.get(name) != computed.get(name)]
    values = {name: (record.scores.get(name), computed.get(name)) for name in differing}
    anew = [f"{name}: {there} in the record, {here} from {OUTCOMES}" for name, (there, here) in values.items()]
    return unusable + (anew or mismatch) + _contradicts_task(record, task), []


def _check_outcomes(record: Record, outcomes: dict[str, np.ndarray[Any, Any]]) -> Checks:
    """Return why `--compare` would refuse the per-sample results: they are malformed, or they give another score."""
    try:
        check(record, outcomes)
    except ScoreMismatch as error:
        return [], [f"{OUTCOMES}: {error}"]
    except UnusableOutcomes as error:
        return [f"{OUTCOMES}: {error}"], []
    return [], []


def _contradicts_task(record: Record, task: "Task") -> list[str]:
    """Return where the record and the task differ in units, directions, bounds or the primary score."""
    wrong = [f"primary: {record.primary} in the record, {task.primary} of the task"] * (record.primary != task.primary)
    of_task = {name: recorded for name, recorded in record.metrics.items() if name not in users_metrics(record)}
    for name, recorded in of_task.items():
        metric = json.loads(json.dumps(task.metric(name).as_dict()))
        differing = [key for key, value in recorded.items() if value != metric.get(key)]
        wrong += [
            f"metrics: {key} of {name} is {recorded[key]} in the record, {metric.get(key)} of the task"
            for key in differing
        ]
    return wrong


def task_of(record: Record) -> "Task":
    """Return the task that made a record.

    Raises:
        UserError: there is no task of that name and version here.
    """
    from backbones.pretrain.method import load_method
    from tasks.task import load_task
    from transfer.evaluation.pretraining_task import Pretraining

    name = record.task
    if is_in_file(name.removeprefix(PRETRAIN)):
        raise UserError(f"there is no task {name} here")
    try:
        if name.startswith(PRETRAIN):
            task: Task = Pretraining(load_method(users_file(record, "method") or name.removeprefix(PRETRAIN)))
        else:
            task = load_task(users_file(record, "task") or name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"there is no task {name} here ({error})") from None
    if record.task_version != task.version:
        raise UserError(
            f"version {record.task_version} of task {name} made the record, and here is version {task.version}, which "
            "scores differently; use that version of the suite"
        )
    return task


def check_weights(folder: Path, record: Record, elsewhere: Path | None) -> Checks:
    """Check the weights that a run started from and those that it left against its record, if they are here."""
    wrong, notes = _started_from(record, elsewhere)
    export = folder / EXPORT / WEIGHTS
    if record.export and export.is_file() and _weights_id(export) != record.export:
        wrong.append(f"{EXPORT}/{WEIGHTS}: not the weights that the run left ({record.export})")
    for target in _published(record, elsewhere):
        if _weights_id(target / WEIGHTS) != record.export:
            wrong.append(f"{target / WEIGHTS}: not the weights that the run left ({record.export})")
    return wrong, notes


def _published(record: Record, elsewhere: Path | None) -> Iterator[Path]:
    """Yield folders whose `pretrain.json` says that they hold the export of this run."""
    if record.export is None:
        return
    name = record.options.get("name") or record.backbone.get("name", "")
    usual = [Path(record.options["weights_to"]) / name] if "weights_to" in record.options else []
    for folder in _below(elsewhere) if elsewhere else usual:
        if (folder / WEIGHTS).is_file() and pretraining_facts(folder).get("identity") == record.run_key:
            yield folder


def _started_from(record: Record, elsewhere: Path | None) -> Checks:
    if not record.weights_id.startswith("sha256:"):
        return [], []
    if record.shared and elsewhere is None:
        return [], ["weights not checked: a shared copy does not say where they are; --weights FOLDER does"]
    candidates = found_weights(record, elsewhere)
    if record.weights_id in candidates.values():
        return [], []
    if not candidates:
        where = f"in {elsewhere}" if elsewhere else "where the run found them"
        return [], [f"weights not checked: there are none {where}; --weights FOLDER looks elsewhere"]
    named = ", ".join(f"{file} ({digest[:19]})" for file, digest in candidates.items())
    return [f"weights: the run started from {record.weights_id[:19]}, but here are {named}"], []


def found_weights(record: Record, elsewhere: Path | None) -> dict[Path, str]:
    """Return the weight files in or below a folder, or where a run found its own, with their ids."""
    sources = [record.options.get("weights"), record.backbone.get("weights")]
    places = _below(elsewhere) if elsewhere else [Path(source) for source in sources if source not in (None, "config")]
    return {file: _weights_id(file) for place in places for file in _files(place)}


def _below(folder: Path) -> list[Path]:
    """Return a folder and its subfolders, sorted."""
    return [folder, *sorted(path for path in folder.iterdir() if path.is_dir())] if folder.is_dir() else []


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return [path for name in WEIGHT_FILES if (path := place / name).is_file()]


def _weights_id(path: Path) -> str:
    return f"sha256:{sha256(path)}"
