"""Finished runs of other folders that stand for runs of a command, `--baselines`. Imports no torch."""

import shutil
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from transfer.core.errors import MissingInput, shortened
from transfer.core.exports import EXPORT
from transfer.core.files import write_atomic, writing
from transfer.core.grouped import grouped_by
from transfer.core.options import differences
from transfer.core.user_code import VARIED_PARTS, is_user_part
from transfer.records.record import RunKey
from transfer.records.store import LOCK, ORIGIN, RECORD, Store, runs_in, store_in

NOT_OF_PROTOCOL = (
    "seed",
    "backbone name",
    "backbone files",
    *(f"backbone {part}" for part in VARIED_PARTS),
)
"""Entries of a run key in which a variant may differ from those it is compared with."""


NOTE = "baselines: "
"""Begins the note of a run that could not be copied; see `protocol_mismatch`."""


def check_baselines(folders: Sequence[Path]) -> None:
    """Raise MissingInput for the first of these folders that does not exist."""
    for folder in folders:
        if not folder.is_dir():
            fix = "use a folder of runs; `transfer.report import` makes one of a bundle"
            raise MissingInput(f"{folder}: directory not found; {fix}")


def find_baseline(folders: Sequence[Path], run_id: str, run_key: RunKey, *, weights: bool) -> Path | None:
    """Return the first of these folders that has a finished run.

    Args:
        weights: whether a pretraining counts only with its weights.

    Raises:
        UserError: the run is damaged, see `Store.find`.
    """
    for folder in folders:
        store = store_in(folder)
        if (record := store.find(run_id, run_key)) is None:
            continue
        lacks_weights = record.saved_no_weights or (record.export and not (store.folder(run_id) / EXPORT).is_dir())
        if not (weights and lacks_weights):
            return folder
    return None


def copy_baseline(folder: Path, store: Store, run_id: str) -> None:
    """Copy a finished run of a folder into a store that lacks it, with the name of its folder in `ORIGIN`.

    The caller holds the lock of the run. The record comes last, so that a folder with a record is complete.

    Raises:
        UserError: the store cannot be written.
    """
    source, target = store_in(folder).folder(run_id), store.folder(run_id)
    with writing(target, "--out"):
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(RECORD, LOCK), dirs_exist_ok=True)
    write_atomic(target / ORIGIN, str(folder).encode())
    write_atomic(target / RECORD, (source / RECORD).read_bytes())


def baseline_variants(folders: Sequence[Path], parts: Sequence[str]) -> list[str]:
    """Return the different values of these parts among the runs of folders, as `stem=conv`; not those of users' files.

    Of backbones with several names those with the most runs count.
    """
    backbones = (run.record.backbone for run in runs_in(folders)[0])
    commonest = max(grouped_by(backbones, itemgetter("name")).values(), key=len, default=[])
    variants = [",".join(f"{part}={backbone.get(part)}" for part in parts) for backbone in commonest]
    return [text for text in dict.fromkeys(variants) if not is_user_part(text)]


def copied_from(folder: Path) -> str:
    """Return the folder from which a run was copied, "" for one that was made where it is."""
    file = folder / ORIGIN
    return file.read_text(encoding="utf-8") if file.exists() else ""


def protocol_mismatch(folders: Sequence[Path], run_key: RunKey, task: str) -> str:
    """Return why these folders have no run that could be copied; "" if one differs in the part and the seed alone.

    The nearest run has the fewest different entries of the run key. The text names each entry.
    """
    runs = [run for run in runs_in(folders)[0] if run.record.task == task]
    where = " and ".join(map(str, folders))
    if not runs:
        return f"{NOTE}no run of {task} in {where}"
    ours = _entries(run_key.content)
    if any(run.record.run_key == run_key.digest for run in runs):
        fix = "; --save-weights none copies it nevertheless" if task.startswith("pretrain-") else ""
        return f"{NOTE}{where} has this run without its weights{fix}"
    texts = {run.record.run_id: _differences(_entries(run.record.run_key_content), ours) for run in runs}
    nearest = min(texts, key=lambda run_id: len(texts[run_id]))
    if not texts[nearest]:
        return ""
    return f"{NOTE}no run of this protocol in {where}; the nearest, {nearest}, has {shortened(texts[nearest], 5)}"


def _entries(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a run key by flat names, "options lr"."""
    entries = {"device_type": "cuda"}  # has no entry in the key
    for name, value in content.items():
        if isinstance(value, Mapping):
            entries |= {f"{name} {key}": item for key, item in value.items()}
        else:
            entries[name] = value
    return entries


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    none = dict.fromkeys({*theirs, *ours})
    return differences(none | {**theirs}, none | {**ours}, NOT_OF_PROTOCOL)
