"""`python -m transfer.doctor data [NAME ...] [--fetch NAME ...]` checks which datasets are here and fetches others."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from backbones.data.spec import DatasetNotFound, DatasetSpec, data_folder, dataset_names, resolve_dataset
from backbones.errors import UsageError, UserError, print_safe
from transfer.doctor.check_result import CheckResult
from transfer.doctor.download import fetch


def check_datasets(names: Sequence[str], data: Path | None) -> Iterator[CheckResult]:
    """Check datasets as a run would: every list is read, every count compared, every image decoded once.

    Args:
        names: names of shipped sets, or YAML files. If empty, all shipped sets are checked, with less detail on
            those that are not here.
        data: the `--data` option.
    """
    for name in names or dataset_names():
        yield _check(resolve_dataset(name), data, brief=not names)


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
                fetch(spec, folder, print_safe)
                result = _check(spec, data)
        except UserError as error:
            result = CheckResult("broken", f"{spec.name}: not fetched", str(error))
        yield result


def _check(spec: DatasetSpec, data: Path | None, *, brief: bool = False) -> CheckResult:
    if "generator" in spec.options:
        return CheckResult("ok", f"{spec.name}: embedded, made when first used")
    try:
        opened = open_any(spec, data)
        return CheckResult("ok", f"{spec.name}: complete{description(opened)}", "\n".join(opened.notes))
    except DatasetNotFound as error:
        fetchable = f"\n`python -m transfer.doctor data --fetch {spec.name}` gets it" if spec.archives else ""
        fix = f"`python -m transfer.doctor data {spec.name}` shows where it was looked for\nto get it: {spec.how}"
        reason = fix if brief else str(error).removeprefix(f"{spec.name}: ")
        return CheckResult("absent", spec.name, reason + fetchable)
    except UserError as error:
        return CheckResult("incomplete", spec.name, str(error).removeprefix(f"{spec.name}: "))


def open_any(spec: DatasetSpec, data: Path | None) -> Any:
    """Open a dataset, which reads and checks it as a run would. Raises UserError."""
    from backbones.data.classification import open_classification
    from backbones.data.formats.users_reader import WrongReader
    from tasks.data.coco import open_coco
    from tasks.data.reid import FORMATS, open_reid

    if spec.reader:
        for open_dataset in (open_classification, open_reid, open_coco):
            try:
                return open_dataset(spec, data)
            except WrongReader as error:
                reason = error
        raise reason
    if spec.format == "coco":
        return open_coco(spec, data)
    return open_reid(spec, data) if spec.format in FORMATS else open_classification(spec, data)


def description(data: Any) -> str:
    """Return the images of each split, and how the set is stored unless it is as published."""
    counts = {name: part["images"] for name, part in data.counts.items() if isinstance(part, dict) and "images" in part}
    text = ", " + ", ".join(f"{name} {count:,}" for name, count in counts.items()) + " images"
    # only classification sets have several storage variants
    storage, origin = getattr(data, "storage", "published"), getattr(data, "origin", "")
    if origin:
        return f"{text}, from {origin} in the hub's cache"
    return text if storage == "published" else f"{text}, as {storage}"
