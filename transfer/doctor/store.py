"""`python -m transfer.doctor store RUNS [--repair]`: what killed processes and damaged disks left in a folder of runs.

A repair deletes only what no run can use any more. Whatever may still be of worth is set aside, in a folder beside the
runs, so that the command of the run makes it anew.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from backbones.checkpoints.exports import WEIGHTS, pretraining_facts
from backbones.errors import UserError, tell
from backbones.runtime.files import closed_in_the_end, lock, read_regular, remove, scraps_in
from backbones.settings import Positional, parse
from transfer.doctor.check_result import CheckResult
from transfer.records.record import Record
from transfer.records.store import (
    ERROR,
    LOCK,
    PREVIOUS,
    RECORD,
    STATE,
    Store,
    has_record,
    has_state,
    is_locked,
    store_in,
    unfinished_in,
)

ASIDE = ".set-aside"
"""Folder, in that of the runs, of damaged runs; reports do not read it."""
UNREADABLE = "check its owner, mode, links and disk"
GO_ON = "give its command again (options.yaml has its options), or delete the folder"
NO_RECORD = "its run may lie elsewhere; else train again to have a record, or delete the folder"
RUN = re.compile(r".+-[0-9a-f]{12}")
"""Names of the folders of runs; see `RunKey.run_id`. Other folders are the user's."""
OF_SWEEPS = ("cells", "features", "slurm", "weights")
"""Folders that a sweep fills beside its runs."""
SETTLED_SECONDS = 3600.0
"""Age of a scrap outside the folder of a run, where no lock tells whether somebody is writing it."""


@dataclass(kw_only=True)
class StoreOptions:
    """List what killed processes and damaged disks left in a folder of runs, and mend it when asked to."""

    runs: Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs, or of sweeps."""
    weights: tuple[Path, ...] = ()
    """Folders of exported weights (`--weights-to`); exports without a record among the runs are listed."""
    repair: bool = False
    """Delete scraps, stale locks and states of finished runs, and set damaged runs aside in RUNS/.set-aside, so that
    the same command runs them again. Runs that can go on and weights stay as they are."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as a finished run leaves it."""

    path: Path
    what: str
    repair: Callable[[], object] | None = None
    """What mends it; None where only the user can."""
    advice: str = ""
    """What the user can do."""
    done: str = "deleted"
    """The repair in a word."""


def check_store(argv: list[str]) -> int:
    """Print what was found; return 1 while something is left that is not in order."""
    options = parse(StoreOptions, argv, prog="python -m transfer.doctor store")
    left = 0
    for folder in options.runs:
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder of runs")
        store = store_in(folder)
        runs, _ = store.runs()
        running = sum(run.state == "under way" for run in store.unfinished())
        tell(f"{folder}: {len(runs)} finished runs" + (f", {running} under way" if running else ""))
        # each is mended as soon as it is found: other processes may be at work
        for finding in chain(findings_in(store), _scraps_outside(folder, store), _unrecorded(store, options.weights)):
            mended = options.repair and finding.repair is not None and _mend(finding)
            left += not mended
            advice = finding.advice or ("" if mended else "--repair mends it")
            tell(CheckResult("ok" if mended else "incomplete", _line(finding, mended), "" if mended else advice))
    return int(left > 0)


def _line(finding: Finding, mended: bool) -> str:
    return f"{finding.path}: {finding.what}" + (f" ({finding.done})" if mended else "")


def _mend(finding: Finding) -> bool:
    assert finding.repair is not None
    try:
        finding.repair()
    except OSError as error:
        tell(f"{finding.path}: not mended ({error.strerror})", file=sys.stderr)
        return False
    except UserError as error:
        tell(f"{finding.path}: not mended: {error}", file=sys.stderr)
        return False
    return True


def findings_in(store: Store) -> Iterator[Finding]:
    """Yield what is not in order in the folders of runs. Those that a process has locked are left out."""
    for folder in store.folders():
        if not RUN.fullmatch(folder.name) or is_locked(folder / LOCK):
            continue
        yield from (_scrap(path, folder) for path in scraps_in(folder))
        yield from _of_finished(folder) if has_record(folder) else _of_unfinished(folder)


def _of_unfinished(folder: Path) -> Iterator[Finding]:
    run, names = unfinished_in(folder), _names_in(folder)
    if run is None and names == []:
        yield Finding(folder, "empty", _alone(folder, partial(_remove_unused, folder)))
    elif run is None or run.state == "under way":
        return
    elif names == [LOCK]:
        yield Finding(folder, "holds nothing but a stale lock", _alone(folder, partial(_remove_unused, folder)))
    elif has_state(folder):
        yield Finding(folder, f"{run.state}: {run.reason}", advice=GO_ON)
    else:
        yield _damaged(folder, f"{run.state}, without a saved state: {run.reason}")


def _of_finished(folder: Path) -> Iterator[Finding]:
    for name, what in ((LOCK, "stale lock"), *((name, "of a finished run") for name in (STATE, PREVIOUS, ERROR))):
        if os.path.lexists(folder / name):
            yield Finding(folder / name, what, _alone(folder, partial(remove, folder / name)))
    try:
        record = Record.parse(read_regular(folder / RECORD), folder / RECORD)
        sizes = {name: _size(folder / name) for name in record.files}
    except OSError as error:  # of this user or of the disk: the run may be whole
        what = "its record" if error.filename in (None, str(folder / RECORD)) else error.filename
        yield Finding(folder, f"{what} cannot be read ({error.strerror})", advice=UNREADABLE)
        return
    except UserError as error:
        yield _damaged(folder, str(error).removeprefix(f"{folder / RECORD}: "))
        return
    missing = [name for name, size in sizes.items() if size is None]
    cut = [name for name, size in sizes.items() if size is not None and size != record.files[name].get("size", size)]
    if missing or cut:
        kinds = (f"{what} {', '.join(names)}" for what, names in (("missing", missing), ("changed", cut)) if names)
        yield _damaged(folder, f"a record without its files: {'; '.join(kinds)}")


def _size(path: Path) -> int | None:
    """Return a file's size, None if there is none. Raises OSError if that cannot be told."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _names_in(folder: Path) -> list[str] | None:
    """Return the names in a folder; None where this user may not list it."""
    try:
        return os.listdir(folder)  # noqa: PTH208 (names)
    except OSError:
        return None


def _alone(folder: Path, repair: Callable[[], object]) -> Callable[[], object]:
    """Return a repair of a run's folder that is done only while no process uses the folder."""

    def repair_alone() -> None:
        had_lock = os.path.lexists(folder / LOCK)
        if had_lock and not (folder / LOCK).is_file():  # a pipe, say, which no process can have locked
            repair()
            return
        file = (folder / LOCK).open("a")
        with closed_in_the_end(file):
            if not lock(file, folder / LOCK):
                raise UserError("a run has begun in it; give the command again when it is done")
            repair()
            if not had_lock:
                (folder / LOCK).unlink(missing_ok=True)

    return repair_alone


def _remove_unused(folder: Path) -> None:
    """Remove a folder that holds a lock and nothing else."""
    (folder / LOCK).unlink(missing_ok=True)
    folder.rmdir()


def _scrap(path: Path, run: Path | None = None) -> Finding:
    repair = partial(remove, path)
    what = "left by a process that was killed while it wrote"
    return Finding(path, what, repair if run is None else _alone(run, repair))


def _damaged(folder: Path, what: str) -> Finding:
    repair = _alone(folder, partial(set_aside, folder))
    return Finding(folder, what, repair, done=f"set aside in {folder.parent / ASIDE}")


def set_aside(folder: Path) -> Path:
    """Move a run's folder out of the reports' sight and return where it is; nothing there is replaced."""
    place = folder.parent / ASIDE
    place.mkdir(exist_ok=True)
    target, number = place / folder.name, 2
    while target.exists():
        target, number = place / f"{folder.name}.{number}", number + 1
    folder.rename(target)
    (target / LOCK).unlink(missing_ok=True)
    return target


def _scraps_outside(folder: Path, store: Store) -> Iterator[Finding]:
    """Yield scraps outside the folders of runs, of a sweep too, that nobody has written to for an hour."""
    of_sweep = [folder / name for name in OF_SWEEPS] if store.root != folder else []
    below = (Path(root) for place in of_sweep for root, _, _ in os.walk(place))
    visible = [place for place in below if not any(part.startswith(".") for part in place.relative_to(folder).parts)]
    for place in dict.fromkeys([folder, store.root, *visible]):
        for path in scraps_in(place):
            if time.time() - path.lstat().st_mtime > SETTLED_SECONDS:
                yield _scrap(path)


def _unrecorded(store: Store, places: tuple[Path, ...]) -> Iterator[Finding]:
    """Yield exports of pretrainings whose record is not among the runs: their history cannot be checked."""
    known = {run.record.run_key for run in store.runs()[0]}
    for folder in sorted(path for place in places for path in (place, *_folders(place))):
        if not (folder / WEIGHTS).is_file():
            continue
        try:
            identity = pretraining_facts(folder).get("identity")
        except UserError as error:
            yield Finding(folder, str(error), advice="train again, or delete the folder")
            continue
        if identity not in known:
            yield Finding(folder, f"weights without a record in {store.root}", advice=NO_RECORD)


def _folders(place: Path) -> list[Path]:
    inside = place.iterdir() if place.is_dir() else ()
    return [path for path in inside if path.is_dir() and not path.name.startswith(".")]
