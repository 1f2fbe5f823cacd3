"""Re-identification data sets on disk: one parser per layout, from a folder to lists of samples."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from backbones.data.loading.read_image import is_image
from backbones.data.spec import DatasetSpec
from backbones.errors import UserError

JUNK, DISTRACTOR = -1, 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One image: its file, the person on it, and the camera that took it."""

    path: str
    identity: int
    camera: int


@dataclass(kw_only=True)
class Splits:
    """Result of a parser. `val` is None when the layout has no list for it, or the list does not exist."""

    train: list[Sample]
    query: list[Sample]
    gallery: list[Sample]
    val: list[Sample] | None = None
    distractors: frozenset[int] = frozenset()
    """Identities in the gallery that mark distractors."""
    junk: int = 0
    """Number of images dropped because the protocol excludes them from the score."""
    ignored: int = 0
    """Number of files that are no images (Thumbs.db, hidden files)."""
    version: str | None = None


def market1501(root: Path, spec: DatasetSpec, val: bool) -> Splits:
    """Read Market-1501: three folders of `0002_c1s1_000451_03.jpg` (identity, camera, sequence, frame, box).

    -1 is junk and dropped, as in every published protocol; 0000 in the gallery are distractors and kept.

    Raises:
        UserError: an image is named otherwise, or a distractor stands outside the gallery.
    """
    train, train_junk, train_ignored = _market_folder(root / "bounding_box_train")
    query, query_junk, query_ignored = _market_folder(root / "query")
    gallery, gallery_junk, gallery_ignored = _market_folder(root / "bounding_box_test")
    for sample in [*train, *query]:
        if sample.identity == DISTRACTOR:
            raise UserError(
                f"{sample.path}: 0000 marks a distractor and belongs into bounding_box_test; identities count from 1"
            )
    return Splits(
        train=train,
        query=query,
        gallery=gallery,
        distractors=frozenset({DISTRACTOR}),
        junk=train_junk + query_junk + gallery_junk,
        ignored=train_ignored + query_ignored + gallery_ignored,
        version=spec.version,
    )


def _market_folder(folder: Path) -> tuple[list[Sample], int, int]:
    """Return samples sorted by file name, the number of junk images, and the number of other files."""
    samples, junk, ignored = [], 0, 0
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not is_image(path.name):
            ignored += 1
            continue
        match = re.match(r"(-?\d+)_c(\d+)", path.name)
        if not match or int(match[1]) < JUNK:
            raise UserError(f"{path}: not named like a Market-1501 image (expected e.g. 0002_c1s1_000451_03.jpg)")
        if int(match[1]) == JUNK:
            junk += 1
        else:
            samples.append(Sample(str(path), int(match[1]), int(match[2])))
    return samples, junk, ignored


MSMT17_FOLDERS = {"V1": ("train", "test"), "V2": ("mask_train_v2", "mask_test_v2")}


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
        raise UserError(f"{root}: the image folders of V1 and of V2 lie side by side; keep each in a folder of its own")
    train_folder, test_folder = (root / folder for folder in MSMT17_FOLDERS[versions[0]])
    val_list = root / "list_val.txt"
    if val and not val_list.is_file():
        raise UserError(f"{val_list}: there is no such file; `--no-msmt17-val` trains on list_train.txt alone")
    return Splits(
        train=list(_msmt17_list(root / "list_train.txt", train_folder)),
        val=list(_msmt17_list(val_list, train_folder)) if val_list.is_file() else None,
        query=list(_msmt17_list(root / "list_query.txt", test_folder)),
        gallery=list(_msmt17_list(root / "list_gallery.txt", test_folder)),
        version=versions[0],
    )


def _msmt17_list(path: Path, folder: Path) -> Iterator[Sample]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            name, identity = line.rsplit(maxsplit=1)
            yield Sample(str(folder / name), int(identity), int(Path(name).name.split("_")[2]))
        except (ValueError, IndexError):
            raise UserError(
                f"{path}:{number}: {line!r} does not parse (expected e.g. 0000/0000_000_01_0303morning_0008_0.jpg 0)"
            ) from None
