"""`--dataset torchreid:NAME`: opens the image data sets that the torchreid package knows. Nothing is downloaded."""

import contextlib
import warnings
from pathlib import Path
from typing import Any

from backbones.data.spec import DatasetSpec
from backbones.errors import MissingInput, UsageError, UserError, did_you_mean
from tasks.data.reid_layouts import Sample, Splits


def torchreid_set(root: Path, spec: DatasetSpec, val: bool) -> Splits:
    """Return the lists of torchreid's data set class for its folder below `root`, in the order of file names.

    Identities of the training set are numbered in that order too: torchreid numbers them in the order of a set.

    Raises:
        UserError: torchreid is not installed, or it does not find the data set or parts of it.
        UsageError: torchreid knows no such data set.
    """
    known = _classes()
    name = str(spec.options.get("set"))
    if name not in known:
        raise UsageError(
            f"torchreid knows no image data set {name!r}{did_you_mean(name, known)}\nknown: {', '.join(sorted(known))}"
        )
    opened = _open(known[name], root, spec.name)
    train, query, gallery = (_samples(getattr(opened, split)) for split in ("train", "query", "gallery"))
    labels: dict[int, int] = {}
    for sample in train:
        labels.setdefault(sample.identity, len(labels))
    return Splits(
        train=[Sample(sample.path, labels[sample.identity], sample.camera) for sample in train],
        query=query,
        gallery=gallery,
        distractors=frozenset(known[name]._junk_pids),
    )


def _classes() -> dict[str, Any]:
    try:
        from torchreid.reid.data import datasets
    except ImportError as error:
        raise MissingInput(f"torchreid cannot be imported ({error}): pip install -e '.[torchreid]'") from None
    return dict(vars(datasets)["__image_datasets"])  # includes what users registered there


def _open(kind: Any, root: Path, name: str) -> Any:
    def download_dataset(self: Any, dataset_dir: str, dataset_url: str | None) -> None:
        if not Path(dataset_dir).is_dir():
            raise MissingInput(f"{name}: {dataset_dir}: no such folder; name the folder above it with `--data FOLDER`")

    offline = type(kind.__name__, (kind,), {"download_dataset": download_dataset})
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        try:
            return offline(root=str(root), verbose=False)
        except (RuntimeError, AssertionError, OSError, ValueError, IndexError, AttributeError) as error:
            raise UserError(f"{name}: torchreid cannot open it under {root}: {error}") from error


def _samples(rows: list[tuple[Any, ...]]) -> list[Sample]:
    return sorted((Sample(str(row[0]), int(row[1]), int(row[2])) for row in rows), key=lambda sample: sample.path)
