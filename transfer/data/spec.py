"""Datasets as facts: a name or a YAML file -> `DatasetSpec`, and where its files lie. Imports no torch.

A shipped set is `configs/datasets/NAME.yaml`; a user's own set in a known layout is one YAML file with the same keys.
"""

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields
from operator import itemgetter
from pathlib import Path
from typing import Any

from transfer.core.errors import MissingInput, UsageError, UserError, did_you_mean, shortened
from transfer.core.files import with_home
from transfer.core.grouped import grouped_by
from transfer.core.options import check_keys
from transfer.core.settings import CONFIGS, config_names, read_yaml
from transfer.core.user_code import is_in_file, locate
from transfer.data.layouts import FORMATS, UNDIVIDED, Archive, Format, Trees, is_largest, missing_entries, read_archives
from transfer.data.toy import bundled_folder

ADAPTER = "torchreid:"
KEY_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "root": (lambda value: isinstance(value, str | list), "a folder or a list of folders"),
    "counts": (lambda value: isinstance(value, dict), "a mapping"),
    "archives": (lambda value: isinstance(value, list), "a list of mappings"),
    "held_out": (lambda value: isinstance(value, float) and 0 < value < 1, "a share above 0 and below 1"),
}
"""What fits a key of a YAML file that is not text, and in words."""
TEXT = (lambda value: isinstance(value, str), "text (put it in quotes)")


class DatasetNotFound(MissingInput):
    """No folder holds the dataset in the expected layout."""


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """The facts of one dataset, as its YAML file states them."""

    name: str
    """Name in run folders and tables; by default that of the file."""
    format: str
    """Name of a format, or a custom reader as `path/to/file.py:NAME`; required."""
    root: tuple[str, ...] = ()
    """Folders to search: absolute, relative to the YAML file, or relative to the data folder."""
    version: str | None = None
    """Recorded, and shown in tables."""
    counts: dict[str, Any] | None = None
    """Expected numbers, such as `train: {images: 12936, identities: 751}`; a mismatch is an error."""
    license: str = ""
    """License of the images."""
    citation: str = ""
    """Citation for papers."""
    how: str = ""
    """How to get the dataset; printed if it is missing."""
    archives: tuple[Archive, ...] = ()
    """Files for `doctor data --fetch`: a list of `{url, sha256, bytes}`."""
    overlap: str = "refuse"
    """Whether test images among the training images are an error (`refuse`) or a note (`allow`)."""
    held_out: float = 0.0
    """Share of each class's training images for validation in pretraining and fine-tuning; `val` is then scored once,
    at the end. Of masks: share of the training images that serve as `val`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keys that only this format knows."""
    recognised: bool = False
    """Whether the user named a folder alone, and the format is what it looks like."""

    @property
    def reader(self) -> str:
        """A user's function that reads it, as `path/to/file.py:NAME`; empty for a format of the suite."""
        return self.format if is_in_file(self.format) else ""

    @property
    def reading(self) -> str:
        """How a folder that was named alone is read: its format and keys."""
        texts = {key: shortened(value, 3) if isinstance(value, list) else value for key, value in self.options.items()}
        keys = ", ".join(f"{key}: {'null' if text is None else text}" for key, text in texts.items())
        return f"read as format {self.format}" + (f" ({keys})" if keys else "")


def dataset_names() -> list[str]:
    """Return the sorted names of the shipped datasets."""
    return config_names("datasets")


def resolve_dataset(name: str) -> DatasetSpec:
    """Return the facts of a shipped name, of a YAML file's path, of a folder in a known layout, or of `torchreid:NAME`.

    Raises:
        UsageError: the name is unknown, the file is missing, or one of its keys is unknown or of the wrong type; or a
            folder is in no layout, or may be in several.
    """
    if name.startswith(ADAPTER):
        return DatasetSpec(name=name, format="torchreid", options={"set": name.removeprefix(ADAPTER)})
    path = Path(with_home(name))
    if path.suffix in (".yaml", ".yml"):
        return _from_yaml(path, folder=path.resolve().parent)
    if path.is_dir() and name not in dataset_names():
        from transfer.data.recognition import recognise  # which loads PIL

        folder = path.resolve()
        title = folder.name.lstrip(".") or "data"
        kind, keys = recognise(folder)
        return DatasetSpec(name=title, format=kind, root=(str(folder),), options=keys, recognised=True)
    if name not in dataset_names():
        if path.is_file():
            raise UsageError(f"dataset {name}: a file; name the folder of the data (unpack archives), or a YAML file")
        near = did_you_mean(name, dataset_names()) or ";"
        others = f"`python -m transfer --list datasets`, a YAML file, a folder, or {ADAPTER}NAME"
        raise UsageError(f"unknown dataset {name!r}{near} use a name of {others}")
    return _from_yaml(CONFIGS / "datasets" / f"{name}.yaml", folder=None)


def _from_yaml(path: Path, *, folder: Path | None) -> DatasetSpec:
    """Read a YAML file; a relative `root` in a user's file is searched for in `folder` before the data folder."""
    content = read_yaml(path)
    kind = str(content.get("format"))
    users = is_in_file(kind)
    if users:
        kind = locate(kind, folder)
    elif kind not in FORMATS:
        known = f"known: {', '.join(FORMATS)}; or path/to/file.py:NAME"
        raise UsageError(f"{path}: `format` is {kind!r}{did_you_mean(kind, FORMATS)}\n{known}")
    layout = Format() if users else FORMATS[kind]
    common = {entry.name for entry in fields(DatasetSpec)} - {"options", "recognised"}
    if not users:  # a user's function says what it takes when it is called
        check_keys(content, tuple(sorted(common | {*layout.keys})), str(path))
    facts: dict[str, Any] = {"name": path.stem}
    options = dict[str, Any]()
    for key, value in content.items():
        fits, words = KEY_TYPES.get(key, TEXT)
        if key not in common:
            options[key] = value
        elif value is not None and not fits(value):
            raise UsageError(f"{path}: `{key}` is {value!r}; it must be {words}")
        elif value is not None:
            facts[key] = value
    facts["format"] = kind
    if "held_out" in facts and kind in UNDIVIDED:
        takers = ", ".join(name for name in FORMATS if name not in UNDIVIDED)
        raise UsageError(f"{path}: format {kind} does not take `held_out`; remove it; it is for {takers}")
    if not re.fullmatch(r"[^./\\][^/\\]*", facts["name"]):
        rule = "folders are named after it: no slash, nor a dot in front"
        raise UsageError(f"{path}: `name` is {facts['name']!r}; {rule}")
    facts["archives"] = read_archives(facts.get("archives", []), path)
    root = facts.get("root", [])
    entries = [with_home(entry) for entry in ([root] if isinstance(root, str) else root)]
    facts["root"] = tuple(dict.fromkeys([str(folder / entry) for entry in entries if folder] + entries))
    if layout.trees and not facts["root"] and "generator" not in options:
        raise UsageError(f"{path}: `root` is missing; it names the folder that holds the images")
    return DatasetSpec(**facts, options=options)


def text_option(spec: DatasetSpec, key: str) -> str | None:
    """Return the value of a key of the format, with the home folder for `~`; None when it is not given.

    Raises:
        UsageError: it is not text.
    """
    value = spec.options.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{spec.name}: `{key}` is {value!r}; it must be text (put it in quotes)")
    return value and with_home(value)


def choice_option(spec: DatasetSpec, key: str, *choices: str) -> str | None:
    """Return the value of a key, or None. Raises UsageError for another than the choices."""
    if (value := spec.options.get(key)) not in (None, *choices):
        raise UsageError(f"{spec.name}: `{key}` is {value!r}; it must be {' or '.join(choices)}")
    return value


def check_counts(spec: DatasetSpec, counted: dict[str, Any], *, absent: Collection[str] = ()) -> None:
    """Compare every number in `spec.counts` with what was found.

    Args:
        spec: the facts.
        found: {part: {unit: number} or number}.
        absent: parts that are not there, and so are not compared.

    Raises:
        UsageError: `counts` has an entry that is unknown.
        MissingInput: a number is another.
    """
    have, expected = flat_counts(counted), flat_counts(spec.counts or {})
    for key in expected.keys() - have.keys():
        if key.split()[0] not in absent:
            raise UsageError(f"{spec.name}: `counts` has an unknown entry {key!r}{did_you_mean(key, have)}")
    wrong = {key: number for key, number in expected.items() if have.get(key, number) != number}
    if wrong:
        lines = [f"  {key}: expected {number}, found {have[key]}" for key, number in wrong.items()]
        hint = "extract the archive again; if it is another variant, describe it in a YAML file with its own `counts`"
        if "generator" in spec.options:
            hint = "delete its folder in the cache folder to generate it again"
        raise MissingInput(f"{spec.name}: the dataset is incomplete:\n" + "\n".join([*lines, hint]))


def flat_counts(counts: dict[str, Any]) -> dict[str, Any]:
    """Flatten {"train": {"images": 5}, "junk": 1} to {"train images": 5, "junk": 1}."""
    flat: dict[str, Any] = {}
    for key, value in counts.items():
        units = value if isinstance(value, dict) else {"": value}
        flat |= {f"{key} {unit}".strip(): number for unit, number in units.items()}
    return flat


def data_folder(data: Path | None) -> Path | None:
    """Return `--data` if given, else `$TRANSFER_DATA`, else None."""
    folder = data or os.environ.get("TRANSFER_DATA")
    return Path(with_home(str(folder))) if folder else None


def find_root(spec: DatasetSpec, data: Path | None, trees: Trees | None = None) -> Path:
    """Return the folder that holds the dataset; that of a bundled one, which is drawn on first use.

    Args:
        spec: its facts.
        data: the `--data` option; None: `$TRANSFER_DATA`. Either the folder that holds one of the
            spec's `root` folders, or the dataset's folder itself.
        trees: of the layout, see `Format`; None: those of the spec's format.

    Raises:
        DatasetNotFound: nowhere found, or incomplete.
        UserError: found in two places.
    """
    if "generator" in spec.options and not spec.reader:
        return bundled_folder(spec.options["generator"])
    if not trees:  # an empty one if the YAML file names the parts of the layout itself
        named_parts = {"train", "val", "classes"} & spec.options.keys()
        trees = ((),) if named_parts or spec.reader else FORMATS[spec.format].trees or ((),)
    roots, below = candidate_folders(spec, data, itself=trees != ((),) or not spec.root)
    folder = choose_folder(spec, roots, below, lambda path: _reason_not_held(path, trees) is None)
    if folder is None:
        raise DatasetNotFound(_not_found_message(spec, data_folder(data), [*roots, *below], trees))
    return folder


def candidate_folders(spec: DatasetSpec, data: Path | None, *, itself: bool) -> tuple[list[Path], list[Path]]:
    """Return the absolute folders in `root` (and maybe the data folder), and the relative ones below the data folder.

    Args:
        itself: whether the data folder may be the dataset itself. It is not, where there is no
            tree to recognise and `root` names folders.
    """
    base = data_folder(data)
    roots = [Path(root) for root in spec.root if Path(root).is_absolute()]
    below = [base / root for root in spec.root if not Path(root).is_absolute()] if base else []
    return ([*roots, base] if base and itself else roots), below


def choose_folder(spec: DatasetSpec, roots: list[Path], below: list[Path], fits: Callable[[Path], bool]) -> Path | None:
    """Return the first of `roots` that fits, else the only one of `below`. Raises UserError if several fit."""
    for path in roots:
        if fits(path):
            return path.resolve()
    matches = sorted({path.resolve() for path in below if fits(path)})
    if len(matches) > 1:
        listed = "\n".join(f"  {path}" for path in matches)
        raise UserError(f"{spec.name}: found in more than one place:\n{listed}\nchoose one: `--data {matches[0]}`")
    return matches[0] if matches else None


def _reason_not_held(path: Path, trees: Trees) -> str | None:
    """Return why `path` does not hold the layout (by the alternative that comes nearest); None when it does."""
    if not path.is_dir():
        return "no such folder"
    lacking = [(len(lacks := missing_entries(path, tree)) / max(len(tree), 1), lacks) for tree in trees]
    _, lacks = min(lacking, key=itemgetter(0))  # the first of equally near ones is the usual one
    return f"missing, empty or unreadable: {', '.join(lacks)}" if lacks else None


def _not_found_message(spec: DatasetSpec, base: Path | None, looked: list[Path], trees: Trees) -> str:
    if spec.recognised:
        fix = f"`format: {spec.format}`, `root: {looked[0]}` and what fits of {', '.join(FORMATS[spec.format].keys)}"
        return f"{spec.name}: {looked[0]}: {_reason_not_held(looked[0], trees)}; add it, or use a YAML file with {fix}"
    lines = [f"{spec.name}: the dataset was not found" + ("" if base else ": no data folder is set")]
    reasons = grouped_by(dict.fromkeys(looked), lambda path: _reason_not_held(path, trees))
    lines += [f"  looked at {', '.join(map(str, paths))}: {reason}" for reason, paths in reasons.items()]
    folder = next((root for root in spec.root if not Path(root).is_absolute()), "DATASET")
    wanted = [tree for tree in filter(None, trees) if is_largest(tree, trees)]
    held = f"; {folder}/ in it holds " + ", or ".join(", ".join(tree) for tree in wanted) if wanted else ""
    how = f"; to get it: {spec.how}" if spec.how else ""
    return "\n".join([*lines, f"  set the data folder with `--data FOLDER` or TRANSFER_DATA=FOLDER{held}{how}"])


def manifest_digest(files: Iterable[tuple[str, int, Any]]) -> str:
    """Return the sha256 (hex) over (relative name, size in bytes, sha256 of the content) of every file.

    The sha256 is of bytes, or an array of uint8.

    The order in which they come does not count, nor does the folder: a copy has the digest of its original.
    """
    lines = sorted(f"{name}\0{size}\0{bytes(content).hex()}\n".encode() for name, size, content in files)
    return hashlib.sha256(b"".join(lines)).hexdigest()
