"""Data sets as facts: a name or a YAML file -> `DatasetSpec`, and where its files lie. Imports no torch.

A shipped set is `configs/datasets/NAME.yaml`; a user's own set in a known layout is one YAML file with the same keys.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from backbones.errors import UserError, WrongWords, nearest
from backbones.settings import CONFIGS, config_names, read_yaml

ADAPTER = "torchreid:"


@dataclass(frozen=True)
class Format:
    """What a layout looks like on disk, and which YAML keys beyond the common ones it understands.

    `trees` are alternatives: a folder has the layout when it holds every entry of one of them ("/" marks folders).
    Without trees any folder will do, and the reader of the format judges it.
    """

    trees: tuple[tuple[str, ...], ...] = ()
    keys: tuple[str, ...] = ()


MSMT17_LISTS = ("list_train.txt", "list_query.txt", "list_gallery.txt")
FORMATS = {
    "market1501": Format((("bounding_box_train/", "query/", "bounding_box_test/"),), ("generator",)),
    "msmt17": Format(
        (("train/", "test/", *MSMT17_LISTS), ("mask_train_v2/", "mask_test_v2/", *MSMT17_LISTS)), ("generator",)
    ),
    "torchreid": Format(keys=("set",)),
    "image_folder": Format((("train/",), ("val/",)), ("train", "val", "generator")),
    "imagenet": Format(
        (("train/",), ("val/",), ("ILSVRC/Data/CLS-LOC/train/",), ("ILSVRC/Data/CLS-LOC/val/",)), ("classes",)
    ),
    "imagenet21k": Format((("n01440764/",),), ("classes",)),
    "parquet": Format(keys=("train", "val", "image", "label")),
    "hf": Format(keys=("hub", "revision", "config", "train", "val", "image", "label")),
}


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """The facts of one data set, as its YAML file states them."""

    name: str
    format: str
    """A key of `FORMATS`."""
    root: tuple[str, ...] = ()
    """Folders it may lie in: absolute, or relative to the data folder."""
    version: str | None = None
    counts: dict[str, Any] | None = None
    """What a complete copy holds; the reader of the format checks it."""
    license: str = ""
    citation: str = ""
    how: str = ""
    """Where to ask for it."""
    options: dict[str, Any] = field(default_factory=dict)
    """Keys that only this format knows."""


def dataset_names() -> list[str]:
    """Names of the shipped data sets, sorted."""
    return config_names("datasets")


def resolve_dataset(name: str) -> DatasetSpec:
    """A shipped name, a path to a YAML file, or `torchreid:NAME` -> its facts.

    Raises:
        WrongWords: the name is unknown, the file is missing, or one of its keys is unknown or of the wrong type.
    """
    if name.startswith(ADAPTER):
        return DatasetSpec(name=name, format="torchreid", options={"set": name.removeprefix(ADAPTER)})
    path = Path(name).expanduser()
    if path.suffix in (".yaml", ".yml"):
        return _from_yaml(path, folder=path.resolve().parent)
    if name not in dataset_names():
        raise WrongWords(
            f"unknown data set {name!r}{nearest(name, dataset_names())}\n"
            f"known: {', '.join(dataset_names())}; or a YAML file, or {ADAPTER}NAME"
        )
    return _from_yaml(CONFIGS / "datasets" / f"{name}.yaml", folder=None)


def _from_yaml(path: Path, *, folder: Path | None) -> DatasetSpec:
    """`folder`: where a relative `root` is looked for before the data folder (a user's file; None for shipped ones)."""
    content = read_yaml(path)
    kind = content.get("format")
    if not isinstance(kind, str) or kind not in FORMATS:
        raise WrongWords(f"{path}: `format` is {kind!r}{nearest(str(kind), FORMATS)}\nknown: {', '.join(FORMATS)}")
    common = {entry.name for entry in fields(DatasetSpec)} - {"options"}
    known = common | set(FORMATS[kind].keys)
    for key in content:
        if key not in known:
            raise WrongWords(f"{path}: unknown key {key!r}{nearest(key, known)}\nknown: {', '.join(sorted(known))}")
    facts = {key: value for key, value in content.items() if key in common and value is not None}
    for key in facts.keys() - {"root", "counts"}:
        if not isinstance(facts[key], str):
            raise WrongWords(f"{path}: `{key}` is {facts[key]!r}; it must be text (put it in quotes)")
    if not isinstance(facts.get("counts", {}), dict):
        raise WrongWords(f"{path}: `counts` is {facts['counts']!r}; it must be a mapping")
    options = {key: value for key, value in content.items() if key not in common}
    facts["root"] = _roots(facts.get("root", []), path, folder)
    if FORMATS[kind].trees and not facts["root"] and "generator" not in options:
        raise WrongWords(f"{path}: `root` is missing; it names the folder that holds the images")
    return DatasetSpec(**{"name": path.stem, **facts, "options": options})


def _roots(value: object, path: Path, folder: Path | None) -> tuple[str, ...]:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise WrongWords(f"{path}: `root` is {value!r}; it must be a folder or a list of folders")
    near = [str(folder / Path(entry).expanduser()) for entry in entries] if folder else []
    return tuple(dict.fromkeys(near + [str(Path(entry).expanduser()) for entry in entries]))


def check_format(spec: DatasetSpec, formats: Iterable[str], purpose: str) -> None:
    """Raises WrongWords that names the sets which serve, when the format of `spec` is not one of `formats`."""
    formats = list(formats)
    if spec.format in formats:
        return
    fitting = [name for name in dataset_names() if resolve_dataset(name).format in formats]
    raise WrongWords(
        f"{spec.name}: format {spec.format} does not serve for {purpose}\nthese do: {', '.join(fitting)}, or a YAML "
        f"file with one of the formats {', '.join(formats)}"
    )


def text_option(spec: DatasetSpec, key: str) -> str | None:
    """The value of a key of the format, None when it is not given. Raises WrongWords when it is not text."""
    value = spec.options.get(key)
    if value is not None and not isinstance(value, str):
        raise WrongWords(f"{spec.name}: `{key}` is {value!r}; it must be text (put it in quotes)")
    return value


def data_folder(data: Path | None) -> Path | None:
    """`--data` if given, else `$TRANSFER_DATA`, else None."""
    named = data or os.environ.get("TRANSFER_DATA")
    return Path(named).expanduser() if named else None


def find_root(spec: DatasetSpec, data: Path | None) -> Path:
    """The folder that holds the data set.

    Args:
        spec: its facts.
        data: the `--data` option; `$TRANSFER_DATA` stands in for None. Either the folder that holds one of the
            spec's `root` folders, or the data set's folder itself.

    Raises:
        UserError: nowhere found, incomplete, or found in two places.
    """
    base = data_folder(data)
    trees = _trees(spec)
    named = [Path(root) for root in spec.root if Path(root).is_absolute()]
    under = [base / root for root in spec.root if not Path(root).is_absolute()] if base else []
    if base and (trees != ((),) or not spec.root):
        named.append(base)  # without a tree to recognise, a folder that has a name of its own is not guessed
    for path in named:
        if _lacking(path, trees) is None:
            return path.resolve()
    found = sorted({path.resolve() for path in under if _lacking(path, trees) is None})
    if len(found) == 1:
        return found[0]
    if found:
        places = "\n".join(f"  {path}" for path in found)
        raise UserError(f"{spec.name}: found in more than one place:\n{places}\nname one of them: `--data {found[0]}`")
    raise UserError(_absent(spec, base, [*named, *under], trees))


def _trees(spec: DatasetSpec) -> tuple[tuple[str, ...], ...]:
    """What is looked for in a folder; nothing where the YAML file names the parts of the layout itself."""
    own = {"train", "val", "classes"} & spec.options.keys()
    return ((),) if own else FORMATS[spec.format].trees or ((),)


def _lacking(path: Path, trees: tuple[tuple[str, ...], ...]) -> str | None:
    """Why `path` does not hold the layout, or None when it does. Speaks of the alternative that comes nearest."""
    if not path.is_dir():
        return "no such folder"
    lacks = min(([entry for entry in tree if not _present(path / entry, entry)] for tree in trees), key=len)
    return f"missing, empty or unreadable: {', '.join(lacks)}" if lacks else None


def _present(path: Path, entry: str) -> bool:
    if not entry.endswith("/"):
        return path.is_file()
    try:
        return any(path.iterdir())
    except OSError:
        return False


def _absent(spec: DatasetSpec, base: Path | None, looked: list[Path], trees: tuple[tuple[str, ...], ...]) -> str:
    lines = [f"{spec.name}: the data set was not found"]
    lines += [f"  looked at {path}: {_lacking(path, trees)}" for path in dict.fromkeys(looked)]
    if base is None:
        lines.append("  no data folder was named")
    for tree in filter(None, trees):
        folder = next((root for root in spec.root if not Path(root).is_absolute()), "THE DATA SET")
        lines += [f"expected in the data folder{'' if tree is trees[0] else ', or'}:", f"  {folder}/"]
        lines += [f"    {entry}" for entry in tree]
    lines.append("name the data folder with `--data FOLDER` or TRANSFER_DATA=FOLDER")
    return "\n".join(lines + ([f"to get the data set: {spec.how}"] if spec.how else []))


def manifest_digest(files: Iterable[tuple[str, int]]) -> str:
    """sha256 (hex) over (relative name, size in bytes) of every file, whatever order they come in."""
    lines = sorted(f"{name}\0{size}\n".encode() for name, size in files)
    return hashlib.sha256(b"".join(lines)).hexdigest()
