"""Detection data in COCO's format: images, boxes, masks and crowds, checked before anything is trained or scored.

A file of annotations for each split and a folder with its images: `annotations/instances_train2017.json` beside
`train2017/`, or `_annotations.coco.json` in `train/`, `valid/` and `test/`, as Roboflow exports them, unless the YAML
file names others by `train_annotations`, `train_images`, `val_annotations`, `val_images`.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import MissingInput, UserError, shortened
from transfer.data import spec as dataset_spec
from transfer.data.coco.annotations import Classes, read_coco_split
from transfer.data.coco.scoring import COCO, REGIONS, SCORING, Scoring, scoring_of, with_regions
from transfer.data.coco.split import CocoSplit, Splits, check_images, choose_images
from transfer.data.formats.folders import choose_splits
from transfer.data.formats.users_reader import read_by_user, rows_by_split
from transfer.data.layouts import BESIDE, EXPORTED, SPLIT_NAMES, SPLIT_TITLES
from transfer.data.spec import DatasetSpec
from transfer.data.splits.integrity import Images, check_present, overlap_notes, pictures_of
from transfer.data.splits.manifest import Manifest, OpenedData
from transfer.data.splits.split import FileSplit

UNTRAINED_OBJECTS = ", ignored, without area, below a pixel (as shares of the image's size are) or outside their image"
CONTENT_KEYS = {"exif", "boxes", *SCORING, *REGIONS}
"""Keys of the YAML that are not of where the files are."""
Read = tuple[CocoSplit, Classes, dict[str, int]]
"""What `read_coco_split` returns."""
NOTED = {
    "ignored": (0, "have `ignore: 1`: not trained on, as in mmdetection, and scored as any other, as by pycocotools"),
    "computed_area": (0, "have no `area`: it is that of the mask, or of the box without one"),
    "no_area": (0.5, "have area 0 or a side of 0: not trained on, scored as small; without `area` it is computed"),
    "below_pixel": (0.5, "have a side below a pixel, as if divided by the image's size; COCO's boxes are in pixels"),
}
"""What is noted of counts in `CocoData.dropped` above a share of the split's objects."""
UNMASKED_SHARE = 0.01
"""Share of the objects that may lack a mask in a set with masks: these are background in training, as in mmdetection,
and neither right nor wrong in scores of masks."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CocoData(OpenedData):
    """An opened dataset; `counts` are {"train" | "val": {"images", "objects", "crowds"}, "classes"}, crowds not
    among the objects; `digest` is that of the annotations, too.
    """

    root: Path
    classes: tuple[str, ...]
    """Names in the order of the categories' ids; a label 0..C-1 is an index into them."""
    category_ids: tuple[int, ...]
    """Id of each label; COCO's ids have gaps."""
    train: CocoSplit | None
    val: CocoSplit | None
    dropped: dict[str, dict[str, int]]
    """Numbers of objects by split that are not trained on: `crowds`, `ignored`, `no_area`, `outside` of their image,
    `below_pixel` in a side; of boxes `clipped` for training; of `short_polygons`, of objects `left_without_polygon` by
    these, and of those with a `computed_area`. The whole split is counted; scoring takes all objects."""
    scoring: Scoring = COCO
    """Parameters of the scores."""
    regions: bool = False
    """Whether its YAML file names regions to be ignored besides COCO's crowds."""

    @classmethod
    def of_images(cls, images: FileSplit, classes: Iterable[str], ids: Iterable[int]) -> Self:
        """Return images without labels as `val`, beside the classes of a detector and their ids."""
        split = CocoSplit.unlabelled(images)
        facts: dict[str, Any] = {"name": split.name, "version": None, "counts": {}, "digest": "", "dropped": {}}
        columns: dict[str, Any] = {"classes": tuple(classes), "category_ids": tuple(ids), "train": None, "val": split}
        return cls(root=split.folder, **facts, **columns)

    @property
    def objects(self) -> int:
        """Return the number of objects of both splits, without crowds."""
        return sum(int((~split.crowd).sum()) for split in (self.train, self.val) if split)

    @property
    def unmasked(self) -> int:
        """Return the number of `objects` that have no segmentation."""
        return sum(split.unmasked for split in (self.train, self.val) if split)

    @property
    def masks(self) -> bool:
        """Return whether masks can be trained and scored: nearly every object has a segmentation."""
        return self.unmasked <= UNMASKED_SHARE * self.objects

    def labelled(self) -> dict[str, tuple[str, Sequence[Any], NDArray[Any]]]:
        """Return the number of objects of each class by split, crowds apart."""
        splits = {name: split for name, split in (("train", self.train), ("val", self.val)) if split}
        labels_of = {name: split.label[~split.crowd & (split.label >= 0)] for name, split in splits.items()}
        return {name: ("objects of a class", self.classes, np.bincount(labels)) for name, labels in labels_of.items()}

    def images(self) -> dict[str, Images]:
        """Return the names and contents of the images of each split."""
        return {name: (manifest.names, manifest.contents) for name, manifest in self.manifests.items()}

    def as_coco(self, split: CocoSplit) -> dict[str, Any]:
        """Return the images, objects and categories of a split in COCO's format, with boxes as in the file.

        A region to be ignored is a crowd of each class, each with an id of its own.
        """
        further = count(int(split.ids.max(initial=0)) + 1)
        rows = zip(split.ids, split.image, split.label, split.boxes, split.areas, split.crowd, split.segmentations)
        objects: list[dict[str, Any]] = []
        for number, image, label, box, area, crowd, segmentation in rows:
            facts = {"bbox": box.tolist(), "area": float(area), "iscrowd": int(crowd)}
            if segmentation is not None:
                facts["segmentation"] = segmentation
            for category in self.category_ids if label < 0 else self.category_ids[label : label + 1]:
                key = int(number) if label >= 0 else next(further)
                objects.append({"id": key, "image_id": split.images[image].id, "category_id": category, **facts})
        images = [asdict(image) for image in split.images]
        categories = [{"id": number, "name": name} for number, name in zip(self.category_ids, self.classes)]
        return {"images": images, "annotations": objects, "categories": categories}


def open_coco(
    spec: DatasetSpec, data: Path | None, *, subset: int | None = None, drop_corrupt: bool = False, trained: bool = True
) -> CocoData:
    """Find, parse and check a dataset.

    Args:
        spec: description of the dataset.
        data: value of the `--data` option (see `spec.find_root`).
        subset: keep this many images of each split, those with objects first, ranked by content; subsets are nested.
        drop_corrupt: exclude corrupt images and their objects instead of raising.
        trained: whether its training images are used, so that test images among them are an error, see `overlap_notes`.

    Raises:
        DatasetNotFound: the dataset, or a part of it, does not exist.
        UserError: annotations that are not in COCO's format or contradict themselves, each other or the images; a
            missing or corrupt image; nothing to train on, or nothing to score by.
        UsageError: its YAML file names something that does not exist.
    """
    boxes = dataset_spec.choice_option(spec, "boxes", "from_polygons", "in_file")
    upright = dataset_spec.choice_option(spec, "exif", "apply", "ignore") == "apply"
    scoring = scoring_of(spec)
    if spec.reader:
        (root, read), remarks = _by_user(spec, data), list[str]()
    else:
        root, layout, remarks = _layout(spec, data)
        read = {name: read_coco_split(name, root / at, root / to, boxes=boxes) for name, (at, to) in layout.items()}
    splits, classes, notes = _shared_classes(read)
    splits = {name: replace(split, upright=upright) for name, split in splits.items()}
    remarks += notes
    dropped = {name: counts for name, (_, _, counts) in read.items()}
    if regions := any(map(spec.options.get, REGIONS)):
        splits, classes, dropped = with_regions(spec, splits, classes, dropped)
    for name, split in splits.items():
        remarks += [f"{SPLIT_TITLES[name]}: {note}" for note in split.notes]
        counts = [(dropped[name][key], share * len(split.ids), text) for key, (share, text) in NOTED.items()]
        remarks += [f"{number} {SPLIT_TITLES[name]} objects {text}" for number, least, text in counts if number > least]
    dataset_spec.check_counts(spec, _counts(splits, classes))
    _check_usable(splits)
    for split in splits.values():
        check_present(split.paths(), name=spec.name, listed_in=split.file)
    if subset is not None:
        splits = choose_images(splits, subset, skip=drop_corrupt)
    splits, skipped, notes = check_images(spec.name, splits, skip=drop_corrupt)
    _check_usable(splits)
    remarks += _lacking_classes(splits.get("train") if trained else None, splits.get("val"), [*classes.values()])
    changing = [*REGIONS] if regions else []
    if boxes == "from_polygons":
        changing.append("boxes")
    manifests = {name: Manifest.of(split.folder, split.files().names, what=spec.name) for name, split in splits.items()}
    opened = CocoData(
        name=spec.name,
        version=spec.version,
        root=root,
        classes=tuple(classes.values()),
        category_ids=tuple(classes),
        train=splits.get("train"),
        val=splits.get("val"),
        counts=_counts(splits, classes),
        dropped=dropped,
        scoring=scoring,
        regions=regions,
        digest=_digest(splits, manifests, [f"{key} {spec.options.get(key)}" for key in changing]),
        skipped=skipped,
        manifests=manifests,
        pictures=pictures_of([[1, image.width, image.height] for split in splits.values() for image in split.images]),
    )
    shared = overlap_notes(spec.name, opened.images(), allowed=not trained or spec.overlap == "allow")
    return replace(opened, notes=(*remarks, *notes, *shared))


def _by_user(spec: DatasetSpec, data: Path | None) -> tuple[Path, dict[str, Read]]:
    """Return the folder and the splits of a dataset that a user's function reads. Raises UserError."""
    options = {key: value for key, value in spec.options.items() if key not in CONTENT_KEYS}
    root, result = read_by_user(replace(spec, options=options), data)
    wanted = "a dict with 'train', 'val' or both, each a pair of a dict in COCO's format and the folder of the images"
    pairs = rows_by_split(
        spec,
        {name: [pair] for name, pair in result.items()} if isinstance(result, dict) else result,
        SPLIT_TITLES,
        wanted,
        lambda pair: isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], dict),
    )
    file, splits = Path(spec.reader.rpartition(":")[0]), {}
    for name, [(annotations, folder)] in pairs.items():
        content = json.dumps(annotations).encode()
        splits[name] = read_coco_split(name, file, root / folder, content, spec.options.get("boxes"))
    return root, splits


def _layout(spec: DatasetSpec, data: Path | None) -> tuple[Path, dict[str, tuple[str, str]], list[str]]:
    """Return the folder of the dataset, and of each split (null: none) annotation file and image folder, and notes."""
    layout, keys = {}, spec.options.keys() - CONTENT_KEYS
    for name in SPLIT_TITLES:
        file = dataset_spec.text_option(spec, f"{name}_annotations")
        if file is None and f"{name}_annotations" in keys:
            continue
        usual = Path(file).parent.as_posix() if file and Path(file).name == BESIDE else f"{name}2017"
        images = dataset_spec.text_option(spec, f"{name}_images") or usual
        layout[name] = (file or f"annotations/instances_{name}2017.json", images)
    sources = [layout[name] for name in layout if f"{name}_annotations" in keys] or layout.values()
    files, folders = zip(*((file, f"{folder}/") for file, folder in sources), strict=True)
    trees = [(*files, *folders), *((file,) for file in EXPORTED if not keys)]
    root = dataset_spec.find_root(spec, data, tuple(trees))
    if any((root / file).is_file() for file in files):
        for name in (name for name, (file, _) in layout.items() if not (root / file).is_file()):
            fix = f"set `{name}_annotations` and `{name}_images`"
            fix += ", or `train_annotations: null` to train nothing" if name == "train" else ""
            raise MissingInput(f"{spec.name}: no {SPLIT_TITLES[name]} split: {root / layout[name][0]} not found; {fix}")
        return root, layout, []

    exported = {name: (f"{name}/{BESIDE}", name) for name in SPLIT_NAMES if (root / name / BESIDE).is_file()}
    return root, *choose_splits(spec, root, exported.get, lambda *_: "", form="{}/")


def _shared_classes(read: dict[str, Read]) -> tuple[Splits, Classes, list[str]]:
    """Return the splits with labels by the classes of all their files, these, and notes.

    Categories of one name are one class, with the lowest id that has objects.
    """
    listed = [categories for _, categories, _ in read.values()]
    first, last = listed[0], listed[-1]
    names = dict(sorted((first | last).items()))
    lone = sorted(first.items() ^ last.items())
    if odd := [(number, name) for number, name in lone if number in first.keys() & last.keys()]:
        files = " and ".join(str(split.file) for split, *_ in read.values())
        fault = f"have different categories (id, name): {shortened(odd)}"
        raise UserError(f"{files} {fault}; write both files with the same")
    used = {[*categories][label] for split, categories, _ in read.values() for label in np.unique(split.label)}
    ranked = sorted(names, key=lambda number: (number not in used, number))
    number_of = {names[number]: number for number in reversed(ranked)}
    classes = {number: names[number] for number in sorted(number_of.values())}
    label_of = {name: label for label, name in enumerate(classes.values())}
    splits: Splits = {}
    for title, (split, categories, _) in read.items():
        labels = np.array([label_of[name] for name in categories.values()], np.int64)
        splits[title] = replace(split, label=labels[split.label])
    notes = list[str]()
    if lone:
        notes.append(f"categories in only one split (id, name): {shortened(lone)}")
    others = {number: name for number, name in names.items() if number != number_of[name]}
    if merged := [f"{number} is {number_of[name]} ({name})" for number, name in others.items()]:
        notes.append(f"categories with the same name were merged: {shortened(merged)}")
    return splits, classes, notes


def _counts(splits: Splits, classes: Classes) -> dict[str, Any]:
    counts: dict[str, Any] = {
        name: {"images": len(split.images), "objects": int((~split.crowd).sum()), "crowds": int(split.crowd.sum())}
        for name, split in splits.items()
    }
    return counts | {"classes": len(classes)}


def _check_usable(splits: Splits) -> None:
    for name, split in splits.items():
        used, aim, others = ~split.crowd, "scored", "crowds"
        if name == "train":
            used, aim, others = split.trained, "trained on", f"crowds{UNTRAINED_OBJECTS}"
        if not used.any():
            images = f"{len(split.images)} {SPLIT_TITLES[name]} images"
            fault = f"of {images} no object can be {aim}: {len(split.ids)} are {others}"
            raise UserError(f"{split.file}: {fault}; set another file in the dataset's YAML file")


def _lacking_classes(train: CocoSplit | None, val: CocoSplit | None, names: Sequence[str]) -> list[str]:
    """Return notes of the classes that are scored and not trained on, or not scored."""
    scored = np.unique(val.label[~val.crowd]) if val else np.arange(len(names))
    texts = {
        "without a training object lower AP": np.setdiff1d(scored, train.label[train.trained] if train else scored),
        "without a validation object count in no average, as in COCO": np.setdiff1d(np.arange(len(names)), scored),
    }
    notes = list[str]()
    for text, labels in texts.items():
        if lacking := [names[label] for label in labels]:
            notes.append(f"{len(lacking)} of {len(names)} classes {text}: {shortened(lacking, 3)}")
    return notes


def _digest(splits: Splits, manifests: dict[str, Manifest], regions: list[str]) -> str:
    files = [(f"{name}/annotations", len(split.ids), bytes.fromhex(split.content)) for name, split in splits.items()]
    for name, manifest in manifests.items():
        images = zip(manifest.names, manifest.sizes.tolist(), manifest.contents)
        files += [(f"{name}/images/{image}", size, content) for image, size, content in images]
        if splits[name].upright:
            files.append((f"{name}/upright", 0, b""))
    files += [(region, 0, b"") for region in regions]
    return dataset_spec.manifest_digest(files)
