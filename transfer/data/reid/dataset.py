"""Person re-identification data: training, query and gallery lists, checked against the dataset's stated counts.

Several datasets are one training set by `join`; `split_off` takes a share of training identities for validation.

A new layout is a parser (as in `market1501.py` and `lists.py`), its entry in `REID_FORMATS` here, and its tree in
`transfer.data.layouts.FORMATS`.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import UserError, shortened
from transfer.core.grouped import grouped_by
from transfer.data.formats.users_reader import file_below, read_by_user, rows_by_split
from transfer.data.reid import market1501 as layouts
from transfer.data.reid.lists import msmt17, reid_lists, torchreid_set
from transfer.data.reid.market1501 import Sample, Splits
from transfer.data.spec import DatasetSpec, check_counts, find_root, manifest_digest
from transfer.data.splits.integrity import Images, check_present, check_split, overlap_notes, pictures_of, shared_images
from transfer.data.splits.manifest import Manifest, OpenedData
from transfer.data.splits.split import FileSplit

REID_FORMATS: dict[str, Callable[[Path, DatasetSpec, bool], Splits]] = {
    "market1501": layouts.in_folders,
    "reid_folders": layouts.in_folders,
    "msmt17": msmt17,
    "reid_lists": reid_lists,
    "torchreid": torchreid_set,
}


@dataclass(frozen=True, kw_only=True)
class ReidData(OpenedData):
    """An opened dataset. Lists are sorted by file name; training identities are 0..C-1, test identities as on disk.

    A set without training images can be scored, not trained on. `counts` are {"train" | "query" | "gallery": {"images",
    "identities", "cameras"}, "distractors", "junk", "ignored"}; identities of the gallery are without distractors,
    which are counted as images; no cameras count as 0. The one manifest is of all images.
    """

    root: Path
    train: list[Sample]
    query: list[Sample]
    gallery: list[Sample]
    cameras: bool = True
    """Whether `Sample.camera` is a camera. Else it is another number for each file, so that only the query image itself
    is of the query's camera."""
    joined: list[Any] = field(default_factory=list)
    """Name and digest of each dataset whose training images these are; see `join`."""

    @property
    def parts(self) -> dict[str, list[Sample]]:
        """The lists by name."""
        return {part: getattr(self, part) for part in layouts.LISTS}

    def images(self) -> dict[str, Images]:
        """Return the names and contents of the images of each split."""
        (manifest,) = self.manifests.values()
        rows = {name: row for row, name in enumerate(manifest.names)}
        images: dict[str, Images] = {}
        for part, samples in self.parts.items():
            names = [*map(self.name_of, samples)]
            images[part] = names, manifest.contents[[rows[name] for name in names]]
        return images

    def labelled(self) -> dict[str, tuple[str, Sequence[Any], NDArray[Any]]]:
        """Return the number of images of each person by split."""
        labels = {}
        for split, samples in self.parts.items():
            people, counts = np.unique([sample.identity for sample in samples], return_counts=True)
            if split == "gallery" and self.counts.get("distractors"):
                people, counts = people[people != layouts.DISTRACTOR], counts[people != layouts.DISTRACTOR]
            labels[split] = ("images of a person", people.tolist(), counts)
        return labels

    def files(self, samples: Sequence[Sample]) -> FileSplit:
        """Return the files of samples, with their identities as labels."""
        return _files(self.root, [sample.path for sample in samples], [sample.identity for sample in samples])

    def name_of(self, sample: Sample) -> str:
        """Return the file name of a sample relative to `root`, with forward slashes (`../` of one outside)."""
        return os.path.relpath(sample.path, self.root)


def open_reid(
    spec: DatasetSpec,
    data: Path | None,
    *,
    subset: int | None = None,
    msmt17_val: bool = True,
    drop_corrupt: bool = False,
    trained: bool = True,
) -> ReidData:
    """Find, parse and check a dataset.

    Args:
        spec: description of the dataset.
        data: value of the `--data` option (see `find_root`).
        subset: keep this many training and this many test identities (see `choose_identities`).
        msmt17_val: MSMT17 trains on list_train + list_val, as TransReID does; else on list_train, as torchreid does.
        drop_corrupt: exclude corrupt images instead of raising.
        trained: whether its training images are used, so that test images among them are an error, see `overlap_notes`.

    Raises:
        UserError: not found, incomplete, with a name that does not parse, with a corrupt image, or without any query
            that has a match.
        UsageError: the dataset is of another kind, or its YAML file names something that does not exist.
    """
    if spec.reader:
        root, splits = _by_user(spec, data)
    else:
        root = find_root(spec, data, layouts.trees_of(spec))
        splits = REID_FORMATS[spec.format](root, spec, msmt17_val)
        splits.cameras = not layouts.without_cameras(spec)
    layouts.drop_junk(splits)
    _check_listed(spec, root, splits)
    parts = _parts(splits, msmt17_val)
    _check_usable(spec.name, parts["query"], parts["gallery"])
    splits.notes += _check_identities(spec, parts, trained=trained)
    check_present(_paths(parts), name=spec.name)
    if subset is not None:
        parts = layouts.choose_identities(parts, subset)
    paths = _paths(parts)
    unreadable, looks, read_notes = check_split(_files(root, paths), name=spec.name, skip=drop_corrupt)
    bad = {paths[index] for index in unreadable}
    parts = {split: [sample for sample in samples if sample.path not in bad] for split, samples in parts.items()}
    _check_usable(spec.name, parts["query"], parts["gallery"])
    parts["train"] = relabel(parts["train"])
    manifest = Manifest.of(root, _files(root, _paths(parts)).names, what=spec.name)
    opened = ReidData(
        name=spec.name,
        version=splits.version,
        root=root,
        **parts,
        cameras=splits.cameras,
        counts=_counts(parts, splits) | {"ignored": splits.ignored},
        digest=_digest(parts, manifest, cameras=splits.cameras),
        skipped=len(bad),
        manifests={"images": manifest},
        pictures=pictures_of(looks),
        notes=(*splits.notes, *read_notes),
    )
    notes = overlap_notes(spec.name, opened.images(), allowed=not trained or spec.overlap == "allow")
    return replace(opened, notes=(*opened.notes, *notes))


def _check_listed(spec: DatasetSpec, root: Path, splits: Splits) -> None:
    """Compare version and counts with those stated, and note what is missing. Raises UserError."""
    if spec.version is not None and splits.version not in (None, spec.version):
        raise UserError(f"{spec.name}: {root} holds version {splits.version}, but {spec.version} was asked for")
    if not splits.cameras:
        splits.notes.append("no cameras: only the query image itself is excluded from its ranking")
    listed = dict(splits.lists)
    if "val" in listed:
        listed["train_val"] = listed["train"] + listed["val"]
    if not listed["train"]:
        del listed["train"]
        splits.notes.append("no training images: evaluation only")
    check_counts(spec, _counts(listed, splits), absent={"train", "val", "train_val"} - listed.keys())


def _parts(splits: Splits, val: bool) -> dict[str, list[Sample]]:
    """Return the sorted lists train, query and gallery. Without cameras every file gets a camera of its own."""
    parts = {part: splits.lists[part] for part in layouts.LISTS}
    if val:
        parts["train"] = parts["train"] + splits.lists.get("val", [])
    if not splits.cameras:
        files = {path: os.path.realpath(path) for path in _paths(parts)}
        camera_of = {file: number for number, file in enumerate(sorted(set(files.values())))}
        for part, samples in parts.items():
            parts[part] = [replace(sample, camera=camera_of[files[sample.path]]) for sample in samples]
    return {split: sorted(samples, key=lambda sample: sample.path) for split, samples in parts.items()}


def _by_user(spec: DatasetSpec, data: Path | None) -> tuple[Path, Splits]:
    """Return the folder and the lists of a dataset that a user's function reads. Raises UserError."""
    root, result = read_by_user(spec, data)
    rows = rows_by_split(
        spec,
        result,
        layouts.LISTS,
        "a dict with 'train', 'query' and 'gallery', each a list of (path, identity, camera), both as int, or of "
        "(path, identity) without cameras",
        _has_numbers,
    )
    listed: dict[str, list[layouts.Row]] = {}
    for split, part in rows.items():
        listed[split] = [(f"{root}/{file_below(root, row[0])}", str(int(row[1])), str(int(row[-1]))) for row in part]
    cameras = all(len(row) == 3 for row in chain(*rows.values()))
    return root, replace(layouts.splits_of(listed), cameras=cameras)


def _has_numbers(row: Any) -> bool:
    """Return whether a row is of one or two whole numbers behind the path."""
    return isinstance(row, tuple | list) and len(row) in (2, 3) and all(isinstance(item, Integral) for item in row[1:])


def _check_usable(name: str, query: Sequence[Sample], gallery: Sequence[Sample]) -> None:
    if not layouts.matched_queries(query, gallery):
        raise UserError(
            f"{name}: none of the {len(query)} queries has a match (the same identity under another camera) among the "
            f"{len(gallery)} gallery images; check the folders and the camera numbers. For a dataset without cameras, "
            "set `cameras: none` in its YAML file (of `reid_folders` remove `pattern`)"
        )


def _check_identities(spec: DatasetSpec, parts: dict[str, list[Sample]], *, trained: bool) -> list[str]:
    """Return notes on training images that are listed twice, on training identities with one image each, if these are
    most, and on those that are tested, too.

    Raises:
        UserError: an image is listed under two identities, or all of several identities to train on have one image.
    """
    name, train, notes = spec.name, parts["train"], list[str]()
    person_of: dict[str, int] = {}
    for sample in train:
        if person_of.setdefault(sample.path, sample.identity) != sample.identity:
            raise UserError(f"{name}: {sample.path} is listed under two identities; correct the list")
    if twice := len(train) - len(person_of):
        notes.append(f"{twice} training images are listed twice")
    images = grouped_by(train, lambda sample: sample.identity)
    single = [os.path.basename(samples[0].path) for samples in images.values() if len(samples) == 1]  # noqa: PTH119
    note = f"{len(single)} of {len(images)} training identities have one image each: {shortened(single, 3)}"
    if trained and 1 < len(single) == len(images):
        raise UserError(
            f"{name}: {note}; batches take several of an identity: correct the keys of the YAML file that say where "
            "identities are (`format`, `pattern`, `columns`), or only evaluate, with --epochs 0"
        )
    if len(images) > 1 and 2 * len(single) > len(images):
        notes.append(note)
    test = parts["query"] + parts["gallery"]
    seen = {sample.identity: os.path.basename(sample.path) for sample in test if sample.identity in images}  # noqa: PTH119
    if seen and spec.format in ("reid_lists", *layouts.PART_FOLDERS):  # others number each list's identities from 0
        also = f"{len(seen)} of {len(images)} training identities are also in query or gallery"
        notes.append(f"{also}: {shortened([*seen.values()], 3)}")
    return notes


def relabel(train: Sequence[Sample]) -> list[Sample]:
    """Return samples whose identities are numbered from 0."""
    people = sorted({sample.identity for sample in train})
    labels = {identity: label for label, identity in enumerate(people)}
    return [replace(sample, identity=labels[sample.identity]) for sample in train]


def _counts(parts: dict[str, list[Sample]], splits: Splits) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for split, samples in parts.items():
        people, cameras = {sample.identity for sample in samples}, {sample.camera for sample in samples}
        shown = len(cameras) if splits.cameras else 0
        counts[split] = {"images": len(samples), "identities": len(people), "cameras": shown}
    distractors = [sample for sample in parts["gallery"] if sample.identity in (splits.distractors or ())]
    counts["gallery"]["identities"] -= len({sample.identity for sample in distractors})
    return counts | {"distractors": len(distractors), "junk": splits.junk}


def _digest(parts: dict[str, list[Sample]], manifest: Manifest, *, cameras: bool) -> str:
    files = dict(zip(_paths(parts), zip(manifest.names, manifest.sizes.tolist(), manifest.contents)))
    entries = []
    for split, part in parts.items():
        for sample in part:
            name, size, content = files[sample.path]
            entries.append((f"{split}/{sample.identity}/{sample.camera if cameras else 'none'}/{name}", size, content))
    return manifest_digest(entries)


def _paths(parts: dict[str, list[Sample]]) -> list[str]:
    return list(dict.fromkeys(sample.path for sample in chain(*parts.values())))


def _files(root: Path, paths: Sequence[str], labels: Sequence[int] | None = None) -> FileSplit:
    return FileSplit.of("", root, (os.path.relpath(path, root) for path in paths), labels)


def join(parts: Sequence[ReidData]) -> ReidData:
    """Return a dataset that trains on the images of several; each has identities and cameras of its own.

    Both are numbered over the datasets by name, so the order of `parts` has no effect. Query and gallery are empty:
    each dataset is evaluated by itself. Raises UserError for training images that two share, as of two identities.
    """
    parts = sorted(parts, key=lambda part: (part.name, part.digest))
    for first, second in combinations(parts, 2):
        if shared := len(shared_images(first.images()["train"], second.images()["train"])):
            both = f"{first.name} and {second.name} have {shared} training images in common"
            raise UserError(f"--joint: {both}, which would be of two identities; leave out one dataset")
    train, people, cameras = list[Sample](), 0, 0
    for part in parts:
        train += [Sample(sample.path, people + sample.identity, cameras + sample.camera) for sample in part.train]
        people = 1 + max((sample.identity for sample in train), default=-1)
        cameras = 1 + max((sample.camera for sample in train), default=-1)
    counts = [part.counts["train"] for part in parts]
    return replace(
        parts[0],
        name="+".join(part.name for part in parts),
        version=None,
        root=type(parts[0].root)(os.path.commonpath([part.root for part in parts])),
        train=train,
        query=[],
        gallery=[],
        joined=[[part.name, part.digest] for part in parts],
        counts={"train": {unit: sum(count[unit] for count in counts) for unit in counts[0]}},
        digest=hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest(),
        skipped=sum(part.skipped for part in parts),
        manifests={part.digest: part.manifests["images"] for part in parts},
        notes=tuple(f"{part.name}: {note}" for part in parts for note in part.notes),
    )


def split_off(data: ReidData, share: float, seed: int) -> ReidData:
    """Return the dataset with a share of its training identities as query and gallery, and the others to train on.

    They are drawn by `seed` among the identities that several cameras saw. As in DukeMTMC-reID (README of
    sxzrt/DukeMTMC-reID_evaluation), one image of an identity from each camera is a query, and the others are the
    gallery. A camera's only image of an identity is both: the ranking leaves out the query's own camera.

    Raises:
        UserError: fewer than two identities are split off, or more than there are.
    """
    groups = grouped_by(data.train, lambda sample: (sample.identity, sample.camera))
    seen = grouped_by(groups, lambda group: group[0])
    several = sorted(identity for identity, cameras in seen.items() if len(cameras) > 1)
    count, most = round(share * len(seen)), min(len(several), len(seen) - 2)
    if not 2 <= count <= most:
        limits = f"from 2 to {most} ({len(several)} identities were seen by several cameras, and 2 must remain)"
        request = f"--validation-share {share:g} of {len(seen)} training identities is {count}"
        raise UserError(f"{data.name}: {request}; it must be {limits}")
    generator = np.random.default_rng([seed, count])
    drawn = {several[place] for place in generator.choice(len(several), count, replace=False)}
    query, gallery = list[Sample](), list[Sample]()
    for group in (group for (identity, _), group in groups.items() if identity in drawn):
        query.append(group.pop(int(generator.integers(len(group)))))
        gallery += group or query[-1:]
    rest = relabel([sample for sample in data.train if sample.identity not in drawn])
    return replace(data, train=rest, query=query, gallery=gallery)
