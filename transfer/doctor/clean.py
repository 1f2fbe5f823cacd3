"""`python -m transfer.doctor clean [RUNS]` removes what killed runs left: temporary files, locks that nobody holds."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from backbones.checkpoints.exports import EXPORT
from backbones.errors import UserError, print_safe
from backbones.runtime.files import lock, remove, scraps_in
from transfer.doctor.options import CleanOptions
from transfer.records.store import ERROR, LOCK, PREVIOUS, RECORD, STATE, has_state, is_locked, store_in

RUN = re.compile(r".+-[0-9a-f]{12}")
"""Names of the folders of runs; see `RunKey.run_id`. Other folders are the user's."""
SETTLED_SECONDS = 3600.0
"""Age of a temporary file outside the folder of a run, where no lock tells whether somebody is writing it."""


def main(options: CleanOptions) -> int:
    """Print each path that is removed. Raises UserError for a folder that is not there."""
    for folder in options.runs:
        if not folder.is_dir():
            raise UserError(f"{folder}: directory not found; set --out to the folder of the runs")
        for path in _left_outside(folder):
            _remove(path, options)
        for run in store_in(folder).folders():
            if RUN.fullmatch(run.name) and not is_locked(run / LOCK):
                _clean_run(run, options)
    return 0


def _clean_run(run: Path, options: CleanOptions) -> None:
    """Remove what is left in the folder of a run, or the folder, while no process runs it."""
    if options.dry_run:
        _remove_from(run, options)
        return
    file = (run / LOCK).open("a")
    with file:
        if lock(file, run / LOCK):
            _remove_from(run, options)


def _remove_from(run: Path, options: CleanOptions) -> None:
    finished = (run / RECORD).exists()
    if not finished and (options.unfinished or not (has_state(run) or (run / EXPORT).is_dir())):
        _remove(run, options)
        return
    for path in [*scraps_in(run), *(run / name for name in (STATE, PREVIOUS, ERROR) if finished)]:
        _remove(path, options)
    if not options.dry_run:
        remove(run / LOCK)


def _left_outside(folder: Path) -> Iterator[Path]:
    """Yield temporary files and folders outside the folders of runs that nobody has written to for an hour."""
    for place, names, _ in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".") and not RUN.fullmatch(name)]
        yield from (path for path in scraps_in(Path(place)) if time.time() - path.stat().st_mtime > SETTLED_SECONDS)


def _remove(path: Path, options: CleanOptions) -> None:
    if os.path.lexists(path):
        print_safe(f"{path}: {'left by a run' if options.dry_run else 'removed'}")
        if not options.dry_run:
            remove(path)
