"""Downloads published archives of datasets: the only code of the suite that uses the network, and only on request."""

import hashlib
import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from backbones.data.archives import Archive
from backbones.data.spec import DatasetSpec
from backbones.errors import UserError
from backbones.runtime.files import check_writable, write_error

FLAG = "--data"
CHUNK = 2**20
TIMEOUT_SECONDS = 60
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError, NotImplementedError)


def fetch(spec: DatasetSpec, data: Path, say: Callable[[str], None]) -> None:
    """Download the archives of a dataset, check them, and extract them into the data folder.

    Complete archives stay under `DATA/.fetch-NAME` until all are extracted. Nothing in the data folder is overwritten.

    Args:
        spec: the dataset.
        data: the data folder.
        say: is called with a line of text for each step.

    Raises:
        UserError: the set may not be fetched, the network fails, an archive is not the published one, a folder is in
            the way, or the disk is full.
    """
    if not spec.archives:
        raise UserError(f"{spec.name}: must be downloaded manually (license: {spec.license or 'unknown'}): {spec.how}")
    check_writable(data, FLAG)
    scratch = data / f".fetch-{spec.name}"
    try:
        scratch.mkdir(exist_ok=True)
        trees = []
        for number, archive in enumerate(spec.archives):
            file = scratch / f"{number}-{PurePosixPath(archive.url).name}"
            say(f"{spec.name}: {archive.url}")
            _download(archive, file)
            trees.append((archive, _extracted(archive, file, scratch / f"tree{number}")))
        moves = [(entry, data / archive.into / entry.name) for archive, tree in trees for entry in tree.iterdir()]
        _move([move for move in moves if not move[0].name.startswith((".", "__MACOSX"))])
        shutil.rmtree(scratch)
    except OSError as error:
        raise write_error(scratch, error, FLAG) from error


def _download(archive: Archive, file: Path) -> None:
    """Download an archive to `file` and check it; a file that is there already is only checked."""
    if file.exists() and _checksum(file, archive) == archive.checksum:
        return
    try:
        with (
            urllib.request.urlopen(archive.url, timeout=TIMEOUT_SECONDS) as answer,
            tqdm.wrapattr(answer, "read", total=archive.bytes, leave=False, disable=None) as body,
            file.open("wb") as target,
        ):
            shutil.copyfileobj(body, target, CHUNK)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(f"{archive.url}: cannot be downloaded ({reason}); rerun the command") from None
    if (checksum := _checksum(file, archive)) != archive.checksum:
        raise UserError(
            f"{archive.url}: {archive.algorithm} {checksum} of {file.stat().st_size} bytes, but the published file has "
            f"{archive.checksum}: the download was damaged, or the file was replaced; rerun the command"
        )


def _checksum(file: Path, archive: Archive) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, archive.algorithm).hexdigest()


def _extracted(archive: Archive, file: Path, tree: Path) -> Path:
    """Extract an archive, and the one inside it if there is one; return the folder with the content."""
    _extract(archive, file, tree)
    if not archive.inside:
        return tree
    _extract(archive, tree / archive.inside, tree.with_name(f"{tree.name}-inside"))
    return tree.with_name(f"{tree.name}-inside")


def _extract(archive: Archive, file: Path, tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as content:
                content.extractall(tree)  # which keeps `..` and links within the folder
        else:
            with tarfile.open(file) as packed:
                packed.extractall(tree, filter="data")
    except DAMAGED as error:
        raise UserError(f"{archive.url}: cannot be extracted: {error}") from None


def _move(moves: list[tuple[Path, Path]]) -> None:
    """Rename each pair (source, target) unless one of the targets exists."""
    for _, target in moves:
        if target.exists():
            raise UserError(f"{target} is in the way; move it away and rerun the command")
    for source, target in moves:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
