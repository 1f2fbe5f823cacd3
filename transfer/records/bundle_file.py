"""Unpacks bundles, which are zip archives of the folders of runs. Imports no torch."""

import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backbones.errors import UserError, reason_of
from transfer.records.per_sample import OUTCOMES
from transfer.records.store import HISTORY, OPTIONS, RECORD

SUPPORT = "support.csv"
SHARED = (RECORD, HISTORY, OPTIONS, OUTCOMES, SUPPORT)
"""The files of a run that bundles hold; the record has the sizes and digests of the others."""
_RUN = re.compile(r"[A-Za-z0-9_+@,-][A-Za-z0-9_.+@,-]*")
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


@contextmanager
def unpacked(file: Path, beside: Path | None = None) -> Iterator[Path]:
    """Unpack a bundle into a temporary folder; `python -m transfer.verify` checks the digests of its files.

    Args:
        file: the bundle.
        beside: the folder in which the temporary folder is made; None means the system's.

    Raises:
        UserError: the file is not a bundle, is corrupt, or contains other files. Nothing is unpacked then.
    """
    with tempfile.TemporaryDirectory(prefix=".bundle-", suffix=".tmp", dir=beside) as scratch:
        try:
            with zipfile.ZipFile(file) as archive:
                if reason := _refusal(archive):
                    raise UserError(f"{file}: {reason}; nothing is taken")
                archive.extractall(scratch)
        except _DAMAGED as error:
            raise UserError(f"{file}: not a readable bundle ({reason_of(error)}); get it again") from None
        yield Path(scratch)


def _refusal(archive: zipfile.ZipFile) -> str:
    """Return why an archive is not a bundle of runs; empty if it is one."""
    names, runs = archive.namelist(), set[str]()
    for entry in names:
        run, _, name = entry.partition("/")
        if not _RUN.fullmatch(run) or name not in SHARED:
            return f"{entry!r} has no place in a bundle"
        runs.add(run)
    if bare := [run for run in sorted(runs) if f"{run}/{RECORD}" not in names]:
        return f"its run {bare[0]!r} has no {RECORD}"
    return "" if runs else "not a bundle of runs: it has none"
