"""The layout of a folder that the user names alone, by its entries and a look into a few files. Imports no torch."""

import json
import mmap
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice, permutations, product
from pathlib import Path
from typing import Any

from transfer.core.errors import UsageError, UserError, shortened, unusable
from transfer.core.pictures import evenly_spaced
from transfer.core.settings import CONFIGS, read_yaml
from transfer.data.layouts import BESIDE, FORMATS, SPLIT_NAMES, SPLITS, imagenet_truths, is_largest, missing_entries
from transfer.data.listing import folders_below, holds_images, listed
from transfer.data.loading.read_image import is_image, open_image

FolderSample = dict[str, tuple[list[str], list[str]]]
"""Names of folders and files by the folder that holds them, as "train/"; of some images where there are many."""
LISTED, SAMPLED, CLASSES, LOOKED_AT = 100, 1000, 12, 20
"""Folders within a folder that are looked at, images in each, the number of folders in a folder above which they are
classes and not parts of a layout, and files of a kind that are looked at."""
IMAGENET_CLASSES = 1000
COLORS, BEGINNING = 64, 4096
"""Values up to which an image is taken for a label map, as photographs have more; and characters read of a file."""
BY_NAMES = {"image_folder", "masks", "coco"}
"""Formats whose layouts are usual names, so that content decides."""
SHIPPED_MASKS = {
    "voc2012": ("JPEGImages/", "SegmentationClass/", "ImageSets/Segmentation/train.txt"),
    "ade20k": ("images/training/", "annotations/training/"),
}
"""Datasets of `configs/datasets/` whose keys a folder with these entries has, but for classes in a `classes.txt`."""
OWN_NAMES = ("labelmap.txt", "class_names.txt")
"""Files of own classes, which are not read, beside which a folder has no shipped keys."""
USUAL = re.compile(
    "(?i:(ima?ge?s?|img_dir|JPEGImages|photos?) (masks?|label_?(map)?s?|annotations?|ann_dir|SegmentationClass(PNG)?))"
)
"""Usual names of folders of images and of their label maps."""
IMAGES = re.compile("(?i)(?<![a-z])(ima?ge?s?|img_dir|JPEGImages|photos?|rgb)(?![a-z])")
"""Usual names of folders of images."""
SPLIT_WORD = re.compile(f"(?i)(?<![a-z])({'|'.join(SPLIT_NAMES)})(?![a-z])")
COCO_JSON = "export as COCO JSON"
COCO_YAML = (
    "use a YAML file with `format: coco`, `train_annotations`, `train_images`, `val_annotations` and `val_images`, "
    "once they are divided"
)
COPY = "copy them (of Cityscapes: labelTrainIds) to masks/SPLIT/NAME.png, and their images to images/SPLIT/NAME.jpg"
LOSSLESS = (".png", ".bmp", ".gif", ".tif", ".tiff")
MIXED = 0.2
"""Least share of label maps among images that are not photographs alone."""
UNREAD = (
    ("YOLO labels are not read", r"\.txt", r"^\s*\d+( ([01]|[01]?\.\d+(e-\d+)?)){4,}\s*(\n|$)", COCO_JSON),
    ("YOLO labels are not read", r"\.ya?ml", r"(?m)^(nc|names)\s*:", COCO_JSON),
    ("labelme's files are not read", r"\.json", r'"shapes"\s*:', "convert them by its labelme2coco or labelme2voc"),
    ("Label Studio's files are not read", r"\.json", r'"(completed_by|original_width|\w+labels)"\s*:', COCO_JSON),
    ("CVAT's XML is not read", r"\.xml", r"<annotations>", "export as COCO 1.0"),
    ("PASCAL VOC's boxes are not read", r"\.xml", r"<annotation\b", COCO_JSON),
    (
        "COCO annotations of no known split",
        r"(default|result|[^/]*annotations?(.coco)?)\.json",
        '"categories"|"file_name"',
        COCO_YAML,
    ),
)
"""What is not read, the endings of its paths, a pattern of what it begins with, and what to do."""
BESIDE_IMAGES = r"^([^/]+/)?((labels|annotations?|anns?|obj_\w+_data)/([^/]+/)?)?[^/]*"
"""Where annotations lie: not in class folders, whose files tell no more."""


def recognise(folder: Path) -> tuple[str, dict[str, Any]]:
    """Return the format of a folder and its keys: by a sign, else by what larger trees and its files tell, else images.

    Raises:
        UsageError: it may have several, holds what is not read, has none and no images, or holds folders that have one.
    """
    kinds = _kinds(folder)
    if {*kinds} <= BY_NAMES and (read := _by_content(folder)):
        return read
    inner = folder if kinds else _unpacked(folder)
    children = [] if kinds else [inner / name for name in listed(inner, LISTED)[0]]
    datasets = {*filter(_by_content, children)} if len(children) <= CLASSES else set[Path]()
    if {*kinds} <= {"image_folder"} and not datasets:
        for place in dict.fromkeys((folder, inner)):
            _refuse_unread(place, *kinds)
        _refuse_label_maps(folder, *kinds)
    if datasets := datasets.union(filter(_kinds, children)):
        paths = " or ".join(sorted(map(os.path.relpath, datasets)))
        others = "a YAML file with `format: images`, which reads all images without labels"
        raise UsageError(f"{folder}: contains datasets; set --dataset to {paths}, or to {others}")
    if {*kinds} <= {"image_folder"}:
        if _is_imagenet(folder):
            return "imagenet", {}
        if read := _by_names_of_splits(folder):
            return read
    if not kinds and holds_images(folder):
        kinds = ["images"]
    if len(kinds) != 1:
        if not kinds:
            raise UsageError(f"{folder}: a folder in no known layout, without images; name one that holds images")
        raise _unsettled(folder, f"may be of format {' or '.join(kinds)}", kinds[0])
    return kinds[0], {}


def _is_imagenet(folder: Path) -> bool:
    """Return whether the images of `val/` lie without class folders, and a list has their classes."""
    sizes = [len(listed(folder / split)[0]) for split in SPLITS if (folder / split).is_dir()]
    found = (folder / "val").is_dir() and sizes in ([0], [IMAGENET_CLASSES, 0])
    return found and bool(imagenet_truths(folder / "val"))


def _by_names_of_splits(folder: Path) -> tuple[str, dict[str, Any]] | None:
    """Return format and keys where folders are named as splits in other letters or forms, such as Train/ and Testing/,
    or are classes of such names, with images directly in them; None where they are as usual.
    """
    names = sorted(listed(folder)[0])
    folder_of = {name.lower().removesuffix("ing"): name for name in names}
    keys = {key: folder_of[word] for key, words in SPLITS.items() for word in reversed(words) if word in folder_of}
    if len(keys) == 1 and not listed(folder / min(keys.values()))[0]:
        others = islice((name for name in names if not SPLIT_WORD.search(name)), LISTED)
        classes = [name for name in others if any(map(is_image, listed(folder / name, LISTED)[1]))]
        return ("images", {}) if len(classes) > 1 else None
    return None if {*keys.values()} <= {*SPLIT_NAMES} else ("image_folder", keys)


def _unpacked(folder: Path) -> Path:
    """Return a folder, or the one in it, at any depth, if it holds one that is no dataset, as unpacked archives do."""
    folders, files, _ = listed(folder, LISTED)
    inner = folder / folders[0] if len(folders) == 1 and not any(map(is_image, files)) else None
    return _unpacked(inner) if inner and not _kinds(inner) and not _by_content(inner) else folder


def _unsettled(folder: Path, what: str, kind: str, **keys: str) -> UsageError:
    lines = "".join(f"\n  {key}: {value}" for key, value in {"format": kind, "root": folder, **keys}.items())
    return UsageError(f"{folder}: {what}; name a YAML file that says:{lines}")


def _kinds(folder: Path) -> list[str]:
    """Return the formats that a folder may have by the names of its entries, besides `images`."""
    kinds, trees = list[str](), dict[frozenset[str], str]()
    for kind, layout in reversed(FORMATS.items()):  # image_folder replaces imagenet
        if any(any(folder.glob(sign)) for sign in layout.signs):
            kinds.insert(0, kind)
        if not {"hub", "train_images"} <= {*layout.keys}:
            trees |= {frozenset(tree): kind for tree in layout.trees if not missing_entries(folder, tree)}
    return kinds or sorted({kind for tree, kind in trees.items() if is_largest(tree, trees)})


def _by_content(folder: Path) -> tuple[str, dict[str, Any]] | None:
    """Return the format and the keys that the files of a folder tell. Raises UsageError where they are unusual."""
    for name, tree in SHIPPED_MASKS.items():
        if not missing_entries(folder, tree) and not any((folder / file).is_file() for file in OWN_NAMES):
            content = read_yaml(CONFIGS / "datasets" / f"{name}.yaml")
            keys = content.keys() - ({"classes", "first"} if (folder / "classes.txt").is_file() else set())
            return "masks", {key: content[key] for key in FORMATS["masks"].keys if key in keys}
    sample = _sample(folder)
    coco, masks = _coco_keys(folder, sample), _mask_keys(folder, sample)
    return ("coco", coco) if coco else ("masks", masks) if masks else None


def _sample(folder: Path) -> FolderSample:
    """Return entries of a folder, of its folders and of theirs, but of many images some, and of many folders, which are
    classes, nothing inside.
    """
    sample: FolderSample = {}
    places = [""]
    for _ in range(3):
        for place in islice(places, LISTED):
            folders, files, _ = listed(folder / place)
            images = islice(filter(is_image, files), SAMPLED)
            sample[place] = folders, [*images, *(name for name in files if not is_image(name))]
        few = [place for place in places if len(sample[place][0]) <= CLASSES]
        places = sorted(f"{place}{name}/" for place in few for name in sample[place][0])[:LISTED]
    return sample


def _files(sample: FolderSample) -> list[str]:
    """Return the paths of the files, by folder."""
    return [place + name for place, (_, names) in sample.items() for name in sorted(names)]


def _coco_keys(folder: Path, sample: FolderSample) -> dict[str, Any]:
    """Return the keys for annotations in COCO's format, and for the folders that hold their first images."""
    files = [file for file in _files(sample) if file.endswith(".json") and Path(file).name != BESIDE]
    files = sorted(files, key=lambda name: ("instances" in name, name))[: -LOOKED_AT - 1 : -1]
    keys: dict[str, Any] = {}
    for split, usual in SPLITS.items():
        word = re.compile(rf"(?<![a-z])({'|'.join(usual)})(?![a-z])", re.IGNORECASE)
        of_split = sorted(filter(word.search, files), key=partial(_annotations_rank, word, usual))
        twice = [file for file in of_split if "instances" in file]
        if len(twice) > 1:
            what = f"{' and '.join(sorted(twice))} may be the annotations of {split}"
            raise _unsettled(folder, what, "coco", **{f"{split}_annotations": twice[0], f"{split}_images": "..."})
        for file in of_split:
            if f"{split}_images" not in keys and (image := _image_in(folder / file)):
                places = [place.rstrip("/") or "." for place in sample if (folder / place / image).is_file()]
                if places or f"{split}_annotations" not in keys:
                    keys |= {f"{split}_annotations": file}
                if places:
                    keys[f"{split}_images"] = _images_of(folder, file, split, places, word)
    return keys and dict.fromkeys(f"{split}_annotations" for split in SPLITS) | keys


def _annotations_rank(word: re.Pattern[str], usual: Sequence[str], file: str) -> tuple[Any, ...]:
    """Return a key that sorts files of annotations of a split: the usual first."""
    found = word.search(file)
    return "instances" not in file, usual.index(found[1].lower()) if found else 0, len(file), file


def _images_of(folder: Path, file: str, split: str, places: list[str], word: re.Pattern[str]) -> str:
    """Return which of the folders with annotations' first image holds theirs. Raises UsageError if several may."""
    found = word.search(file)
    own = found[1].lower() if found else split

    def rank(place: str) -> tuple[bool, bool]:
        return own in re.split("[^a-z]+", place.lower()), IMAGES.search(place) is not None

    likely = [place for place in places if rank(place) == max(map(rank, places))]
    if len(likely) > 1:
        what = f"the images of {file} may be in {' or '.join(likely)}"
        raise _unsettled(folder, what, "coco", **{f"{split}_annotations": file, f"{split}_images": likely[0]})
    return likely[0]


def _image_in(file: Path) -> str:
    """Return the first image that a file with COCO's boxes names; empty for another file."""
    if not file.stat().st_size:
        raise UsageError(f"{file}: is empty; restore or remove it")
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        name = re.search(rb'"(?:file_name|coco_url)"\s*:\s*("(?:[^"\\]|\\.)+")', content)
        text = name[1].decode(errors="replace") if name and content.find(b'"bbox"') > 0 else '""'
    with unusable(f"{file}: {text} is no text of JSON", ValueError):
        return re.sub("^https?:.*/", "", json.loads(text, strict=False).replace("\\", "/"))


def _mask_keys(folder: Path, sample: FolderSample) -> dict[str, str]:
    """Return the keys for folders of images and of their label maps with usual names.

    Raises:
        UsageError: there are several.
    """
    forms: dict[str, list[list[str]]] = {}  # {"{}/images": the first images of each split, ...}
    for place, (_, names) in sample.items():
        form = re.sub(rf"(^|(?<=/))({'|'.join(SPLIT_NAMES)})/", "{}/", place)[:-1]
        if re.fullmatch(r"(\{\}/)?[^/{]+(/\{\})?", form) and (pictures := sorted(filter(is_image, names))):
            forms.setdefault(form, []).append([place + name for name in pictures[:LOOKED_AT]])
    usual = [pair for pair in permutations(forms, 2) if USUAL.fullmatch(re.sub("[/{}]", "", " ".join(pair)))]
    pairs = [(images, masks) for images, masks in usual if _share_names(folder, forms[images], chain(*forms[masks]))]
    if len(pairs) > 1:
        what = " or ".join(f"{masks}/ of {images}/" for images, masks in pairs)
        raise _unsettled(folder, f"label maps may be {what}", "masks", images="IMAGES", masks="MASKS")
    return dict(zip(("images", "masks"), pairs[0])) if pairs else {}


def _share_names(folder: Path, images: Iterable[list[str]], masks: Iterable[str]) -> bool:
    """Return whether a mask has the name of an image beside the first one of a split, but for the suffix."""
    pairs = product((folder / first for first, *_ in images), masks)
    return any(image.with_name(Path(mask).stem + image.suffix).is_file() for image, mask in pairs)


def _is_drawn(path: Path) -> tuple[bool, bool]:
    """Return whether an image is gray or has a palette, and whether it has few colors; of what cannot be read the one,
    and not the other."""
    with suppress(UserError, ValueError), open_image(str(path)) as file:  # corrupt, or of 16 bits
        return file.mode in ("1", "L", "P"), file.getcolors(COLORS) is not None
    return True, False


def _refuse_label_maps(folder: Path, kind: str = "images") -> None:
    """Raise UsageError if images in a folder and below it seem to be photographs and label maps."""
    images = list[str]()
    for below, _, files, _ in islice(folders_below(folder), LISTED):
        images += [below + name for name in files if is_image(name)]
    lossless = [name for name in images if name.lower().endswith(LOSSLESS)]
    looked_at = [lossless[index] for index in evenly_spaced(len(lossless), LOOKED_AT)]
    stems, maps = {name.rpartition("/")[2].rpartition(".")[0] for name in images}, list[str]()
    for name in looked_at:
        stem, (is_plain, has_few_colors) = Path(name).stem, _is_drawn(folder / name)
        if has_few_colors and (is_plain or any(stem[:end] in stems for end in range(1, len(stem)))):
            maps.append(name)
    share = len(maps) / max(1, len(looked_at)) * len(lossless) / max(1, len(images))
    lossy = next((name for name in images if not name.lower().endswith(LOSSLESS)), None)
    others = looked_at if lossy is None else [lossy, *looked_at]
    if share >= MIXED and any(_is_drawn(folder / name) == (False, False) for name in others):
        fault = f"among its images are label maps, as they have few colors ({shortened(maps, 3)})"
        fix = f"use a YAML file with `format: {kind}`, `root: {folder}`"
        raise UsageError(f"{folder}: {fault}; {COPY}; if they are images as the others, {fix}")


def _refuse_unread(folder: Path, kind: str = "images") -> None:
    """Raise UsageError that names the export to choose if a folder holds annotations that are not read."""
    sample = _sample(folder)
    paths = [*sample, *_files(sample)]
    for what, ending, content, fix in UNREAD:
        matches = filter(re.compile(f"{BESIDE_IMAGES}({ending})$", re.IGNORECASE).match, paths)
        for file in islice(matches, LOOKED_AT):
            if re.search(content, (folder / file).read_text(errors="replace")[:BEGINNING]):
                alone = f"`format: {kind}`, `root: {folder}`, which reads the images alone"
                raise UsageError(f"{folder}: {what} ({file}); {fix}, or a YAML file with {alone}")
