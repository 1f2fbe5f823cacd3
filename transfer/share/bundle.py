"""Writes runs into one file to be shared, and imports them: no images, no weights, no paths of this machine.

A bundle is a zip archive: `manifest.json` with the sha256 and size of every file, and a folder for each run. The same
runs give the same bytes. A bundle is imported only if `python -m transfer.verify` would accept every run in it.
"""

import errno
import json
import shlex
import stat
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from backbones.errors import UserError, reason_of
from backbones.runtime.files import atomic_replacement, check_writable, flush_folder, write_error
from backbones.runtime.path_errors import path_error
from backbones.runtime.scratch import remove_left, scratch_folder
from backbones.settings import read_yaml, write_yaml
from transfer.records.bundle_file import MANIFEST, SCHEMA, SHARED, SUPPORT, unpacked
from transfer.records.checksums import size_and_sha256, with_checksum
from transfer.records.per_sample import OUTCOMES, UnusableOutcomes, arrays_in
from transfer.records.store import OPTIONS, RECORD, Record, Run, Store, difference_text, merged, same_result
from transfer.share.strip_paths import PLACES, paths_in, short_values, without_paths
from transfer.verify.checks import check_files

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


def bundle(runs: Sequence[Run], file: Path) -> list[str]:
    """Write runs into one file, whole or not at all, and return their names.

    Raises:
        UserError: there are no runs, a file is not that of its record, a name holds a path, or the disk is full.
    """
    runs, disputes = merged(runs)
    if disputes or not runs:
        raise UserError("\n".join(disputes) or "there are no finished runs to bundle")
    runs = sorted(runs, key=lambda run: run.record.run_id)
    check_writable(file.parent, "--bundle")
    manifest: dict[str, Any] = {"schema": SCHEMA, "runs": {}}
    try:
        remove_left(file)
        with scratch_folder(file.parent, file.name) as scratch:
            for run in runs:
                shared = _shared_copy(run, scratch / run.record.run_id)
                manifest["runs"][run.record.run_id] = {
                    path.name: size_and_sha256(path) for path in sorted(shared.iterdir())
                }
            with atomic_replacement(file, "--bundle") as temporary, zipfile.ZipFile(temporary, "w") as archive:
                _add(archive, MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())
                for run_id, files in manifest["runs"].items():
                    for name in files:
                        _add(archive, f"{run_id}/{name}", (scratch / run_id / name).read_bytes())
    except OSError as error:
        raise path_error(error) or write_error(file, error, "--bundle") from error
    return list(manifest["runs"])


def _shared_copy(run: Run, folder: Path) -> Path:
    """Copy a run's folder as it is shared; a copy of a shared copy is identical."""
    record = run.record
    wrong = check_files(run.folder, replace(record, files=_kept(record.files)))[0]
    if wrong:
        raise UserError(f"{run.folder}: {'; '.join(wrong)}; only runs that verify can be shared")
    folder.mkdir()
    for name in SHARED:
        if (run.folder / name).is_file():
            (folder / name).write_bytes((run.folder / name).read_bytes())
    _check_names(folder, record)
    options = folder / OPTIONS
    if options.exists():
        try:
            shown = _without_places(options)
        except (UserError, ValueError, AttributeError) as error:
            raise UserError(f"{record.run_id}: its {OPTIONS} cannot be read ({reason_of(error)}); not shared") from None
        options.write_text(shown, encoding="utf-8")
    files = {path.name: size_and_sha256(path) for path in sorted(folder.iterdir())}
    left_out = sorted(record.files.keys() - files.keys())
    shared = record.shared or {"left_out": left_out, "record": size_and_sha256(run.folder / RECORD)["sha256"]}
    (folder / RECORD).write_bytes(with_checksum(asdict(replace(without_paths(record), files=files, shared=shared))))
    return folder


def _kept(files: dict[str, Any]) -> dict[str, Any]:
    return {name: description for name, description in files.items() if name in SHARED}


def _check_names(folder: Path, record: Record) -> None:
    """Raise UserError when names of samples are paths of this machine, or cannot be read."""
    try:
        names = _names(folder)
    except (OSError, TypeError, ValueError, UnusableOutcomes) as error:
        raise UserError(f"{record.run_id}: its {OUTCOMES} or {SUPPORT} cannot be read ({error}); not shared") from None
    if paths := paths_in(names):
        raise UserError(f"{record.run_id}: its images are named by paths of this machine, as {paths[0]}; not shared")


def _names(folder: Path) -> list[str]:
    names = [(folder / SUPPORT).read_text(encoding="utf-8")] if (folder / SUPPORT).exists() else []
    if (folder / OUTCOMES).exists():
        names += [str(name) for name in arrays_in(folder / OUTCOMES).get("sample", ())]
    return names


def _without_places(options: Path) -> str:
    """Return a run's options.yaml without paths; it still repeats the run if the data is found."""
    comments = [line for line in options.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    kept = {name: value for name, value in read_yaml(options).items() if name not in PLACES}
    return "".join(f"{_short_command(line)}\n" for line in comments) + write_yaml(short_values(kept))


def _short_command(line: str) -> str:
    """Return a comment with a command in which the file of a user's task has no folder."""
    if ".py:" not in line:
        return line
    return f"# {shlex.join(short_values({'': shlex.split(line.lstrip('# '))})[''])}"


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    archive.writestr(entry, content)


def import_bundle(file: Path, store: Store) -> Imported:
    """Add the runs of a bundle that a store lacks; nothing is added when anything in the bundle is wrong.

    Raises:
        UserError: the file is no bundle, has a newer schema or was changed, or the store cannot be written.
    """
    from transfer.verify.verification import verify

    check_writable(store.root, "--import")
    with unpacked(file, store.root) as folder:
        wrong = [
            f"{verdict.folder.name}: {text}"
            for verdict in (verify(run, name=f"run {run.name} of the bundle") for run in sorted(folder.iterdir()))
            for text in verdict.wrong
        ]
        if wrong:
            raise UserError(f"{file}: nothing is imported:\n" + "\n".join(wrong))
        result = Imported()
        existing = {run.record.run_key: run for run in store.runs()[0]}
        for run in Store(folder).runs()[0]:
            _import(run, existing.get(run.record.run_key), store, result)
        return result


def _imported_meanwhile(folder: Path, run_key: str) -> Run | None:
    """Return the run that another process has put into a folder since the store was read."""
    try:
        record = Record.read(folder / RECORD)
    except (OSError, UserError):
        return None
    return Run(folder, record) if record.run_key == run_key else None


def _import(run: Run, existing: Run | None, store: Store, result: Imported) -> None:
    name, target = run.record.run_id, store.folder(run.record.run_id)
    there = target.exists()  # before its record is looked for: what another process moves in has one at once
    existing = existing or _imported_meanwhile(target, run.record.run_key)
    if existing is not None:
        if same_result(existing.record, run.record):
            result.equal.append(name)
        else:
            conflict = difference_text(existing, run).replace(str(run.folder), f"{name} of the bundle")
            result.conflicts.append(f"{conflict}; what was there stays")
    elif there:
        result.conflicts.append(f"{target}: unfinished, or no run at all; finish it or move it away, then import again")
    else:
        try:
            flush_folder(run.folder)
            run.folder.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise write_error(target, error, "--import") from error
            _import(run, None, store, result)  # another process was faster
        else:
            result.added.append(name)
