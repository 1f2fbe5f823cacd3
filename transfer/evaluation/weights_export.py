"""Publishes the export of a pretraining run as WEIGHTS/NAME, where other commands find it. Importing it is light."""

import shutil
from copy import copy
from pathlib import Path
from typing import Any

from backbones.pretrain.method import PretrainingMethod, check_epochs
from transfer.cli.command import Command
from transfer.cli.options import PretrainRunOptions
from transfer.core.errors import UsageError, UserError
from transfer.core.exports import EXPORT, WEIGHTS, pretraining_facts, seed_exports
from transfer.core.files import check_writable, folder_replacement, lock, writing
from transfer.core.options import Execution, differences, noted
from transfer.core.user_code import USER_PARTS, is_in_file, locate
from transfer.records.record import Record
from transfer.records.store import StoredRun, without_weights
from transfer.task import Task

LOCK_FILE = ".lock"


def pretraining_task(command: Command, method: Task, recipe: str) -> PretrainingMethod:
    """Return the method of a pretraining command with the command's own options.

    Raises:
        UsageError: another method than the recipe's, several values, or an epoch that the training has not.
    """
    options = command.run
    assert isinstance(options, PretrainRunOptions)
    if not isinstance(method, PretrainingMethod):
        raise UsageError(f"{method.file}: is a task; run it by `python -m transfer.run`")
    request = locate(options.method) if is_in_file(options.method) else options.method
    if request not in ((method.file, "") if method.file else (method.method,)):
        fix = "choose another recipe"
        raise UsageError(f"--method {options.method}: the recipe {recipe} is for {method.method}; {fix}")
    for flag, values in (("--dataset", options.dataset), ("--weights", command.backbone.weights)):
        if len(values) > 1:
            raise UsageError(f"{flag}: pretraining takes one value, got {len(values)}")
    starts = seed_exports(command.backbone.weights[0])
    if len(starts) not in (0, len(options.seeds)):
        raise UsageError(f"--weights: use one of {', '.join(starts)}, or {len(starts)} --seeds, one for each")
    check_epochs(options.tokens_at, command.options.last_epoch)
    task = copy(method)
    task.tokens_at = options.tokens_at
    return task


def publish_export(record: Record, run: Any, kind: type[Any]) -> Path | None:
    """Copy a run's export to WEIGHTS/NAME unless it is there, and return that folder; None when the training failed.

    Args:
        run: the options of the command, those of a pretraining.
        kind: the dataclass of its method's options.

    Raises:
        UserError: the run has no weights, or WEIGHTS/NAME holds those of another run by now.
    """
    from backbones.weights.locate import sha256

    target, source = target_of(run, record.backbone["name"], record.seed), run.out / record.run_id / EXPORT
    if run.save_weights == "none" and not source.is_dir():
        return None
    if record.saved_no_weights:
        raise UserError(
            f"{without_weights(StoredRun(source.parent, record))}; delete {source.parent} to train it again"
        )
    if not record.export:
        return None
    weights = target / WEIGHTS
    same = weights.is_file() and f"sha256:{sha256(weights)}" == record.export
    if not same or pretraining_facts(target).get("identity") != record.run_key:
        if not source.is_dir():
            raise UserError(f"{source}: the run's export is missing; delete {source.parent} to train it again")
        check_writable(target.parent, "--export-dir")
        with (target.parent / LOCK_FILE).open("a") as file:  # another run may end at the same moment
            lock(file, target.parent / LOCK_FILE, flag="--export-dir", wait=True)
            if not run.replace:
                check_target(target, record.run_key, record.options, kind)
            publish(source, target)
    return target


def target_of(run: PretrainRunOptions, backbone: str, seed: int) -> Path:
    """Return WEIGHTS/NAME, or WEIGHTS/NAME/seedN where the command has several seeds, or that folder of them.

    Raises:
        UserError: the command has several seeds, and WEIGHTS/NAME is the export of one.
    """
    folder = run.export_dir / (run.name or backbone)
    several = len(run.seeds) > 1 or seed_exports(str(folder))
    if several and (folder / WEIGHTS).exists():
        own = folder / f"seed{pretraining_facts(folder).get('seed', 'N')}"
        raise UserError(f"{folder}: holds the weights of one seed; move its files into {own}, or use another --name")
    return folder / f"seed{seed}" if several else folder


def check_target(target: Path, run_key: str, options: dict[str, Any], kind: type[Any] = PretrainRunOptions) -> None:
    """Check that no other run has put its weights into a folder.

    Args:
        target: WEIGHTS/NAME.
        run_key: the key of the run whose export is to go there.
        options: the options of the run.
        kind: the dataclass of its method's options.

    Raises:
        UserError: the target belongs to another run; the message says in which options they differ if that is known.
    """
    if target.exists() and (facts := pretraining_facts(target)).get("identity") != run_key:
        theirs = facts.get("options", {})
        # an export names its copy of a user's file
        same = [part for part in USER_PARTS if Path(str(theirs.get(part))).name == Path(str(options.get(part))).name]
        ignored = {*noted(PretrainRunOptions, Execution), *noted(kind, Execution), *same}
        text = "; ".join(differences(theirs, options, ignored))
        owner = f"those of {facts['run']}{f': {text}' if text else ''}" if facts else "no export of this suite"
        fix = "use another --name, or --replace to overwrite them"
        raise UserError(f"{target}: there are other weights ({owner}); {fix}")


def publish(source: Path, target: Path) -> None:
    """Copy the export of a run to `target`, whole or not at all; an older folder survives a full disk.

    Raises:
        UserError: `target` cannot be written.
    """
    with writing(target, "--export-dir"), folder_replacement(target) as new:
        shutil.copytree(source, new, dirs_exist_ok=True)
