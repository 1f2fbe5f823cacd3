"""The weights that a pretraining run leaves for others: its export, published as WEIGHTS/NAME. Imports no torch."""

import os
import shutil
from pathlib import Path
from typing import Any

from backbones.checkpoints.exports import pretraining_facts
from backbones.errors import UserError
from backbones.runtime.files import replace_folder, write_error
from backbones.settings import differences, read_yaml
from transfer.cli.options import EXECUTION
from transfer.records.store import LOCK, OPTIONS, RECORD, STATE, is_locked

# Options that may differ between two commands for the same weights.
_NOT_COMPARED = (*EXECUTION, "config", "dry_run")


def check_target(target: Path, identity: str, runs: Path | None, options: dict[str, Any]) -> None:
    """Nothing else may lie at, or be on its way to, the place of an export.

    Args:
        target: WEIGHTS/NAME.
        identity: of the run that is to be exported there.
        runs: folder of the runs, where unfinished ones are looked for; None to look at what is there alone.
        options: of the run.

    Raises:
        UserError: with what differs, where it can be told.
    """
    mend = "give this one another --name, or --replace to let it take the place"
    if target.exists():
        about = pretraining_facts(target)
        if about.get("identity") != identity:
            whose = f"those of {about['run']}{_differing(about.get('options', {}), options)}" if about else "no export"
            raise UserError(f"{target}: there are other weights ({whose}); {mend}")
    for path in sorted(runs.glob(f"pretrain-*/{OPTIONS}")) if runs else ():
        folder = path.parent
        if identity.startswith(folder.name.rpartition("-")[2]) or not _unfinished(folder):
            continue
        theirs = read_yaml(path)
        name = theirs.get("name") or Path(str(theirs.get("backbone", ""))).name
        if name and (Path(theirs.get("weights_to", "")) / name).resolve() == target.resolve():
            raise UserError(
                f"{folder}: unfinished, and its weights would go to {target} too{_differing(theirs, options)}; "
                f"give that run's options to finish it, or {mend}"
            )


def _unfinished(folder: Path) -> bool:
    """Whether a run is under way, or has a state from which it can go on."""
    if (folder / RECORD).exists():
        return False
    return (folder / STATE).exists() or is_locked(folder / LOCK)


def _differing(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    found = differences(theirs, ours, _NOT_COMPARED)
    return f": {found}" if found else ""


def publish(source: Path, target: Path) -> None:
    """Puts the export of a run at `target`, whole or not at all; what was there before survives a full disk.

    Raises:
        UserError: it cannot be written.
    """
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(source, scratch)
        replace_folder(scratch, target)
    except OSError as error:
        raise write_error(target, error, "--weights-to") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
