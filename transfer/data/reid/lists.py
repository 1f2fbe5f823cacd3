"""Re-identification datasets as list files (one image a line, with its identity), and those that torchreid lists.

`--dataset torchreid:NAME` opens the image datasets that the torchreid package knows. Nothing is downloaded, and nothing
is written beside the data: torchreid's classes see a folder of links to it.
"""

import contextlib
import csv
import glob
import json
import random
import re
import shutil
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transfer.core.errors import MissingInput, UsageError, UserError, did_you_mean, shortened
from transfer.core.files import listed_path, numbered_lines, with_home
from transfer.core.grouped import grouped_by
from transfer.core.machine_errors import install_command
from transfer.data.reid.market1501 import (
    LISTS,
    ONE_EACH,
    Row,
    Sample,
    Splits,
    list_files,
    splits_of,
    without_cameras,
)
from transfer.data.spec import DatasetSpec, text_option

DRAWS = 10
"""Draws of the gallery that published scores are means of, as TransReID's README says for VehicleID."""
MSMT17_FOLDERS = {"V1": ("train", "test"), "V2": ("mask_train_v2", "mask_test_v2")}
MSMT17_CAMERA = r"[^_]*_[^_]*_(\d+)_"


def reid_lists(root: Path, spec: DatasetSpec, val: bool) -> Splits:
    """Read the files that the keys `train`, `query` and `gallery` of the YAML name, by its key `columns`.

    Columns are `image`, `identity` and `camera` (numbers, or names that are numbered in sorted order), and `part`
    (train, query or gallery, in a file that lists them all), apart by commas or spaces; others are skipped, as are the
    first `header` lines. `images` says where an image lies, as `image/{}.jpg`. With `gallery: one per identity` the
    gallery is drawn from the queries.

    Raises:
        UserError: a list is missing, or a line does not parse.
        UsageError: a key has no such value.
    """
    columns = (text_option(spec, "columns") or "image identity").split()
    if not {"image", "identity"} <= set(columns) or not ({"camera"} & set(columns) or without_cameras(spec)):
        raise UsageError(f"{spec.name}: `columns` must name image, identity, camera, or the YAML say `cameras: none`")
    images, header = text_option(spec, "images") or "{}", spec.options.get("header", 0)
    files = {part: root / name for part, name in list_files(spec).items()}
    rows, others = {part: list[Row]() for part in files}, defaultdict[tuple[Path, str], set[int]](set)
    for part, path in files.items():
        for number, stated, row in _rows(path, root, images, columns, header=header):
            if stated in (None, part):
                rows[part].append(row)
            elif files.get(stated) != path:
                others[path, stated].add(number)
    splits = splits_of(rows)
    for (path, value), numbers in others.items():
        skipped = f"{len(numbers)} lines skipped, of part {value!r}: {shortened(sorted(numbers), 3)}"
        splits.notes.append(f"{path.name}: {skipped}")
    if spec.options.get("gallery") == ONE_EACH:
        seed = chosen_split(spec, DRAWS)
        # whatever the order of the lines
        ordered = sorted(splits.lists["query"], key=lambda sample: (sample.identity, sample.path))
        generator, people = random.Random(seed), grouped_by(ordered, lambda sample: sample.identity)
        splits.lists["gallery"] = [generator.choice(images) for images in people.values()]
        splits.lists["query"] = list(set(ordered) - set(splits.lists["gallery"]))
        which = f"draw {seed} of {DRAWS}; `split` chooses another"
        splits.notes.append(f"the gallery is one image of each identity, drawn at random ({which})")
    return splits


def chosen_split(spec: DatasetSpec, count: int) -> int:
    """Return the number of the test split that the key `split` chooses. Raises UsageError."""
    split = spec.options.get("split", 0)
    if type(split) is not int or split not in range(count):
        raise UsageError(f"{spec.name}: `split` is {split!r}; it must be a number from 0 to {count - 1}")
    return split


def msmt17(root: Path, spec: DatasetSpec, val: bool) -> Splits:
    """Read MSMT17: lists of `0000/0000_000_01_0303morning_0008_0.jpg 0` (path, identity; the camera is third).

    V1 and V2 (faces blurred) differ in the names of the image folders and give different scores.

    Args:
        root: the folder that holds the lists.
        spec: unused; every parser takes it.
        val: whether `list_val.txt` is used and must exist.

    Raises:
        UserError: a list is missing, a line of one does not parse, or both versions lie in one folder.
    """
    versions = [name for name, folders in MSMT17_FOLDERS.items() if all((root / folder).is_dir() for folder in folders)]
    if len(versions) != 1:
        raise UserError(f"{root}: the image folders of both V1 and V2 are here; move each version to its own folder")
    train, test = MSMT17_FOLDERS[versions[0]]
    val_list = root / "list_val.txt"
    if val and not val_list.is_file():
        raise UserError(f"{val_list}: file not found; use `--no-msmt17-val` to train on list_train.txt alone")
    folders = {"train": train, "query": test, "gallery": test} | ({"val": train} if val_list.is_file() else {})
    rows: dict[str, list[Row]] = {}
    for part, folder in folders.items():
        lines = _rows(root / f"list_{part}.txt", root, f"{folder}/{{}}", ["image", "identity"], MSMT17_CAMERA)
        rows[part] = [row for *_, row in lines]
    return replace(splits_of(rows), version=versions[0], distractors=frozenset())


def _rows(
    path: Path, root: Path, images: str, columns: Sequence[str], camera: str = "", *, header: int = 0
) -> Iterator[tuple[int, str | None, Row]]:
    """Yield the number of each line of a list, the part that it states, if any, and its row.

    `camera` is the pattern that finds the camera in the name of an image.
    """
    lines = {number: line.replace("\\", "/") for number, line in numbered_lines(path).items() if number > header}
    for number, line in lines.items():
        apart = [cell.strip() for cell in next(csv.reader([line]))]
        if len(apart) != len(columns):  # by spaces, which the image may contain
            *first, rest = line.split(maxsplit=columns.index("image"))
            apart = [*first, *rest.rsplit(maxsplit=len(columns) - len(first) - 1)]
        cells = dict(zip(columns, apart))
        image = with_home(cells.get("image", ""))
        name = images.replace("{}", image)[images.find("{}") if image.startswith("/") else 0 :]
        seen_by = cells.get("camera", "0")
        if camera:
            match = re.match(camera, name.rpartition("/")[2])
            seen_by = match[1] if match else ""
        if len(cells) < len(columns) or not (image and cells["identity"] and seen_by):
            expected = f"`{' '.join(columns)}`" if not camera else "0000/0000_000_01_0303morning_0008_0.jpg 0"
            raise UserError(f"{path}:{number}: {line!r} does not parse (expected e.g. {expected})")
        yield number, cells.get("part"), (str(root / listed_path(root, name)), cells["identity"], seen_by)


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
    try:
        with warnings.catch_warnings(action="ignore"):  # that its evaluation, which is not used, is not compiled
            from torchreid.reid.data import datasets
    except ImportError as error:
        raise MissingInput(f"torchreid cannot be imported ({error}): {install_command('torchreid')}") from None
    known: dict[str, Any] = vars(datasets)["__image_datasets"]  # includes what users registered there
    from transfer.core.seeding import seeded  # imports torch

    name = str(spec.options.get("set"))
    if name not in known:
        near = did_you_mean(name, known)
        raise UsageError(f"torchreid knows no image dataset {name!r}{near}\nknown: {', '.join(sorted(known))}")
    kind = known[name]
    folder = root / getattr(kind, "dataset_dir", "")
    if not folder.is_dir():  # some classes would download it
        raise MissingInput(f"{spec.name}: {folder}: directory not found; set `--data` to its parent folder")
    with _links(root, folder) as links, seeded(SEED):
        opened = _open(kind, links, root, spec.name)
        count = len(json.loads(Path(opened.split_path).read_bytes())) if hasattr(opened, "split_path") else 1
        if chosen := chosen_split(spec, count):
            opened = _open(kind, links, root, spec.name, split_id=chosen)
        lists = {part: _samples(getattr(opened, part), links, root, spec.name) for part in LISTS}
    splits = Splits(lists=lists, distractors=frozenset(kind._junk_pids))
    labels: dict[int, int] = {}
    for place, sample in enumerate(lists["train"]):
        lists["train"][place] = replace(sample, identity=labels.setdefault(sample.identity, len(labels)))
    if {sample.path for sample in lists["train"]} <= {sample.path for sample in lists["query"] + lists["gallery"]}:
        lists["train"] = []
        splits.notes.append("torchreid uses the test images as training images")
    if count > 1:
        splits.notes.append(f"test split {chosen} of {count} (`split: N` in a YAML file); draws have seed {SEED}")
    return splits


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
    with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(None):
        try:
            return kind(root=str(links), verbose=False, **options)
        except Exception as error:  # another project's code, on data that it may not expect
            reason = str(error).replace(str(links), str(root))
            fault = f"torchreid cannot open it under {root}: {type(error).__name__}"
            raise UserError(f"{name}: {fault}: {reason}") from error


def _samples(rows: list[tuple[Any, ...]], links: Path, root: Path, name: str) -> list[Sample]:
    samples = []
    for path, identity, camera, *_ in rows:
        file = Path(str(path).replace(str(links), str(root), 1))
        if not file.exists() and Path(path).exists():
            raise MissingInput(f"{name}: {file} is still in its archive: extract it, as torchreid would")
        samples.append(Sample(str(file), int(identity), int(camera)))
    return sorted(samples, key=lambda sample: sample.path)
