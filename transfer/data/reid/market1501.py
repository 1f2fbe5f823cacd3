"""Re-identification datasets on disk: one parser per layout, from a folder to lists of samples.

`--subset N` takes a small part of a real dataset, chosen by content, so that it is the same part on every machine.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from unicodedata import normalize

from transfer.core.errors import UsageError, UserError
from transfer.core.files import file_sha256
from transfer.data.layouts import Trees
from transfer.data.listing import beside, passed_over, scan_images
from transfer.data.spec import DatasetSpec, text_option

DISTRACTOR = 0
LISTS = ("train", "query", "gallery")
MARKET_FOLDERS = dict(zip(LISTS, ("bounding_box_train", "query", "bounding_box_test")))
PART_FOLDERS = {"market1501": MARKET_FOLDERS, "reid_folders": {part: part for part in LISTS}}
"""The usual names of the folders, by format."""
ONE_EACH = "one per identity"
Row = tuple[str, str, str]  # file, identity, camera


@dataclass(frozen=True, slots=True)
class Sample:
    """One image: its file, the person on it, and the camera that took it."""

    path: str
    identity: int
    camera: int


@dataclass(kw_only=True)
class Splits:
    """Result of a parser."""

    lists: dict[str, list[Sample]]
    """Train, query and gallery, and `val` where the layout has such a list and it exists."""
    distractors: frozenset[int] | None = None
    """Identities in the gallery that mark distractors; None: `drop_junk` decides."""
    cameras: bool = True
    """Whether the cameras of samples are known."""
    junk: int = 0
    """Number of images dropped because the protocol excludes them from the score."""
    ignored: int = 0
    """Number of files that are no images (Thumbs.db, hidden files and folders)."""
    version: str | None = None
    notes: list[str] = field(default_factory=list)
    """What was chosen or skipped, a line each."""


def trees_of(spec: DatasetSpec) -> Trees | None:
    """Return what a folder must hold (see `Format.trees`) by the keys of the YAML; None: what its format says.

    Training images that no key names may be missing: such a set is scored only.
    """
    if spec.format == "reid_lists":
        return (tuple(list_files(spec).values()),)
    if spec.format not in PART_FOLDERS:
        return None
    train, *test = (f"{text_option(spec, part) or usual}/" for part, usual in PART_FOLDERS[spec.format].items())
    return ((train, *test),) if spec.options.get("train") else ((train, *test), tuple(test))


def list_files(spec: DatasetSpec) -> dict[str, str]:
    """Return the list files that the keys `train`, `query` and `gallery` name, as paths below the dataset's folder."""
    files = {part: text_option(spec, part) or ONE_EACH for part in LISTS}
    return {part: file for part, file in files.items() if file != ONE_EACH}


def without_cameras(spec: DatasetSpec) -> bool:
    """Return whether the YAML says `cameras: none`, or no pattern that finds them in the paths of `reid_folders`."""
    if spec.format == "reid_folders":
        return text_option(spec, "pattern") is None
    return text_option(spec, "cameras") == "none"


def drop_junk(splits: Splits) -> None:
    """Drop junk from every list, and decide whether 0 marks distractors, whatever the layout.

    Identities below 0 (-1) are junk, as in every published protocol; 0 in the gallery are distractors and kept, unless
    0 is a person among the training images or queries.
    """
    splits.junk += len({sample for sample in chain(*splits.lists.values()) if sample.identity < 0})
    for part, samples in splits.lists.items():
        splits.lists[part] = [sample for sample in samples if sample.identity >= 0]
    if splits.distractors is None:
        splits.distractors = frozenset((DISTRACTOR,))
        known = chain(*(samples for part, samples in splits.lists.items() if part != "gallery"))
        if any(sample.identity == DISTRACTOR for sample in known):
            splits.distractors = frozenset()
            splits.notes.append("identities start at 0: identity 0 is a person in the training or query images")


def splits_of(rows: dict[str, list[Row]], *, numbers: bool = True) -> Splits:
    """Return the samples of each list. Identities and cameras that are names are numbered as `_numbers` does.

    Args:
        rows: of each list.
        numbers: whether identities may be numbers; else all are names.
    """
    people = _numbers({name for _, name, _ in chain(*rows.values())}, numbers)
    cameras = _numbers({camera for *_, camera in chain(*rows.values())})
    lists: dict[str, list[Sample]] = {part: [] for part in LISTS}
    for part, listed in rows.items():
        lists[part] = [Sample(file, people[name], cameras[camera]) for file, name, camera in listed]
    return Splits(lists=lists)


def _numbers(names: set[str], numbers: bool = True) -> dict[str, int]:
    """Return numbers as they are; if there are others, all but -1 are names and numbered in sorted order, from 1."""
    if numbers and all(re.fullmatch(r"-?\d+", name) for name in names):
        return {name: int(name) for name in names}
    return {name: number for number, name in enumerate(sorted(names - {"-1"}), start=1)} | {"-1": -1}


def in_folders(root: Path, spec: DatasetSpec, val: bool) -> Splits:
    """Read three folders of images, which the keys `train`, `query` and `gallery` may name, by one of two formats.

    market1501: names of files as `0002_c1s1_000451_03.jpg` (identity, camera, sequence, frame, box), or by the key
    `pattern`. A pattern with a slash is that of the path below one of the three folders. Other images lie directly in
    it, or in folders named after their identity.

    reid_folders: PERSON/IMAGE.jpg, where PERSON is any text. The key `pattern` has a group for the camera.

    Raises:
        UserError: an image has no identity or camera, or lies in a folder that contradicts its name.
        UsageError: `pattern` is not a regular expression with the groups that are needed.
    """
    by_folder = spec.format == "reid_folders"
    wanted = [] if by_folder else ["identity"]
    if not without_cameras(spec):
        wanted.append("camera")
    pattern, groups = _pattern(spec, wanted)
    rows: dict[str, list[Row]] = {part: [] for part in LISTS}
    others = []
    folders = {part: text_option(spec, part) or usual for part, usual in PART_FOLDERS[spec.format].items()}
    for part, place in folders.items():
        folder = root / place
        names, more, _ = scan_images(folder) if folder.is_dir() else ([], [], [])
        others += [f"{folder.name}/{name}" for name in more]
        for name in names:
            above, _, file = name.rpartition("/")
            match = pattern.match(name if "/" in pattern.pattern else file)
            cells = [match[group] or "" for group in groups] if match else [""]
            if by_folder:
                cells.insert(0, normalize("NFC", above.partition("/")[0]))
            if "" in cells:
                raise UserError(f"{folder}/{name}: {LACKING[spec.format]}")
            persons = {part.lstrip("0") for part in above.split("/")}
            if above and not by_folder and "/" not in pattern.pattern and cells[0].lstrip("0") not in persons:
                raise UserError(
                    f"{folder}/{name}: its name begins with identity {cells[0]}, but its folder is named otherwise. If "
                    "each person has a folder, set `format: reid_folders` in the YAML file; if folders mean something "
                    r"else, set the `pattern` of the path, such as '(?:.*/)?(-?\d+)_c(\d+)'"
                )
            rows[part].append((f"{folder}/{name}", cells[0], cells[-1]))
    splits, notes = splits_of(rows, numbers=not by_folder), passed_over(others) + beside(root, folders.values())
    return replace(splits, version=spec.version, ignored=len(others), notes=notes)


LACKING = {
    "market1501": "not named like a Market-1501 image (0002_c1s1_000451_03.jpg): it lacks identity or camera, the "
    "first two groups of the `pattern`, or those named (?P<identity>...) and (?P<camera>...); `cameras: none` in the "
    "YAML file says that there are no cameras, and `format: reid_folders` that each person has a folder",
    "reid_folders": "it lacks the folder of a person (PERSON/IMAGE.jpg), or the camera, the first group of the "
    "`pattern`, or that named (?P<camera>...); `format: market1501` in the YAML file reads identities from file names",
}


def _pattern(spec: DatasetSpec, wanted: Sequence[str]) -> tuple[re.Pattern[str], Sequence[str | int]]:
    """Return the pattern of a name or path, and its groups for what is wanted."""
    count = len(wanted)
    written = text_option(spec, "pattern") or ("", r"(-?\d+)", r"(-?\d+)_c(\d+)")[count]
    try:
        pattern = re.compile(written, re.IGNORECASE)
        groups: Sequence[str | int] = wanted if pattern.groupindex else range(1, count + 1)
        if pattern.groups < count or (pattern.groupindex and not {*wanted} <= {*pattern.groupindex}):
            raise re.error(f"it needs a group for the {' and one for the '.join(wanted)}")
    except re.error as error:
        raise UsageError(f"{spec.name}: `pattern` {written!r}: {error}") from None
    return pattern, groups


def choose_identities(parts: dict[str, list[Sample]], n: int) -> dict[str, list[Sample]]:
    """Return by part N training identities and N test identities with all their images.

    An identity's rank is the sha256 of the bytes of its first image. Test identities are those with a query that has a
    match. Of the other gallery images (distractors) the same proportion is kept, ranked each by its own bytes.

    Raises:
        UserError: there are fewer than N of either.
    """
    train, query, gallery = (parts[part] for part in LISTS)
    people = {sample.identity for sample in matched_queries(query, gallery)}
    others = [sample for sample in gallery if sample.identity not in people]
    trainable = len({sample.identity for sample in train})
    if n > len(people) or (train and n > trainable):
        raise UserError(f"subset {n}: the dataset has {trainable} training and {len(people)} test identities")
    trained = _first_by_content(train, n)
    tested = _first_by_content([sample for sample in query if sample.identity in people], n)
    ranked = sorted(others, key=lambda sample: (file_sha256(Path(sample.path)), sample.path))
    retained = {*ranked[: round(len(others) * n / len(people))]}
    retained.update(sample for sample in gallery if sample.identity in tested)
    gallery = [sample for sample in gallery if sample in retained]
    query = [sample for sample in query if sample.identity in tested]
    return {"train": [sample for sample in train if sample.identity in trained], "query": query, "gallery": gallery}


def matched_queries(query: Iterable[Sample], gallery: Iterable[Sample]) -> list[Sample]:
    """Return the queries whose identity another camera saw: the queries that the score is averaged over."""
    cameras = defaultdict(set)
    for sample in gallery:
        cameras[sample.identity].add(sample.camera)
    return [sample for sample in query if cameras[sample.identity] - {sample.camera}]


def _first_by_content(samples: list[Sample], n: int) -> set[int]:
    first = {sample.identity: sample for sample in reversed(samples)}
    return set(sorted(first, key=lambda identity: (file_sha256(Path(first[identity].path)), identity))[:n])
