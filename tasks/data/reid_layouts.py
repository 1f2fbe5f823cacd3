"""Re-identification data sets on disk: one parser per layout, from a folder to lists of samples."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from backbones.data.loading.read_image import is_image
from backbones.data.spec import DatasetSpec, text_option
from backbones.errors import UsageError, UserError, shortened

JUNK, DISTRACTOR = -1, 0
PARTS = ("train", "query", "gallery")
MARKET_FOLDERS = dict(zip(PARTS, ("bounding_box_train", "query", "bounding_box_test")))
ONE_EACH = "one per identity"


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
    rounds: list[tuple[list[Sample], list[Sample]]] = field(default_factory=list)
    """Query and gallery of each test split if several are scored. `query` and `gallery` are then not read."""
    distractors: frozenset[int] = frozenset()
    """Identities in the gallery that mark distractors."""
    cameras: bool = True
    """Whether the cameras of samples are known."""
    junk: int = 0
    """Number of images dropped because the protocol excludes them from the score."""
    ignored: int = 0
    """Number of files that are no images (Thumbs.db, hidden files)."""
    version: str | None = None
    notes: list[str] = field(default_factory=list)
    """What was chosen or passed over, a line each."""


def trees_of(spec: DatasetSpec) -> tuple[tuple[str, ...], ...] | None:
    """Return what a folder must hold (see `Format.trees`) by the keys of the YAML; None: what its format says.

    Training images may be missing: such a set is scored only.
    """
    if spec.format == "reid_lists":
        return ((text_option(spec, "query") or "",),)
    if spec.format != "market1501":
        return None
    train, *test = (f"{text_option(spec, part) or MARKET_FOLDERS[part]}/" for part in PARTS)
    return (train, *test), tuple(test)


def without_cameras(spec: DatasetSpec) -> bool:
    """Return whether the YAML says `cameras: none`. Raises UsageError for another value."""
    cameras = text_option(spec, "cameras")
    if cameras not in (None, "none"):
        raise UsageError(f"{spec.name}: `cameras` must be none (or left out), not {cameras!r}")
    return cameras == "none"


def market1501(root: Path, spec: DatasetSpec, val: bool) -> Splits:
    """Read Market-1501: three folders of `0002_c1s1_000451_03.jpg` (identity, camera, sequence, frame, box).

    -1 is junk and dropped, as in every published protocol; 0000 in the gallery are distractors and kept, unless 0000
    is a person among the training images or queries. Images in subfolders belong to the folder. The YAML may name the
    folders (`train`, `query`, `gallery`) and the `pattern` of a file name, with groups for identity and camera.

    Raises:
        UserError: an image is named otherwise.
        UsageError: `pattern` is not a regular expression with these groups.
    """
    pattern = _pattern(spec)
    splits = Splits(train=[], query=[], gallery=[], version=spec.version)
    nested, other = [], []
    for part in PARTS:
        folder = root / (text_option(spec, part) or MARKET_FOLDERS[part])
        for path in _files(folder):
            if _is_clutter(path.name) or not is_image(path.name):
                splits.ignored += 1
                other += [] if _is_clutter(path.name) else [path]
                continue
            nested += [path] if path.parent != folder else []
            match = pattern.match(path.name)
            if not match or int(match[1]) < JUNK:
                raise UserError(
                    f"{path}: not named like a Market-1501 image (expected e.g. 0002_c1s1_000451_03.jpg); `pattern` in "
                    "the YAML file says how names are read, `cameras: none` that they have no camera"
                )
            if int(match[1]) == JUNK:
                splits.junk += 1
            else:
                camera = int(match[2]) if pattern.groups > 1 else 0
                getattr(splits, part).append(Sample(str(path), int(match[1]), camera))
    if any(sample.identity == DISTRACTOR for sample in (*splits.train, *splits.query)):
        splits.notes.append("identities count from 0: 0 is a person, as it is among the training images or queries")
    else:
        splits.distractors = frozenset({DISTRACTOR})
    for paths, said in (
        (nested, "images in subfolders are taken"),
        (other, "files are skipped, not images by their names"),
    ):
        if paths:
            names = [path.relative_to(root).as_posix() for path in paths]
            splits.notes.append(f"{len(names)} {said} ({shortened(names, 3)})")
    return splits


def _pattern(spec: DatasetSpec) -> re.Pattern[str]:
    groups = 1 if without_cameras(spec) else 2
    written = text_option(spec, "pattern") or (r"(-?\d+)" if groups == 1 else r"(-?\d+)_c(\d+)")
    try:
        pattern = re.compile(written, re.IGNORECASE)
        if pattern.groups < groups:
            raise re.error("it needs a group for the identity and one for the camera")
    except re.error as error:
        raise UsageError(f"{spec.name}: `pattern` {written!r}: {error}") from None
    return pattern


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of its subfolders except hidden ones, in the order of names."""
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not _is_clutter(name))
        yield from (Path(parent, name) for name in sorted(names))


def _is_clutter(name: str) -> bool:
    """Return whether an operating system or an archiver left this file or folder."""
    return name.startswith(".") or name.lower() in ("thumbs.db", "desktop.ini", "__macosx")
