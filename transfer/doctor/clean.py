"""`python -m transfer.doctor clean [RUNS]` removes what killed runs left: temporary files, locks that nobody holds."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from transfer.core.errors import UserError, print_safe
from transfer.core.exports import EXPORT
from transfer.core.files import remove, scraps_in
from transfer.doctor.options import CleanOptions
from transfer.engine.history import PREVIOUS, STATE
from transfer.records.store import ERROR, LOCK, RECORD, has_state, is_locked, store_in

RUN = re.compile(r".+-[0-9a-f]{12}")
"""Names of the folders of runs; see `RunKey.run_id`. Other folders are the user's."""
SETTLED_SECONDS = 3600.0
"""Age of a temporary file outside the folder of a run, where no lock tells whether somebody is writing it."""


def main(options: CleanOptions) -> int:
    """Print each path that is removed. Raises UserError for a folder that is missing."""
    for folder in options.runs:
        if not folder.is_dir():
            raise UserError(f"{folder}: directory not found")
        for path in _leftovers(folder, options.unfinished):
            print_safe(f"{path}: {'left by a run' if options.dry_run else 'removed'}")
            if not options.dry_run:
                remove(path)
    return 0


def _leftovers(folder: Path, unfinished: bool) -> Iterator[Path]:
    """Yield what is left in the folders of runs that no process holds, and old temporary files outside them."""
    for place, names, _ in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".") and not RUN.fullmatch(name)]
        yield from (path for path in scraps_in(Path(place)) if time.time() - path.stat().st_mtime > SETTLED_SECONDS)
    for run in store_in(folder).folders():
        if not RUN.fullmatch(run.name) or is_locked(run / LOCK):
            continue
        finished = (run / RECORD).exists()
        if not finished and (unfinished or not (has_state(run) or (run / EXPORT).is_dir())):
            yield run
            continue
        names = [LOCK, *((STATE, PREVIOUS, ERROR) if finished else ())]
        yield from (*scraps_in(run), *(run / name for name in names if (run / name).exists()))
