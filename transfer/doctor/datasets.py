"""`python -m transfer.doctor data [NAME ...] [--fetch NAME ...]` checks which datasets are here and fetches others."""

import hashlib
import http.client
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from tqdm import tqdm

from transfer.core.errors import UsageError, UserError, print_safe, unusable
from transfer.core.files import check_writable, writing
from transfer.data.layouts import Archive
from transfer.data.spec import DatasetNotFound, DatasetSpec, data_folder, dataset_names, resolve_dataset
from transfer.data.understood import statement


@dataclass(frozen=True)
class CheckResult:
    """The subject of a check and its state.

    `absent` limits what can be run; `incomplete` exists but cannot be used; `broken` prevents every run.
    """

    state: Literal["ok", "absent", "incomplete", "broken"]
    subject: str
    """The subject of the check with the observed value, such as a version or a folder."""
    fix: str = ""
    """The command or explanation that helps, in one or more lines."""

    def __str__(self) -> str:
        fix = "".join(f"\n               {line}" for line in self.fix.splitlines())
        mark = self.state if self.state in ("ok", "absent") else self.state.upper()
        return f"  {mark:11}{self.subject}{fix}"


DATA_FLAG = "--data"
DOWNLOADED_BYTES = 2**20
DOWNLOAD_SECONDS = 60
ARCHIVE_ERRORS = (tarfile.TarError, zipfile.BadZipFile, EOFError, ValueError, RuntimeError, NotImplementedError)


def fetch(spec: DatasetSpec, data: Path) -> None:
    """Download the archives of a dataset, check them, and extract them into the data folder.

    Complete archives stay under `DATA/.fetch-NAME` until all are extracted. Nothing in the data folder is overwritten.

    Args:
        spec: the dataset.
        data: the data folder.

    Raises:
        UserError: the set may not be fetched, the network fails, an archive is not the published one, a folder is in
            the way, or the disk is full.
    """
    if not spec.archives:
        raise UserError(f"{spec.name}: must be downloaded manually (license: {spec.license or 'unknown'}): {spec.how}")
    check_writable(data, DATA_FLAG)
    scratch = data / f".fetch-{spec.name}"
    with writing(scratch, DATA_FLAG):
        scratch.mkdir(exist_ok=True)
        moves = list[tuple[Path, Path]]()
        for number, archive in enumerate(spec.archives):
            file = scratch / f"{number}-{PurePosixPath(archive.url).name}"
            print_safe(f"{spec.name}: {archive.url}")
            _download(archive, file)
            tree = _extracted(archive, file, scratch / f"tree{number}")
            entries = [entry for entry in tree.iterdir() if not entry.name.startswith((".", "__MACOSX"))]
            moves += [(entry, data / archive.into / entry.name) for entry in entries]
        _move(moves)
        shutil.rmtree(scratch)


def _download(archive: Archive, file: Path) -> None:
    """Download an archive to `file` and check it; a file that is there already is only checked."""
    published = archive.sha256 or archive.md5
    if file.exists() and _checksum(file, archive) == published:
        return
    try:
        with (
            urllib.request.urlopen(archive.url, timeout=DOWNLOAD_SECONDS) as answer,
            tqdm.wrapattr(answer, "read", total=archive.bytes, leave=False, disable=None) as body,
            file.open("wb") as target,
        ):
            shutil.copyfileobj(body, target, DOWNLOADED_BYTES)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(f"{archive.url}: cannot be downloaded ({reason}); rerun the command") from None
    if (checksum := _checksum(file, archive)) != published:
        fault = f"{checksum} is the checksum of {file.stat().st_size} bytes, but the published file has {published}"
        fix = "the download was damaged, or the file was replaced; rerun the command"
        raise UserError(f"{archive.url}: {fault}: {fix}")


def _checksum(file: Path, archive: Archive) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256" if archive.sha256 else "md5").hexdigest()


def _extracted(archive: Archive, file: Path, tree: Path) -> Path:
    """Extract an archive, and the one inside it if there is one; return the folder with the content."""
    outer = _extract(archive, file, tree)
    if not archive.inside:
        return outer
    return _extract(archive, outer / archive.inside, tree.with_name(f"{tree.name}-inside"))


def _extract(archive: Archive, file: Path, tree: Path) -> Path:
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir()
    with unusable(f"{archive.url}: cannot be extracted", *ARCHIVE_ERRORS):
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as content:
                content.extractall(tree)  # which keeps `..` and links within the folder
        else:
            with tarfile.open(file) as packed:
                packed.extractall(tree, filter="data")
    return tree


def _move(moves: list[tuple[Path, Path]]) -> None:
    """Rename each pair (source, target) unless one of the targets exists."""
    for _, target in moves:
        if target.exists():
            raise UserError(f"{target} is in the way; move it away and rerun the command")
    for source, target in moves:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)


def check_datasets(names: Sequence[str], data: Path | None, look: Path | None = None) -> Iterator[CheckResult]:
    """Check datasets as a run would: every list is read, every count compared, every image decoded once.

    Args:
        names: names of shipped sets, or YAML files. If empty, all shipped sets are checked, with less detail on
            those that are not here.
        data: the `--data` option.
        look: see `transfer.doctor.look`.
    """
    for name in names or dataset_names():
        yield _check(resolve_dataset(name), data, brief=not names, look=look)


def fetch_all(names: Sequence[str], data: Path | None) -> Iterator[CheckResult]:
    """Fetch datasets that are not here, and check each of them afterwards.

    Raises:
        UsageError: unknown name, or no data folder.
    """
    specs = [resolve_dataset(name) for name in names]
    folder = data_folder(data)
    if folder is None:
        raise UsageError("--fetch: name the folder that gets the data with `--data FOLDER` or TRANSFER_DATA=FOLDER")
    for spec in specs:
        result = _check(spec, data)
        try:
            if result.state != "ok":
                fetch(spec, folder)
                result = _check(spec, data)
        except UserError as error:
            result = CheckResult("broken", f"{spec.name}: not fetched", str(error))
        yield result


def _check(spec: DatasetSpec, data: Path | None, *, brief: bool = False, look: Path | None = None) -> CheckResult:
    if "generator" in spec.options and not look:
        return CheckResult("ok", f"{spec.name}: bundled, generated when first used")
    try:
        opened = open_any(spec, data)
        if look:
            from transfer.doctor.look import write_look

            write_look(opened, look)
        lines = [*statement(opened), *([spec.reading] if spec.recognised else []), *opened.notes]
        if look:
            lines.append(f"samples are drawn in {look}")
        return CheckResult("ok", f"{spec.name}: complete{stored(opened)}", "\n".join(lines))
    except DatasetNotFound as error:
        fetchable = f"\n`python -m transfer.doctor data --fetch {spec.name}` gets it" if spec.archives else ""
        fix = f"`python -m transfer.doctor data {spec.name}` shows where it was looked for\nto get it: {spec.how}"
        reason = fix if brief else str(error).removeprefix(f"{spec.name}: ")
        return CheckResult("absent", spec.name, reason + fetchable)
    except UserError as error:
        reading = f"\n{spec.reading}" if spec.recognised else ""
        return CheckResult("incomplete", spec.name, str(error).removeprefix(f"{spec.name}: ") + reading)


def open_any(spec: DatasetSpec, data: Path | None) -> Any:
    """Open a dataset, which reads and checks it as a run would. Raises UserError."""
    from transfer.data.classification import open_classification
    from transfer.data.coco.dataset import open_coco
    from transfer.data.formats.users_reader import WrongReader
    from transfer.data.reid.dataset import REID_FORMATS, open_reid

    if spec.reader:
        for open_dataset in (open_classification, open_reid, open_coco):
            try:
                return open_dataset(spec, data)
            except WrongReader as error:
                reason = error
        raise reason
    if spec.format == "coco":
        return open_coco(spec, data)
    return open_reid(spec, data) if spec.format in REID_FORMATS else open_classification(spec, data)


def stored(data: Any) -> str:
    """Return how a set is stored, unless it is as published; only classification sets have several variants."""
    storage, origin = getattr(data, "storage", "published"), getattr(data, "origin", "")
    if origin:
        return f", from {origin} in the hub's cache"
    return "" if storage == "published" else f", as {storage}"
