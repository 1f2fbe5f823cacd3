"""The checks of a run's consistency for `python -m transfer.verify` and imported bundles.

Each check returns two lists of sentences: what is wrong, and what could not be checked.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from transfer.core import user_code
from transfer.core.errors import UserError, first_line
from transfer.core.user_code import is_in_file
from transfer.records.per_sample import OUTCOMES, ScoreMismatch, UnusableOutcomes, check_outcomes, read
from transfer.records.protocol import named_by_content
from transfer.records.record import Record, RunKey, is_modified
from transfer.records.store import RECORD, file_checksums
from transfer.task import PRETRAIN, Task, load_task

SET_BY_RUN = {"drop_path", "train_size"}
"""Fields of the backbone that a task's options set when they build it."""
METRIC = "metric "
"""Beginning of the names of metrics in `Record.user_code`."""


def users_file(record: Record, part: str) -> str:
    """Return a user's part of a run, `path/to/file.py:NAME`; empty if that part is one of the suite.

    Raises:
        UserError: its file is not here, or not the one that the run used, or the user has not named it before.
    """
    if part not in record.user_code:
        return ""
    code = record.user_code[part]
    file = user_code.locate(code["file"])
    if (here := user_code.digest(file)) != code["sha256"]:
        shas = f"sha256 {code['sha256'][:12]} in the record, {here[:12]} here"
        raise UserError(f"the {part} of the run, {file}: the file has changed since ({shas})")
    user_code.check_allowed(file)
    return file


Checks = tuple[list[str], list[str]]


def check_files(folder: Path, record: Record) -> Checks:
    """Check that the files of a run are those of its record."""
    present = file_checksums(folder)
    wrong = [f"{name}: missing" for name in record.files if name not in present]
    for name, recorded in record.files.items():
        if present.get(name, recorded) != recorded:
            wrong.append(f"{name}: not the file that the run wrote ({present[name]['size']} bytes)")
    extra = [name for name in present if name not in record.files]
    notes = [f"not of the record: {', '.join(extra)}"] if extra else []
    left_out = (record.shared or {}).get("left_out", [])
    return wrong, notes + ([f"a shared copy, without {', '.join(left_out) or 'its paths'}"] if record.shared else [])


def check_key(record: Record) -> list[str]:
    """Return what a record says otherwise than the content of its run key; see `PlannedRun.run_key`."""
    content, wrong = record.run_key_content, list[str]()
    if (digest := RunKey(content).digest) != record.run_key:
        wrong.append(f"run_key: {record.run_key[:12]} in the record, {digest[:12]} from its content")
    whole = {name: getattr(record, name) for name in ("task", "task_version", "weights_id", "seed", "smoke", "subset")}
    whole |= {name: record.environment.get(name) for name in ("precision", "eval_precision", "device_type")}
    planned = {name for name, value in content.get("backbone", {}).items() if value is not None} - SET_BY_RUN
    backbone = named_by_content(record.backbone)
    # where the key has none, the record has the value that it stood for
    resize = {"resize": None} if content.get("options", {}).get("resize", 0) is None else {}
    stated = {
        "": whole,
        "options": record.options | resize,
        "dataset": record.dataset,
        "backbone": {name: backbone[name] for name in planned & backbone.keys()},
        "user_code": {part: code["sha256"] for part, code in record.user_code.items()},
    }
    for part, values in stated.items():
        of_key = content.get(part, {}) if part else content  # in which files are sha256 digests of their content
        for name in sorted(of_key.keys() & values.keys()):
            if of_key[name] != values[name] and not re.fullmatch("[0-9a-f]{64}", str(of_key[name])):
                entry = f"{part}.{name}" if part else name
                wrong.append(f"{entry}: {values[name]} in the record, {of_key[name]} in its run key")
    if record.config_digest != RunKey(content).config_digest:
        wrong.append(f"config_digest: {record.config_digest[:12]} is not that of the run key without its seed")
    return wrong


def check_scores(folder: Path, record: Record) -> Checks:
    """Check that the task computes exactly these scores from the per-sample results, and that intervals can be made."""
    path = folder / OUTCOMES
    if not record.scores and not path.exists():
        return [], []
    try:
        outcomes = read(path)
        check_outcomes(record, outcomes)
    except ScoreMismatch:
        pass  # told below, to the bit
    except UnusableOutcomes as error:
        return [f"{OUTCOMES}: {error}"], []
    from transfer.evaluation.users_metrics import load_metrics

    users_metrics = [part for part in record.user_code if part.startswith(METRIC)]
    arrays = {name: array for name, array in outcomes.items() if METRIC + name not in users_metrics}
    try:
        metrics = load_metrics([users_file(record, part) for part in users_metrics])
        computed = task_of(record).rescore(arrays) | {metric.name: metric.score(arrays)[0] for metric in metrics}
    except UserError as error:  # or a library that scoring needs is not here
        return [], [f"scores not recomputed: {error}"]
    except Exception as error:  # whatever a damaged file leads to
        return [f"{OUTCOMES}: cannot be scored ({type(error).__name__}: {error})"], []
    pairs = {name: (record.scores.get(name), computed.get(name)) for name in [*record.scores, *computed]}
    wrong = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return [f"{name}: {there} in the record, {here} from {OUTCOMES}" for name, (there, here) in wrong.items()], []


def task_of(record: Record) -> Task:
    """Return the task that made a record.

    Raises:
        UserError: this version lacks a task of that name and version.
    """
    name = record.task
    try:
        if is_in_file(name.removeprefix(PRETRAIN)):
            raise ImportError("a file that the record alone names")
        part = "method" if name.startswith(PRETRAIN) else "task"
        task = load_task(users_file(record, part) or name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"task {name} is not available ({error})") from None
    if task.version != record.task_version:
        made = f"version {record.task_version} of task {name} made the record"
        raise UserError(f"{made}; this is version {task.version}")
    return task


@dataclass
class Verification:
    """The result of verifying one run."""

    folder: Path
    name: str
    """The name in messages: the folder, or a bundle and the run in it."""
    wrong: list[str] = field(default_factory=list)
    """Each difference from what was written."""
    notes: list[str] = field(default_factory=list)
    """A sentence for each check that was not possible."""
    record: Record | None = None

    def __str__(self) -> str:
        head = f"{'WRONG' if self.wrong else 'right'}  {self.name}"
        return "\n       ".join([head, *self.wrong, *(f"({note})" for note in self.notes)])


def verify(folder: Path, name: str = "") -> Verification:
    """Check everything that can be checked in a run's folder.

    Args:
        folder: the run's folder.
        name: the name of the run in messages; by default its folder.
    """
    verdict = Verification(folder, name or str(folder))
    try:
        record = verdict.record = Record.read(folder / RECORD, edited=True)
        if is_modified((folder / RECORD).read_bytes()):
            verdict.wrong.append(f"{RECORD}: edited after it was written")
        wrong, verdict.notes = check_files(folder, record)
        if folder.resolve().name != record.run_id:
            wrong.append(f"the folder is named {folder.resolve().name}, its run {record.run_id}")
        wrong += check_key(record)
        of_scores, notes = check_scores(folder, record)
        verdict.wrong += [*wrong, *of_scores]
        verdict.notes += notes
    except UserError as error:  # there is no record
        verdict.wrong.append(str(error).replace(str(folder), verdict.name))
    except OSError as error:  # no permission, a failing disk
        verdict.wrong.append(first_line(error).replace(str(folder), verdict.name))
    return verdict
