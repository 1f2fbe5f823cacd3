"""Writes runs into one file to be shared, and imports them: no images, no weights, no paths of this machine.

A bundle is a zip archive with a folder for each run, whose record has the size and sha256 of its other files. The same
runs give the same bytes. A bundle is imported only if `python -m transfer.verify` would accept every run in it.
"""

import csv
import hashlib
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from transfer.core.errors import UserError, unusable
from transfer.core.files import atomic_replacement, check_writable, file_sha256, flush_folder, with_home
from transfer.core.settings import read_yaml, write_yaml
from transfer.engine.checkpoint import HISTORY
from transfer.records.per_sample import OUTCOMES, arrays_in
from transfer.records.record import Record, with_checksum
from transfer.records.store import OPTIONS, RECORD, Store, StoredRun, difference_text, merged
from transfer.verify.checks import check_files, verify

SUPPORT = "support.csv"
SHARED = (RECORD, HISTORY, OPTIONS, OUTCOMES, SUPPORT)
"""The files of a run that bundles hold; the record has the sizes and digests of the others."""
_ENTRY = re.compile(rf"[A-Za-z0-9_+@,-][A-Za-z0-9_.+@,-]*/({'|'.join(map(re.escape, SHARED))})")
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


@contextmanager
def unpacked(file: Path, beside: Path) -> Iterator[Path]:
    """Unpack a bundle into a temporary folder; `python -m transfer.verify` checks the digests of its files.

    Args:
        file: the bundle.
        beside: the folder in which the temporary folder is made.

    Raises:
        UserError: the file is not a bundle, is corrupt, or contains other files. Nothing is unpacked then.
    """
    with tempfile.TemporaryDirectory(prefix=".bundle-", suffix=".tmp", dir=beside) as scratch:
        damage = unusable(f"{file}: not a readable bundle", *_DAMAGED, fix="get it again")
        with damage, zipfile.ZipFile(file) as archive:
            strange = [repr(entry) for entry in archive.namelist() if not _ENTRY.fullmatch(entry)]
            if strange or not archive.namelist():
                raise UserError(f"{file}: {(strange or ['no run'])[0]} does not belong in a bundle; nothing imported")
            archive.extractall(scratch)
        yield Path(scratch)


# Options that name places on one machine; the other options repeat the run elsewhere.
PLACE_OPTIONS = ("data", "out", "feature_cache", "export_dir", "config", "result_file")
_PATH = re.compile(r"(?<![^\s'\"`=(\[{<>,;|])(?:~[\w.-]*|\.\.?)?/(?:[^\s/'\":;,()]+/)*[^\s/'\":;,()]+")
_WHOLE = re.compile(r"(?:local-dir:)?(?:/|~|\.\.?/)")


def without_paths(record: Record) -> Record:
    """Return the record with each path cut to its last name: `/home/me/my_stem.py:MyStem` becomes `my_stem.py:MyStem`.

    Options that only name a place (`PLACE_OPTIONS`) are dropped. The sha256 of users' files is kept.

    Raises:
        UserError: the identity itself names a path, and could not be verified without it.
    """
    if paths := paths_in(record.run_key_content):
        raise UserError(f"{record.run_id}: its identity names {paths[0]}; it cannot be shared without that path")
    unchanged = {"run_key_content": record.run_key_content, "files": record.files}
    options = {name: value for name, value in record.options.items() if name not in PLACE_OPTIONS}
    content = asdict(record) | {"options": options} | dict.fromkeys(unchanged)
    return Record(**(texts_without_paths(content, known_paths(record)) | unchanged))


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in nested values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_in(item)


def paths_in(value: Any) -> list[str]:
    """Return the paths in nested values, also those within a text."""
    return [path for text in texts_in(value) for path in _PATH.findall(text)]


def is_absolute(name: str) -> bool:
    """Return whether the name of an image is an absolute path of any system, or begins with a home folder."""
    path = with_home(name)
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()


def known_paths(record: Record) -> dict[str, str]:
    """Return the paths that a record names and their replacements; those with spaces match no pattern."""
    known = {str(Path.cwd()): ".", str(Path.home()): "~"}
    for text in texts_in([record.options, record.backbone, record.user_code]):
        if len(text) > 1 and _WHOLE.match(text):
            path, colon, name = text.rpartition(":") if ".py:" in text else (text, "", "")
            known[text] = Path(path).name + colon + name
    return known


def texts_without_paths(value: Any, known: dict[str, str]) -> Any:
    """Return nested values with the paths removed from their texts; `known` are those of `known_paths`."""
    if isinstance(value, dict):
        return {name: texts_without_paths(item, known) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [texts_without_paths(item, known) for item in value]
    if not isinstance(value, str):
        return value
    for path in sorted(known, key=len, reverse=True):
        value = value.replace(path + "/", known[path] + "/").replace(path, known[path])
    return _PATH.sub(lambda match: Path(match.group()).name, value)


_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass
class Imported:
    """The result of an import, as names of runs."""

    added: list[str] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)
    """The runs that were there before, with the same result."""
    conflicts: list[str] = field(default_factory=list)
    """A sentence for each run that was there before with another result, or unfinished; it is left as it was."""

    def __str__(self) -> str:
        counts = f"{len(self.added)} runs added, {len(self.equal)} were there, {len(self.conflicts)} conflicts"
        return "\n".join([counts, *self.conflicts])


def bundle(runs: Sequence[StoredRun], file: Path, *, every: int = 1) -> list[str]:
    """Write runs into one file, whole or not at all, and return their names.

    Args:
        runs: the runs.
        file: where to write.
        every: steps of the training curves to keep: the first, and one in so many; validations are all kept.

    Raises:
        UserError: there are no runs, a file is not that of its record, a name holds a path, or the disk is full.
    """
    runs, disputes = merged(runs)
    if disputes or not runs:
        raise UserError("\n".join(disputes) or "no finished runs to bundle")
    runs = sorted(runs, key=lambda run: run.record.run_id)
    check_writable(file.parent, "--output")
    with atomic_replacement(file, "--output") as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for run in runs:
            for name, content in sorted(_shared_files(run, every).items()):
                entry = zipfile.ZipInfo(f"{run.record.run_id}/{name}", _EPOCH)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, content)
    return [run.record.run_id for run in runs]


_STEP = re.compile(rb'"step": (\d+),.*"loss"')


def _thinned(lines: bytes, every: int) -> bytes:
    """Return the lines of a history without most steps; lines that do not have the loss of a step stay."""

    def stays(line: bytes) -> bool:
        step = _STEP.search(line)
        return step is None or (int(step[1]) - 1) % every == 0

    return b"".join(line for line in lines.splitlines(keepends=True) if stays(line))


def _shared_files(run: StoredRun, every: int) -> dict[str, bytes]:
    """Return the files of a run as they are shared, by name; those of a shared copy are identical."""
    record = run.record
    recorded = {name: facts for name, facts in record.files.items() if name in SHARED}
    if wrong := check_files(run.folder, replace(record, files=recorded))[0]:
        raise UserError(f"{run.folder}: {'; '.join(wrong)}; only runs that verify can be shared")
    contents = {name: (run.folder / name).read_bytes() for name in recorded}
    names = arrays_in(run.folder / OUTCOMES)["sample"] if OUTCOMES in contents else ()
    support = csv.reader(contents.get(SUPPORT, b"").decode().split("\n"))
    if paths := [name for name in texts_in([*support, *map(str, names)]) if is_absolute(name)]:
        raise UserError(f"{record.run_id}: its images are named by paths of this machine, as {paths[0]}; not shared")
    if HISTORY in contents:
        contents[HISTORY] = _thinned(contents[HISTORY], every)
    if OPTIONS in contents:
        # without paths, it still repeats the run if the data is found
        command = contents[OPTIONS].decode().partition("\n")[0]
        options = {name: value for name, value in read_yaml(run.folder / OPTIONS).items() if name not in PLACE_OPTIONS}
        command, options = texts_without_paths([command, options], known_paths(record))
        contents[OPTIONS] = f"{command}\n{write_yaml(options)}".encode()
    files = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name, content in sorted(contents.items())
    }
    left_out = sorted(record.files.keys() - files.keys())
    shared = record.shared or {"left_out": left_out, "record": file_sha256(run.folder / RECORD)}
    content = asdict(replace(without_paths(record), files=files, shared=shared))
    return contents | {RECORD: with_checksum(content)}


def import_bundle(file: Path, store: Store) -> Imported:
    """Add the runs of a bundle that a store lacks; nothing is added when anything in the bundle is wrong.

    Raises:
        UserError: the file is not a bundle or was changed, or the store cannot be written.
    """
    check_writable(store.root, "--out")
    with unpacked(file, store.root) as folder:
        verdicts = [verify(run, name=f"run {run.name} of the bundle") for run in sorted(folder.iterdir())]
        if wrong := [f"{verdict.folder.name}: {text}" for verdict in verdicts for text in verdict.wrong]:
            raise UserError(f"{file}: nothing was imported:\n" + "\n".join(wrong))
        result = Imported()
        existing = {run.record.run_key: run for run in store.runs()[0]}
        for run in Store(folder).runs()[0]:
            name, target, there = run.record.run_id, store.folder(run.record.run_id), existing.get(run.record.run_key)
            if there is None and target.exists():
                unfinished = "unfinished, or not a run; finish it or move it away, then import again"
                result.conflicts.append(f"{target}: {unfinished}")
            elif there is None:
                flush_folder(run.folder)
                run.folder.rename(target)
                result.added.append(name)
            elif conflict := difference_text(there, run).replace(str(run.folder), f"{name} of the bundle"):
                result.conflicts.append(f"{conflict}; the existing run is kept")
            else:
                result.equal.append(name)
    return result
