"""Exported models: folders in timm's format, `config.json` and `model.safetensors`. Importing this imports no torch."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transfer.core.errors import MissingInput, UsageError, UserError, shortened, unusable
from transfer.core.files import ROOT, file_sha256, with_home
from transfer.core.user_code import USER_PARTS, is_allowed, is_in_file

CONFIG, WEIGHTS, PRETRAIN = "config.json", "model.safetensors", "pretrain.json"
EXPORT = "export"
"""Folder, within a run's, of the weights that it left."""
EXPORT_FACTS, HEAD = "export.json", "head.safetensors"
"""Beside the weights that a task trained: where they come from, and what was trained on top of the backbone."""
CHECKED = (WEIGHTS, HEAD, CONFIG)
SUMS = "files"
"""Entry of these facts with the sha256 of each of `CHECKED`."""
SCHEMA, VERSION = "schema", 1
"""Entry with the version of these facts, and that version; written facts always have `SUMS` beside it."""
INDEX = ".index.json"
"""End of the name of a file that says which shard holds each tensor."""
WEIGHT_FILES = (WEIGHTS, "pytorch_model.bin", f"{WEIGHTS}{INDEX}", f"pytorch_model.bin{INDEX}", "model.pth", "model.pt")
"names that weights have in a folder, first come first served: two that timm reads, four of the hub's"
SHIPPED_WEIGHTS = ROOT / "backbones" / "weights" / "shipped"
"""Weights that come with the suite: a run's folder for each name, made by `python -m tests.ship`."""


def users_parts(folder: Path) -> dict[str, str]:
    """Return the user's parts that an export names, each as the copy `path/to/file.py:Name` in its folder."""
    arguments = read_config(folder).get("model_args", {})
    parts = {part: str(arguments.get(part)) for part in USER_PARTS}
    return {part: str(folder.resolve() / text) for part, text in parts.items() if is_in_file(text)}


def check_named_part(folder: Path, part: str, copy: str) -> None:
    """Check that a user's part may be imported because an export names it: the user has named a file of this content
    before.

    An untrusted export must not have code run that came with it; the user can name the file after reading it.

    Args:
        folder: the export.
        part: one of `USER_PARTS`.
        copy: what `users_parts` returned for it.

    Raises:
        UsageError: it may not; the message says how to name it.
    """
    file = copy.rpartition(":")[0]
    if not Path(file).is_file():
        raise UsageError(f"{folder / CONFIG}: {part} is in {file}, which is missing; copy the complete folder again")
    if not is_allowed(copy):
        value = shlex.quote(copy)
        flag = f"--backbone {value} --weights {shlex.quote(str(folder))}" if part == "arch" else f"--{part} {value}"
        fix = f"read it, then use {flag} (in Python {part}={copy!r})"
        raise UsageError(f"{file}: the code of {part} came with the weights, and code runs only if you name it; {fix}")


def with_copies(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a model that timm builds from an exported folder, in which the user's parts that its
    configuration names are the copies in that folder. Raises the errors of `check_named_part`.
    """
    arguments = options.get("pretrained_model_args") or {}
    in_files = [part for part in USER_PARTS if is_in_file(str(arguments.get(part)))]
    parts = [part for part in in_files if options.get(part) == arguments[part]]
    folder = Path(options["pretrained_cfg"].get("file", "")) if parts else Path()
    copies = users_parts(folder) if parts else {}
    for part in parts:
        check_named_part(folder, part, copies[part])
    return options | {part: copies[part] for part in parts}


def modified_files(folder: Path, loaded: str = WEIGHTS) -> list[str]:
    """Return the files in an exported folder that are not as they were written, where that is known.

    These are files of `CHECKED` that changed, `config.json` if it is missing, and a file with weights that is not among
    those that were written.

    Args:
        loaded: name of the file with the weights.
    """
    sums = pretraining_facts(folder).get(SUMS)
    if sums is None:
        return []
    recorded = [name for name in CHECKED if name in sums]
    present = {name: file_sha256(folder / name) for name in {loaded, *recorded} if (folder / name).is_file()}
    needed = [loaded, *(name for name in recorded if name in {CONFIG, *present})]
    return [name for name in dict.fromkeys(needed) if present.get(name) != sums.get(name)]


def is_export(folder: Path) -> bool:
    """Return whether a folder has a `config.json` of timm: one that names an architecture."""
    file = folder / CONFIG
    return file.is_file() and b'"architecture"' in file.read_bytes()


def is_of_timm(model: Any) -> bool:
    """Return whether timm made a model, and can build it again by its configuration."""
    return getattr(model, "pretrained_cfg", {}).get("architecture", USERS_MODEL) != USERS_MODEL


def why_not_exported(options: Mapping[str, Any], exported: str | None) -> str:
    """Say why a run has no weights, if its training did not fail.

    Args:
        options: those of the run.
        exported: the id of the weights that it exported.
    """
    if exported:
        return "they were deleted, or the run is a shared copy"
    without = options.get("save_weights") == "none"
    return "it was made with --save-weights none" if without else "it trained no backbone"


def export_folder(weights: str) -> Path | None:
    """Return the exported folder on this machine that a backbone's `weights` name; None if they name something else."""
    if weights.startswith("hf-hub:"):
        try:
            path = cached_file(weights.removeprefix("hf-hub:"), (CONFIG,)).parent
        except UserError:  # not there, which is for those to say who need the weights
            return None
    else:
        path = inside_run(Path(weights.removeprefix("local-dir:")))
    folder = path if path.is_dir() else path.parent
    inside = path.is_dir() or (path.is_file() and path.name in WEIGHT_FILES)
    return folder if inside and is_export(folder) else None


def seed_exports(folder: str) -> list[str]:
    """Return the exports `seed0`, `seed1`, ... in a folder that is not one itself, in this order."""
    configs = [] if (Path(folder) / CONFIG).exists() else Path(folder).glob(f"seed[0-9]*/{CONFIG}")
    return [str(file.parent) for file in sorted(configs, key=lambda file: (len(file.parent.name), file.parent.name))]


def inside_run(path: Path) -> Path:
    """Return the folder `export` of a run's folder that has one, and every other path as it is; `~` is replaced.

    The name of shipped weights stands for their folder, unless the working directory has something of this name.
    """
    path = Path(with_home(str(path)))
    path = path if path.exists() or str(path) not in shipped_names() else SHIPPED_WEIGHTS / path
    return path / EXPORT if (path / EXPORT / CONFIG).is_file() else path


def shipped_names() -> list[str]:
    """Return the names of the weights that come with the suite."""
    return sorted(folder.name for folder in SHIPPED_WEIGHTS.glob("[!.]*"))


def pretraining_facts(folder: Path) -> dict[str, Any]:
    """Return what `pretrain.json` or `export.json` in an exported folder says about the run behind it; an empty mapping
    without these files.

    Raises:
        UserError: it cannot be read, or is damaged.
    """
    for file in (folder / PRETRAIN, folder / EXPORT_FACTS):
        if file.is_symlink() or file.exists():
            with unusable(f"{file}: cannot be read", fix="restore it, or delete the folder"):
                return dict(json.loads(file.read_bytes()))
    return {}


def weights_facts(weights: str) -> dict[str, Any]:
    """Return `pretraining_facts` of the exported folder that `weights` name; an empty mapping without one."""
    folder = export_folder(weights)
    return pretraining_facts(folder) if folder else {}


def read_config(folder: Path) -> dict[str, Any]:
    """Return the `config.json` of an exported folder, its architecture and arguments by our names.

    Raises:
        UserError: it is missing or damaged.
    """
    with unusable(f"{folder / CONFIG}: not the configuration of an exported model"):
        read = (folder / CONFIG).read_bytes()
        if b'"architecture"' not in read:
            raise ValueError("it names no architecture of timm: set --backbone and --weights")
        config: dict[str, Any] = dict(json.loads(read))
        if SUITE in config:
            config |= {IMPORT: REGISTRATION, **config.pop(SUITE)}
        if config["architecture"] == USERS_MODEL:
            config["architecture"] = str(folder.resolve() / config["model_args"]["arch"])
        if not isinstance(config["architecture"], str):
            raise ValueError("`architecture` is not text")
    return config


def shards(path: Path) -> list[Path]:
    """Return the files with the tensors of a file of weights: those that it names if it is an index, else itself.

    Raises:
        MissingInput: a shard is missing.
        UserError: the index is damaged, or names files of other folders.
    """
    if not path.name.endswith(INDEX):
        return [path]
    with unusable(f"{path}: not an index of shards", fix="copy the folder again"):
        names = sorted({*json.loads(path.read_bytes())["weight_map"].values()})
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("`weight_map` must name files in the same folder")
    if missing := [name for name in names if not (path.parent / name).is_file()]:
        raise MissingInput(f"{path}: shards are missing: {shortened(missing)}; copy or download the complete folder")
    return [path.parent / name for name in names]


def digest_of_shards(digests: Sequence[str]) -> str:
    """Return the sha256 (hex) that stands for weights, from those of their files in order: its own for one file."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def mean_and_std(config: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return mean and std of the images, as far as the configuration names them."""
    timm_config = config.get("pretrained_cfg", {})
    return {key: tuple(timm_config[key]) for key in ("mean", "std") if timm_config.get(key) is not None}


def image_size(config: dict[str, Any]) -> tuple[int, int]:
    """Return (H, W) in pixels that the position grid was made for."""
    size = config.get("model_args", {}).get("img_size")
    if size is None:
        size = (config.get("pretrained_cfg", {}).get("input_size") or (3, 224, 224))[1:]
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)


def cached_file(repository: str, files: tuple[str, ...]) -> Path:
    """Return the first of some files that is in the local cache.

    Args:
        repository: `owner/name` or `owner/name@revision`.
        files: names within it, the preferred one first.

    Raises:
        UserError: none of them is there; with the command that fetches them.
    """
    from huggingface_hub import try_to_load_from_cache

    name, _, revision = repository.partition("@")
    for file in files:
        path = try_to_load_from_cache(name, file, revision=revision or None)
        if isinstance(path, str):
            return Path(path)
    at = f" --revision {revision}" if revision else ""
    fix = f"fetch it once: hf download {name}{at}"
    where = "not in the local Hugging Face cache, and nothing is downloaded here"
    raise MissingInput(f"{files[0]} of {name} is {where}; {fix}")


SUITE = "suite"
"""The entry with architecture and arguments by our names, where timm's own stand before it."""


IMPORT, REGISTRATION = "requires_import", "backbones.vit"
"""The entry that names the module to import before timm knows the architecture, and its value for ours."""


USERS_MODEL = "users_model"
"""The architecture, after that import, of a user's whole model, which the argument `arch` names."""
