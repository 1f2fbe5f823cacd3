"""`--dataset torchreid:NAME`: opens the image datasets that the torchreid package knows.

Nothing is downloaded, and nothing is written beside the data: torchreid's classes see a folder of links to it.
"""

import contextlib
import glob
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transfer.core.errors import MissingInput, UsageError, UserError, did_you_mean
from transfer.data.reid.lists import chosen_split
from transfer.data.reid.market1501 import PARTS, Sample, Splits
from transfer.data.spec import DatasetSpec

DRAWN_SPLITS = ("splits.json", "splits_single_shot.json")
"""Files into which torchreid's classes write the test splits that they draw."""
SEED = 0
"""Of these splits whatever the seed of a run, so that every machine scores the same ones."""


def torchreid_set(root: Path, spec: DatasetSpec, val: bool) -> Splits:
    """Return the lists of torchreid's dataset class for its folder below `root`, in the order of file names.

    Of several test splits the key `split` chooses one (0 if left out). Identities of the training set are
    numbered in that order too: torchreid numbers them in the order of a set.

    Raises:
        UserError: torchreid is not installed, or it does not find the dataset or parts of it.
        UsageError: torchreid knows no such dataset or split.
    """
    known = _classes()
    from transfer.core.seeding import seeded  # imports torch

    name = str(spec.options.get("set"))
    if name not in known:
        raise UsageError(
            f"torchreid knows no image dataset {name!r}{did_you_mean(name, known)}\nknown: {', '.join(sorted(known))}"
        )
    kind = known[name]
    folder = root / getattr(kind, "dataset_dir", "")
    if not folder.is_dir():  # some classes would download it
        raise MissingInput(f"{spec.name}: {folder}: directory not found; set `--data` to its parent folder")
    with _links(root, folder) as links, seeded(SEED):
        opened = _open(kind, links, root, spec.name)
        count = len(json.loads(Path(opened.split_path).read_bytes())) if hasattr(opened, "split_path") else 1
        if chosen := chosen_split(spec, count):
            opened = _open(kind, links, root, spec.name, split_id=chosen)
        train, query, gallery = (_samples(getattr(opened, part), links, root, spec.name) for part in PARTS)
    splits = Splits(train=train, query=query, gallery=gallery, distractors=frozenset(kind._junk_pids))
    if {sample.path for sample in train} <= {sample.path for sample in (*query, *gallery)}:
        splits.train = []
        splits.notes.append("torchreid uses the test images as training images")
    labels: dict[int, int] = {}
    splits.train = [
        Sample(sample.path, labels.setdefault(sample.identity, len(labels)), sample.camera) for sample in splits.train
    ]
    if count > 1:
        splits.notes.append(f"test split {chosen} of {count} (`split: N` in a YAML file); draws have seed {SEED}")
    return splits


def _classes() -> dict[str, Any]:
    try:
        with warnings.catch_warnings(action="ignore"):  # that its evaluation, which is not used, is not compiled
            from torchreid.reid.data import datasets
    except ImportError as error:
        raise MissingInput(f"torchreid cannot be imported ({error}): pip install -e '.[torchreid]'") from None
    return dict(vars(datasets)["__image_datasets"])  # includes what users registered there


@contextlib.contextmanager
def _links(root: Path, folder: Path) -> Iterator[Path]:
    """Yield a temporary folder in the place of `root`, with links to what `folder` holds, but for splits drawn before.

    torchreid's classes write their splits and extracted images into the folder that they are given, and list files in
    the order of the disk before they draw: inside, `glob` sorts.
    """
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / folder.relative_to(root)
        copy.mkdir(parents=True, exist_ok=True)
        for entry in folder.iterdir():
            if entry.suffix == ".json" and entry.name not in DRAWN_SPLITS:
                shutil.copy(entry, copy / entry.name)  # through a link the original would be overwritten
            elif entry.name not in DRAWN_SPLITS:
                (copy / entry.name).symlink_to(entry)
        listing, glob.glob = glob.glob, lambda *args, **options: sorted(listing(*args, **options))
        try:
            yield Path(name)
        finally:
            glob.glob = listing


def _open(kind: Any, links: Path, root: Path, name: str, **options: int) -> Any:
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        try:
            return kind(root=str(links), verbose=False, **options)
        except Exception as error:  # another project's code, on data that it may not expect
            reason = str(error).replace(str(links), str(root))
            raise UserError(
                f"{name}: torchreid cannot open it under {root}: {type(error).__name__}: {reason}"
            ) from error


def _samples(rows: list[tuple[Any, ...]], links: Path, root: Path, name: str) -> list[Sample]:
    samples = []
    for path, identity, camera, *_ in rows:
        file = Path(str(path).replace(str(links), str(root), 1))
        if not file.exists() and Path(path).exists():
            raise MissingInput(f"{name}: {file} is still in its archive: extract it, as torchreid would")
        samples.append(Sample(str(file), int(identity), int(camera)))
    return sorted(samples, key=lambda sample: sample.path)
