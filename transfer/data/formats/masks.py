"""Images with a mask each, the class of every pixel: ADE20k, VOC 2012 and plain folders, by keys of the YAML.

images, masks   folders; `{}` stands for the name of the split (images/{}, masks/{}); without it all is to train on
train, val      names of the splits
lists           list of the names of a split's images, without suffix, as ImageSets/{}.txt; else all in the folder
classes         names, or their number; else the names in `values`; else `classes.txt` has a name a line
names           table with a column "Name" of as many names, taken where it lies in the folder of the dataset
first           value of the first class in the masks; those below are ignored (0)
values          the class, by its number from 0 or its name, of each value in the masks, in place of `first`
void            values that are ignored ([255], unless `values` has it)
exif            whether masks belong to images as turned by their EXIF orientation (apply), or as stored (ignore)

Masks are images of one channel of 8 bits, or with a palette, of the size of their image. What they say together is
checked at last: contradictions are errors that name the key, assumptions are notes. Shapes: C classes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from transfer.core.errors import UsageError, UserError, shortened
from transfer.core.files import read_lines
from transfer.core.grouped import repeated
from transfer.data.formats.folders import FoundLayout, choose_splits
from transfer.data.layouts import missing_entries, wanted_splits
from transfer.data.listing import beside, passed_over, scan_images
from transfer.data.loading.read_image import open_image
from transfer.data.spec import DatasetSpec, choice_option, find_root, text_option
from transfer.data.splits.split import FileSplit, Look, Split

Scans = dict[str, tuple[list[str], list[str], list[str]]]
"""What `scan_images` finds in folders."""
EXIF = ("exif", "apply", "ignore")
IGNORED, NO_CLASS = 255, 254
"""Entries of `MaskSplit.table` besides labels."""
LOSSY = ("JPEG", "MPO", "JPEG2000")
MAX_GRAY = {"L;2": 3, "L;4": 15}
"""The largest value of gray of few bits, by PIL's name, which scales it to 255."""
IN_JPEG = "in JPEG, which changes values at edges (export them again as PNG: a converted JPEG keeps the damage)"
IN_COLORS = "of mode {} (a mask has one channel of 8 bits or a palette: export the class of each pixel, not its color)"
TURNED = "of images with EXIF orientation {} (set `exif: apply` if they are of the turned ones, else `exif: ignore`)"
FITS = "of the size for `exif: {}` alone, as their images have an EXIF orientation"
RECOLORED = (
    "with another color for {0} in their palette than {1}, so that numbers may mean other classes there (if not, "
    "set `values`)"
)
OTHER_SIZE = "of {} x {} pixels, their images of {} x {} (save each mask in the size of its image)"


@dataclass(eq=False)
class MaskSplit(FileSplit):
    """A split of image files, each with a mask; `labels` are not used."""

    OF_IMAGES = ("masks",)
    COUNTED = "pixels"

    masks: FileSplit
    table: NDArray[Any]
    """uint8 [256]: the label of each value in a mask, 0..C-1, or `IGNORED`, or `NO_CLASS`."""
    values: NDArray[Any] = field(default_factory=partial(np.zeros, 256, np.int64), kw_only=True)
    """Pixels of each value in the masks that were checked, int64 [256]."""
    faulty: dict[str, list[int]] = field(default_factory=dict, kw_only=True)
    """Indices of these masks by what they are: `IN_JPEG`, and so on."""

    def mask(self, index: int) -> Image.Image:
        """Return the labels of an image's pixels as an image of one channel. Raises UserError."""
        with open_image(self.masks.path(index)) as file:
            return Image.fromarray(self.table[_values(file)])

    def look(self, index: int) -> Look:
        """Return what is said of the image, what its mask is (see `faulty`), and each value in it with the number of
        its pixels and its color in the palette, [] without one.

        Raises:
            UserError: the image or its mask cannot be read.
        """
        image_facts = super().look(index)
        orientation, *stored_size = image_facts[:3]
        with open_image(self.masks.path(index)) as file:
            if file.format in LOSSY or file.info.get("compression") == "jpeg":
                return [*image_facts, [IN_JPEG], []]
            if file.mode not in ("1", "L", "P"):
                return [*image_facts, [IN_COLORS.format(file.mode)], []]
            mask = Image.fromarray(_values(file))
            palette = bytes(file.getpalette() or ())
        kinds = [TURNED.format(orientation)] if orientation > 1 else []
        turned_size = stored_size[::-1] if orientation > 4 else stored_size
        if [*mask.size] not in (stored_size, turned_size):
            kinds.append(OTHER_SIZE.format(*mask.size, *stored_size))
        elif stored_size != turned_size:
            kinds.append(FITS.format("apply" if [*mask.size] == turned_size else "ignore"))
        counts = [(value, pixels) for value, pixels in enumerate(mask.histogram()) if pixels]
        histogram = [[value, pixels, [*palette[3 * value :][:3]]] for value, pixels in counts]
        return [*image_facts, kinds, histogram]

    def mask_values(self, index: int) -> list[int]:
        """Return the values in the mask of an image."""
        return [value for value, *_ in self.look(index)[-1]]

    def keep(self, looks: Sequence[Look]) -> None:
        """Set `values` and `faulty`."""
        self.values, self.faulty = np.zeros(256, np.int64), {}
        palette: dict[int, tuple[list[int], int]] = {}
        for index, (*_, kinds, histogram) in enumerate(looks):
            for kind in kinds:
                self.faulty.setdefault(kind, []).append(index)
            for value, pixels, color in histogram:
                self.values[value] += pixels
                first_color, first_index = palette.setdefault(value, (color, index)) if color else (color, index)
                if color != first_color:
                    self.faulty.setdefault(RECOLORED.format(value, self.masks.path(first_index)), []).append(index)

    def of_labels(self) -> NDArray[Any]:
        """Return the pixels of each class, int64 [C], in all masks that were checked."""
        return np.bincount(self.table, self.values, 256).astype(np.int64)[self.present()]

    def present(self) -> NDArray[Any]:
        """Return all labels; `of_labels` says which of them occur."""
        return np.unique(self.table[self.table < NO_CLASS])

    def parts(self) -> dict[str, FileSplit]:
        """Return the masks."""
        return {"masks": self.masks}

    def stamps(self, indices: Iterable[int]) -> list[str]:
        """Return path, size and time of each image and its mask, and the form of what `look` gives."""
        rows = [*indices]
        return list(map("\0values 3\0".join, zip(super().stamps(rows), self.masks.stamps(rows))))


def _values(file: ImageFile.ImageFile) -> NDArray[Any]:
    """Return the values uint8 [H, W] as they are stored: PIL scales gray of fewer bits than 8."""
    arguments: Any = file.tile[0][3] if file.tile else ""
    rawmode, *others = arguments if arguments and isinstance(arguments, tuple) else (arguments,)
    max_gray = MAX_GRAY.get(rawmode) or (others[0] if others and (file.format, file.mode) == ("PPM", "L") else 255)
    values = np.array(file, np.uint8)
    return values if max_gray == 255 else ((values * np.int64(max_gray) + 127) // 255).astype(np.uint8)


def masks(spec: DatasetSpec, data: Path | None) -> FoundLayout:
    """Read images and masks; see the keys above. Raises UserError for images without a mask, or for wrong keys."""
    path_patterns = [f"{text_option(spec, kind) or f'{kind}/{{}}'}/" for kind in ("images", "masks")]
    path_patterns += [lists] if (lists := text_option(spec, "lists")) else []

    def entries(name: str) -> tuple[str, ...]:
        return tuple(pattern.format(name) for pattern in path_patterns)

    wanted_names = wanted_splits(spec.options)
    wanted_names = wanted_names if "{}" in "".join(path_patterns) else wanted_names[:1]  # all images lie in one folder
    root = find_root(spec, data, tuple(map(entries, wanted_names)))
    entries_by_split = {name: entries(name) for name in wanted_names if not missing_entries(root, entries(name))}
    split_pattern = next((pattern for pattern in path_patterns if "{}" in pattern), path_patterns[0])
    layout, notes = choose_splits(spec, root, entries_by_split.get, lambda *_: "", form=split_pattern)
    if spec.held_out and "val" in layout:
        raise UserError(f"{spec.name}: {layout['val'][0]} is there, and `held_out` makes a val split; remove one")
    if "val" not in layout:
        held_out_remark = f"{spec.held_out:g} of the images are held out as the val split" if spec.held_out else ""
        notes.append(held_out_remark or "`held_out: 0.2` in its YAML takes a fifth of the images for it")
    names, upright = _class_names(spec, root), choice_option(spec, *EXIF) == "apply"
    table, reading_id = _table(spec, names), int(spec.options.get("first", 0))
    if upright or "values" in spec.options or spec.options.get("void", [IGNORED]) != [IGNORED]:
        reading_id = int.from_bytes(hashlib.sha256(table.tobytes() + bytes([upright])).digest()[:7])
    folders = chain.from_iterable(places[:2] for places in layout.values())
    scans = {place: scan_images(root / place) for place in folders}
    splits = {
        name: _read(name, root, places, scans, reading_id, table=table, upright=upright)
        for name, places in layout.items()
    }
    notes += _skipped(root, scans, [*splits.values()], "in no list that is read" if lists else "without an image")
    names_files = [name for name in ("classes.txt", text_option(spec, "names")) if name]
    notes += beside(root, [*names_files, *chain(*entries_by_split.values())])
    return FoundLayout(classes=names, train=splits.get("train"), val=splits.get("val"), notes=notes)


def _skipped(root: Path, scans: Scans, splits: Sequence[MaskSplit], reason: str) -> list[str]:
    """Return a line for each reason why entries of the folders of images and masks are skipped."""
    notes, file_splits = list[str](), [*splits, *(split.masks for split in splits)]
    for place, (images, others, _) in scans.items():
        read_names = [part.names for part in file_splits if part.folder == root / place]
        unread_names = sorted({*images}.difference(*read_names))
        lines = [f"{len(unread_names)} skipped, {reason}: {shortened(unread_names, 3)}"] if unread_names else []
        notes += [f"{place}: {line}" for line in lines + passed_over(others)]
    return notes


def _class_names(spec: DatasetSpec, root: Path) -> tuple[str, ...]:
    """Return the names of the classes, which are numbers from `first` where only their number is known."""
    classes, listed, first = spec.options.get("classes"), root / "classes.txt", int(spec.options.get("first", 0))
    meanings = spec.options.get("values")
    if classes is None and isinstance(meanings, dict) and all(isinstance(name, str) for name in meanings.values()):
        classes = list(dict.fromkeys(meanings.values()))
    if classes is None and listed.is_file():
        classes = read_lines(listed)
    if isinstance(classes, int) and (table := root / (text_option(spec, "names") or "")).is_file():
        heading, *rows = (line.rpartition("\t")[2].strip() for line in read_lines(table))
        if (heading, len(rows)) != ("Name", classes):
            raise UserError(f"{table}: not a table of {classes} classes whose last column is `Name`; restore it")
        classes = rows
    if isinstance(classes, int):
        classes = range(first, first + classes)
    names = tuple(map(str, classes)) if isinstance(classes, list | range) else ()
    if not 1 < len({*names}) == len(names) <= NO_CLASS - first:
        fix = f"between 2 and {NO_CLASS - first} different names, or their number; or write {listed}, a name a line"
        raise UserError(f"{spec.name}: `classes` are {shortened(names)}; set in its YAML {fix}")
    return names


def _table(spec: DatasetSpec, names: Sequence[str]) -> NDArray[Any]:
    """Return `MaskSplit.table`. Raises UsageError for wrong keys."""
    first, labels_of = int(spec.options.get("first", 0)), {str(label): label for label in range(len(names))}
    values = spec.options.get("values", {first + label: name for label, name in enumerate(names)})
    unclear = "values" in spec.options and any(labels_of.get(name, label) != label for label, name in enumerate(names))
    labels_of |= dict(zip(names, range(len(names))))
    labels = [labels_of.get(str(name), -1) for name in values.values()] if isinstance(values, dict) else []
    if {*labels} != {*range(len(names))} or not {*values} <= {*range(256)} or (first and "values" in spec.options):
        fix = "map values of masks, 0 to 255, to all classes by name or number from 0, without `first`"
        raise UsageError(f"{spec.name}: `values` is {values!r:.80}; it must {fix}, such as {{0: 0, 255: 1}}")
    if unclear:
        raise UsageError(f"{spec.name}: `values` may mean names or numbers: classes are named by numbers of others")
    void = spec.options.get("void", [] if IGNORED in values else [IGNORED])
    if not isinstance(void, list) or any(value not in range(256) or value in values for value in void):
        raise UsageError(f"{spec.name}: `void` is {void!r:.80}; it must list values, 0 to 255, that have no class")
    table = np.full(256, NO_CLASS, np.uint8)
    table[[*range(first), *void]] = IGNORED
    table[[*values]] = np.array(labels)
    return table


def _read(name: str, root: Path, places: tuple[str, ...], scans: Scans, reading_id: int, **keys: Any) -> MaskSplit:
    """Return a split from folders of images and masks, and perhaps a list. Raises UserError.

    The labels of the masks are the number that says how they are read, for the digest.
    """
    image_files, mask_files = (_by_stem(scans[place][0]) for place in places[:2])
    listed = read_lines(root / places[2]) if places[2:] else [*image_files]
    stems = [line if line in image_files else line.rpartition(".")[0] or line for line in listed]
    if repeated_stems := repeated(stems):
        raise UserError(f"{root / places[2]}: names images twice: {shortened(repeated_stems)}; remove the lines")
    if not stems:
        raise UserError(f"{root / places[-1 if places[2:] else 0]}: no {name} images; add some, or remove it")
    for place, file_by_stem in zip(places, (image_files, mask_files)):
        if missing := [stem for stem in stems if stem not in file_by_stem]:
            fault = f"{len(missing)} of {len(stems)} {name} images have no file here: {shortened(missing)}"
            raise UserError(f"{root / place}: {fault}; add it, or remove the image from the split")
        hidden_by_stem = _by_stem([file for file in scans[place][0] if file_by_stem[file.rpartition(".")[0]] != file])
        if namesakes := [
            f"{hidden_by_stem[stem]} and {file_by_stem[stem]}" for stem in stems if stem in hidden_by_stem
        ]:
            raise UserError(f"{root / place}: {shortened(namesakes, 3)} share a name; remove or rename all but one")
    masks = FileSplit.of(name, root / places[1], [mask_files[stem] for stem in stems], np.full(len(stems), reading_id))
    return MaskSplit.of(name, root / places[0], [image_files[stem] for stem in stems], masks=masks, **keys)


def _by_stem(files: Sequence[str]) -> dict[str, str]:
    """Return the files by their names without suffix, of several the last."""
    return {file.rpartition(".")[0]: file for file in files}


def check_masks(spec: DatasetSpec, classes: Sequence[str], splits: Mapping[str, Split], *, chosen: bool) -> list[str]:
    """Return notes on the masks of splits that were checked.

    Args:
        spec: with the keys.
        classes: C names.
        splits: of which those without masks are passed over.
        chosen: whether images were chosen, so that training may lack classes.

    Raises:
        UserError: masks are lossy or in colors, images may be turned or not, values have no class, or an ignored value
            may be that of a class without training pixels.
    """
    mask_splits, notes = {name: split for name, split in splits.items() if isinstance(split, MaskSplit)}, list[str]()
    pixels = {name: split.of_labels() for name, split in mask_splits.items()}
    train_pixels = [pixels[name] for name in (("train", "val") if spec.held_out else ("train",)) if name in pixels]
    fault = _unusable(spec, [*mask_splits.values()]) or _without_class(classes, [*mask_splits.values()])
    if not fault and train_pixels and not chosen:
        fault = _without_pixels(classes, mask_splits["train"], np.sum(train_pixels, 0))
    if not fault and "val" in mask_splits and mask_splits["val"].values[IGNORED]:
        fault = _without_pixels(classes, mask_splits["val"], pixels["val"])
    if fault:
        keys = {"format": "masks", "root": spec.root[0], **spec.options}
        lines = "".join(f"\n  {key}: {json.dumps(value)}" for key, value in keys.items())
        where = f"; keys are set in a YAML file with these:{lines}" if spec.recognised else ""
        raise UserError(f"{spec.name}: {fault}{where}")
    for name, split in mask_splits.items():
        if absent := [classes[label] for label in np.flatnonzero(pixels[name] == 0)]:
            is_scored = any(part.of_labels()[pixels[name] == 0].any() for part in mask_splits.values())
            remark = ", which mIoU leaves out" if name == "val" else ", though they are scored" if is_scored else ""
            notes.append(f"{name}: no pixel of {len(absent)} of {len(classes)} classes{remark}: {shortened(absent, 3)}")
        below_first = split.values[: spec.options.get("first", 0)].sum()
        if below_first and spec.recognised:
            share = below_first / split.values.sum()
            notes.append(f"{name}: {share:.1%} of the pixels are 0, which is ignored (key `first`)")
        if split.values[IGNORED] and split.table[IGNORED] == IGNORED and "void" not in spec.options:
            share = split.values[IGNORED] / split.values.sum()
            notes.append(f"{name}: {share:.1%} of the pixels are 255, which is ignored (key `void`)")
    return notes


def _unusable(spec: DatasetSpec, splits: Sequence[MaskSplit]) -> str:
    """Return why masks cannot be used with the keys `exif` and `values` as they are; empty if they can."""
    paths_by_kind, exif, total = dict[str, list[str]](), choice_option(spec, *EXIF), sum(map(len, splits))
    keys_given = [] if exif is None else [f"exif: {exif}"]
    if "values" in spec.options:
        keys_given.append("set `values`")
    for split in splits:
        for kind, indices in split.faulty.items():
            if not any(key in kind for key in keys_given):
                paths_by_kind.setdefault(kind, []).extend(map(split.masks.path, indices))
    faults = [
        f"{len(paths)} of {total} masks are {kind}: {shortened(paths, 3)}" for kind, paths in paths_by_kind.items()
    ]
    return "; ".join(sorted(faults)[:3])


def _without_class(classes: Sequence[str], splits: Sequence[MaskSplit]) -> str:
    """Return which values have no class; empty if all have."""
    values = np.flatnonzero(np.sum([split.values for split in splits], axis=0)).tolist()
    if not (unknown := [value for value in values if splits[0].table[value] == NO_CLASS]):
        return ""
    masks = ((split, index) for split in splits for index in range(len(split)))
    path = next(split.masks.path(index) for split, index in masks if unknown[0] in split.mask_values(index))
    by_one = "set `first: 1` if classes begin at 1, " if unknown == [len(classes)] else ""
    fault = f"{len(unknown)} of {len(values)} values in the masks have none of the {len(classes)} classes"
    fix = f"{by_one}correct `classes`, map them by `values` or ignore them by `void`"
    instances = "if they are numbers of instances, export the class of each pixel instead"
    return f"{fault}: {shortened(unknown, 10)} (the first in {path}); {fix}; {instances}"


def _without_pixels(classes: Sequence[str], split: MaskSplit, pixels: NDArray[Any]) -> str:
    """Return which classes have no pixel in a split, and the values that occur; empty if these are no others' values:
    at least two classes occur, and there are not as many values as classes.
    """
    values = np.flatnonzero(split.values).tolist()
    absent = [classes[label] for label in np.flatnonzero(pixels == 0)]
    if not absent or (np.count_nonzero(pixels) > 1 and len(values) != len(classes)):
        return ""
    ignored = shortened([value for value in values if split.table[value] == IGNORED])
    pairs = ", ".join(map("{}: {}".format, values, classes)) if len(values) == len(classes) else "value: class"
    fault = f"{len(absent)} of {len(classes)} classes have no pixel in the {split.name} masks: {shortened(absent)}"
    fix = f"if these are the classes, set `values: {{{pairs}}}`, else remove the classes from `classes`"
    return f"{fault}; they hold {shortened(values, 10)} (ignored: {ignored}); {fix}"
