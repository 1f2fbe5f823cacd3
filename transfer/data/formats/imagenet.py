"""ImageNet-1k and ImageNet-21k in the layouts they are published in: classes are WordNet ids such as n01440764."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

from transfer.core.errors import MissingInput, UserError, shortened, unusable
from transfer.core.files import read_lines
from transfer.data.formats.folders import FoundLayout, class_names, folder_names, read_split
from transfer.data.layouts import SOLUTION, SPLITS, imagenet_truths
from transfer.data.listing import scan_images
from transfer.data.spec import DatasetSpec, find_root, text_option
from transfer.data.splits.split import FileSplit


def ground_truth(folder: Path) -> tuple[dict[str, str], Path]:
    """Return {image name without suffix: WordNet id} and the file that lists them, searched for in the folders above.

    Raises:
        UserError: there is none, or it does not parse.
    """
    for file in imagenet_truths(folder):
        what = f"{file}: not the list of the validation images' classes"
        with unusable(what, Exception):  # scipy's are of many kinds
            return _solution(file) if file.name == SOLUTION else _devkit(file), file
    raise MissingInput(
        f"{folder}: images without class folders, and neither {SOLUTION} (Kaggle) nor ILSVRC2012_devkit_t12/ "
        f"(extracted) in {folder.parent} or above it; put one of them there, or sort the images into class folders"
    )


def _solution(path: Path) -> dict[str, str]:
    """Read Kaggle's lines `ILSVRC2012_val_00000001,n01751748 111 108 230 366`: the class, then boxes."""
    return {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(read_lines(path))}


def _devkit(path: Path) -> dict[str, str]:
    """Read the devkit: line i has the number of the class of validation image i, and `meta.mat` the WordNet ids."""
    from scipy.io import loadmat

    synsets = np.atleast_1d(loadmat(path.with_name("meta.mat"), squeeze_me=True)["synsets"])
    wnid_of = {int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
    return {f"ILSVRC2012_val_{number:08d}": wnid_of[int(line)] for number, line in enumerate(read_lines(path), start=1)}


KAGGLE = "ILSVRC/Data/CLS-LOC"


def wnids(name: str) -> tuple[str, ...]:
    """Return the WordNet ids of "imagenet1k" (1,000) or "imagenet21k_goog" (21,843), sorted, from timm's lists."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo(name).label_names())


def imagenet(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read ImageNet-1k: `train/WNID`, and `val/WNID` or all validation images in `val/` beside their ground truth.

    The ground truth is Kaggle's LOC_val_solution.csv, or the extracted devkit. The folder may also be the one that
    holds Kaggle's `ILSVRC/Data/CLS-LOC`. The key `classes: N` stands for N other WordNet ids, those of the folders,
    and leaves out the images of others in `val/`; `labels` is a file of other labels of the validation images, see
    `_relabelled`, which alone are read then.

    Raises:
        UserError: class folders are missing, empty or not ImageNet's, or an image of a flat `val/` has no truth.
    """
    root = find_root(spec, data)
    images = root / KAGGLE if (root / KAGGLE).is_dir() else root
    folders = {split: images / split for split in SPLITS if (images / split).is_dir()}
    flat = folders.pop("val") if "val" in folders and not folder_names(folders["val"]) else None
    classes = _classes(spec, "imagenet1k", [*folders.values()][:1])
    layout = FoundLayout(classes=classes)
    for split, folder in folders.items():
        layout = layout.with_split(*_checked_split(split, folder, classes))
    if flat is not None:
        layout = _with_flat_split(layout, flat)
    if (file := text_option(spec, "labels")) and isinstance(layout.val, FileSplit):
        val, note = _relabelled(layout.val, root / file, len(classes))
        layout = replace(layout, train=None, val=val, notes=[*layout.notes, note])
    return layout


def _relabelled(split: FileSplit, file: Path, classes: int) -> tuple[FileSplit, str]:
    """Return the validation images that a file gives labels, of which each may have several, and a note on the others.

    The file is a JSON list with the labels of ILSVRC2012_val_00000001, ..._00000002 and so on: "Are we done with
    ImageNet?" (arXiv 2006.07159), real.json of google-research/reassessed-imagenet, whose README leaves out images
    without labels and counts a prediction as right if it is one of the labels.
    """
    if not file.is_file():
        raise MissingInput(f"{file}: not found; get it from google-research/reassessed-imagenet on GitHub")
    expected = "a list of labels for each image, which are named ILSVRC2012_val_00000001 and so on"
    with unusable(f"{file}: it must have {expected} in {split.folder}"):
        listed = json.loads(file.read_text(encoding="utf-8"))
        rows = [listed[int(Path(name).stem[-8:]) - 1] for name in split.names]
        if wrong := sorted({*chain(*rows)} - {*range(classes)}):
            raise ValueError(f"labels: {shortened(wrong)}; they must be from 0 to {classes - 1}")
        labels = np.array([*zip_longest(*rows, fillvalue=-1)], dtype=np.int64).T
        keep = np.flatnonzero(labels[:, 0] >= 0)
    relabelled = replace(split.select(keep), labels=labels[keep, 0], true_labels=labels[keep])
    return relabelled, f"val: {len(rows) - len(keep)} of {len(rows)} images without a label in {file.name} left out"


def imagenet_test(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read a test set of ImageNet-1k's classes: one folder for each class, all for validation.

    A folder is a WordNet id, or a class's number from 0 (ImageNetV2). The key `classes: N` states a subset: the classes
    are the WordNet ids of the N folders. Hence accuracy is among these alone, as published: `output[:, indices_in_1k]`
    in eval.py of hendrycks/natural-adv-examples (ImageNet-A, arXiv 1907.07174) and of hendrycks/imagenet-r
    (arXiv 2006.16241).

    Raises:
        UserError: a folder is empty or not among the classes, or there are not N.
    """
    root = find_root(spec, data)
    classes = _classes(spec, "imagenet1k", [root])
    folders = [*map(str, range(len(classes)))] if (root / "0").is_dir() else classes
    return FoundLayout(classes=classes).with_split(*_checked_split("val", root, folders))


def imagenet21k(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read ImageNet-21k: one folder for each WordNet id, all for training.

    Labels are positions in the list of 21,843 ids that published models were trained on (timm's
    imagenet21k_goog_synsets.txt); ids of the list without a folder keep their label, as the public release lacks two.
    The key `classes: N` stands for N ids, those of the folders.

    Raises:
        UserError: a folder is empty or not in the list, or there are not N.
    """
    root = find_root(spec, data)
    classes = _classes(spec, "imagenet21k_goog", [root])
    return FoundLayout(classes=classes, sparse=True).with_split(*_checked_split("train", root, classes))


def _classes(spec: DatasetSpec, published: str, folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the published list, or as many class folders as the key `classes` says."""
    count = spec.options.get("classes")
    if count is None:
        return wnids(published)
    names = class_names(folders[0]) if folders else ()
    if len(names) != count:
        raise UserError(f"{spec.name}: {len(names)} class folders in {shortened(folders)}, but `classes` is {count}")
    return names


def _checked_split(name: str, folder: Path, classes: Sequence[str]) -> tuple[FileSplit, list[str]]:
    """Return what `read_split` finds in class folders. Raises UserError for others than those of the classes."""
    names = class_names(folder)
    if others := sorted(set(names) - set(classes)):
        fix = "remove them, or describe the variant in a YAML file with `classes: N`"
        raise UserError(f"{folder}: {len(others)} folder(s) are not among the classes: {shortened(others)}; {fix}")
    return read_split(name, folder, classes, present=names)


def _with_flat_split(layout: FoundLayout, folder: Path) -> FoundLayout:
    """Return the layout with the images of a flat `val/`, and a note on those of other classes, which a subset leaves
    out.
    """
    names, others, _ = scan_images(folder)
    truth, source = ground_truth(folder)
    label_of = {wnid: label for label, wnid in enumerate(layout.classes)}
    other_classes = {*wnids("imagenet1k")}.difference(label_of)
    labels = dict[str, int]()
    for image in names:
        wnid = truth.get(image.partition(".")[0])
        if wnid in label_of:
            labels[image] = label_of[wnid]
        elif wnid not in other_classes:
            reason = f"class {wnid}, which is not one of the {len(label_of)}" if wnid else "no class"
            raise UserError(f"{source}: it gives {folder / image} {reason}")
    found = layout.with_split(FileSplit.of("val", folder, [*labels], [*labels.values()]), others)
    left = len(names) - len(labels)
    notes = [f"val: {left} of {len(names)} images of other classes left out"] if left else []
    return replace(found, notes=[*found.notes, *notes])
