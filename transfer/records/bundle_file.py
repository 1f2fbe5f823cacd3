"""Checks and unpacks bundles, which are zip archives of runs, without trusting their content. Imports no torch."""

import lzma
import re
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backbones.errors import UserError, reason_of
from backbones.runtime.files import open_regular, parse_json
from backbones.runtime.scratch import scratch_folder
from transfer.records.checksums import size_and_sha256
from transfer.records.per_sample import OUTCOMES
from transfer.records.record import Record
from transfer.records.store import HISTORY, OPTIONS, RECORD

MANIFEST = "manifest.json"
SCHEMA = 1
SUPPORT = "support.csv"
SHARED = (HISTORY, OPTIONS, OUTCOMES, SUPPORT)
_RUN = re.compile(r"[A-Za-z0-9_+@,-][A-Za-z0-9_.+@,-]*")
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How files of bundles are compressed; what Python unpacks from others may fill the memory at once."""
MOST_SHRUNK, SMALL = 100, 2**24
"""How many times larger than its file an unpacked bundle may be, and bytes up to which it may be larger.

Histories, the files that shrink most, shrink to a tenth.
"""
LARGEST_RECORD = 2**22
"""The most bytes of a record; those that runs write have some ten thousand."""
_LARGEST_UNLISTED = 2**28  # bytes of a file of an older record, which lists none
_LARGEST_MANIFEST = 2**28  # bytes: a million runs
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
)


@contextmanager
def unpacked(file: Path, beside: Path | None = None) -> Iterator[Path]:
    """Unpack the runs of a bundle into a temporary folder and check each file by the manifest.

    Of a run whose record cannot be read, the record is all that is unpacked: who reads it says what is wrong.

    Args:
        beside: the folder in which the temporary folder is made; None means the system's.

    Raises:
        UserError: the file is no bundle, has a newer schema, or holds files that differ from its manifest.
    """
    with scratch_folder(beside, "bundle") if beside else tempfile.TemporaryDirectory() as scratch:
        try:
            with open_regular(file) as opened, zipfile.ZipFile(opened) as archive:
                _check_total(archive, file)
                manifest = _manifest(archive, file)
                sizes: dict[str, dict[str, int] | None] = {}
                # a record first: it says how large the other files of its run are, before any of them is unpacked
                for name, entry in sorted(manifest.items(), key=lambda item: not item[0].endswith(f"/{RECORD}")):
                    target, run = Path(scratch) / name, name.partition("/")[0]
                    if run in sizes and sizes[run] is None:
                        continue
                    _check_size(file, name, entry["size"], sizes.get(run))
                    target.parent.mkdir(exist_ok=True)
                    _extract(archive, name, entry["size"], target)
                    if size_and_sha256(target) != entry:
                        raise UserError(f"{file}: {name} is not the file of the manifest; get the bundle again")
                    if target.name == RECORD:
                        sizes[run] = _sizes_in(target)
        except _DAMAGED as error:
            reason = " ".join(str(error).split())[:200]  # zipfile quotes whatever bytes stand where a name should
            raise UserError(f"{file}: not a readable bundle ({reason}); get it again") from None
        except OSError as error:
            raise UserError(f"{file}: cannot be read or unpacked ({error.strerror or error})") from None
        yield Path(scratch)


def _check_size(file: Path, name: str, size: int, sizes: dict[str, int] | None) -> None:
    """Raise UserError for a file that is larger than its record says, or than any record is.

    Args:
        file: the bundle.
        name: RUN/FILE.
        size: of the file in the manifest, in bytes.
        sizes: of the run's files in its record; None for the record itself.
    """
    expected = sizes.get(name.partition("/")[2]) if sizes else None
    if sizes is None and size > LARGEST_RECORD:
        raise UserError(f"{file}: {name} would be {size} bytes, which no record is; nothing is taken")
    if expected is not None and size != expected:
        raise UserError(f"{file}: {name} would be {size} bytes, but its record says {expected}; nothing is taken")
    if sizes is not None and expected is None and size > _LARGEST_UNLISTED:
        raise UserError(f"{file}: {name} would be {size} bytes, and its record does not list it; nothing is taken")


def _sizes_in(record: Path) -> dict[str, int] | None:
    """Return the sizes of a run's other files that its record lists; None if it is no record of this version."""
    try:
        files = Record.read(record, edited=True).files
    except UserError:
        return None
    return {name: about["size"] for name, about in files.items() if isinstance(about.get("size"), int)}


def _check_total(archive: zipfile.ZipFile, file: Path) -> None:
    """Raise UserError for a bundle that would fill the disk; no file is unpacked beyond the size in the archive."""
    total = sum(entry.file_size for entry in archive.infolist())
    if total > max(MOST_SHRUNK * file.stat().st_size, SMALL):
        raise UserError(f"{file}: would unpack to {total} bytes, which no bundle of its size does; nothing is taken")


def _manifest(archive: zipfile.ZipFile, file: Path) -> dict[str, dict[str, Any]]:
    """Return the sha256 and size of every file by its name in the archive, after checking all names and entries."""
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if MANIFEST not in names or archive.getinfo(MANIFEST).file_size > _LARGEST_MANIFEST:
        raise UserError(f"{file}: not a bundle of runs: it has no {MANIFEST}")
    try:
        content = parse_json(archive.read(MANIFEST))
        if content["schema"] != SCHEMA:
            raise UserError(f"{file}: schema {content['schema']}, but this version reads {SCHEMA}; update the suite")
        manifest = {f"{run}/{name}": entry for run, files in content["runs"].items() for name, entry in files.items()}
        bare = [run for run, files in content["runs"].items() if RECORD not in files]
        wrong = [name for name, entry in manifest.items() if not _is_run_file(name) or not _is_entry(entry)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file}: its {MANIFEST} is damaged ({reason_of(error)}); get the bundle again") from None
    wrong += [entry.filename for entry in entries if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG)]
    wrong += [entry.filename for entry in entries if entry.compress_type not in _COMPRESSIONS]
    wrong += [name for name in names if names.count(name) > 1] if len({*names}) < len(names) else []
    wrong += sorted({*names} ^ {*manifest, MANIFEST})
    if wrong:
        raise UserError(
            f"{file}: {wrong[0]!r} has no place in a bundle, or is not as its manifest says; nothing is taken"
        )
    if bare:
        raise UserError(f"{file}: its run {bare[0]!r} has no {RECORD}; nothing is taken")
    return manifest


def _is_run_file(name: str) -> bool:
    """Return whether a name in the archive is RUN/FILE, with a file that bundles hold."""
    run, _, file = name.partition("/")
    return _RUN.fullmatch(run) is not None and file in (RECORD, *SHARED)


def _is_entry(entry: Any) -> bool:
    size, sha256 = entry.get("size"), entry.get("sha256")
    return len(entry) == 2 and isinstance(size, int) and size >= 0 and isinstance(sha256, str)


def _extract(archive: zipfile.ZipFile, name: str, size: int, target: Path) -> None:
    """Extract a file, but no more bytes than its size in the manifest and one, as an archive may expand without end."""
    with archive.open(name) as source, target.open("wb") as file:
        left = size + 1
        while left and (chunk := source.read(min(left, 2**20))):
            file.write(chunk)
            left -= len(chunk)
