"""Exported models: folders in timm's format, `config.json` and `model.safetensors`. Importing this imports no torch."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.checkpoints import hub
from backbones.checkpoints.export_config import IMPORT, REGISTRATION, SUITE, loading_card, write_config
from backbones.errors import UsageError, UserError, reason_of
from backbones.runtime.files import file_sha256, parse_json, replace_folder, with_home
from backbones.runtime.user_imports import imported_files
from backbones.user_code import file_digest, is_allowed, locate

if TYPE_CHECKING:
    from torch import Tensor, nn

CONFIG, WEIGHTS, PRETRAIN = "config.json", "model.safetensors", "pretrain.json"
EXPORT = "export"
"""Folder, within a run's, of the weights that it left."""
EXPORT_FACTS, HEAD = "export.json", "head.safetensors"
"""Beside the weights that a task trained: where they come from, and what was trained on top of the backbone."""
CHECKED = (WEIGHTS, HEAD, CONFIG)
SUMS, SOURCES = "files", "sources"
"""Entry of these facts with the sha256 of each of `CHECKED`, and the one with the user's files behind the parts."""
SCHEMA, VERSION = "schema", 1
"""Entry with the version of these facts, and that version; written facts always have `SUMS` beside it."""
CARD = "README.md"
WEIGHT_FILES = (WEIGHTS, "pytorch_model.bin", "model.pth", "model.pt")
"names that weights have in a folder, first come first served"


def export(
    model: "nn.Module",
    folder: Path | str,
    extra: dict[str, Any] | None = None,
    *,
    tensors: "Mapping[str, Tensor] | None" = None,
    head: "Mapping[str, Tensor] | None" = None,
) -> Path:
    """Write a model so that the folder is either complete or absent.

    `timm.create_model("local-dir:FOLDER", pretrained=True)` rebuilds it, also with another `img_size`. The card in the
    folder says what is to be imported before that.

    A classifier is part of it; one that stands beside a user's whole model has names of its own in the file.

    Args:
        model: a `Backbone` (whose mean and std are written too) or a model made by `timm.create_model`.
        folder: replaced if it exists.
        extra: further JSON files, by name. That with the facts of a run gets the sha256 of the other files, and the
            user's files behind the model's parts, which are copied into the folder.
        tensors: the model's tensors, by default its state dict.
        head: tensors for a file `head.safetensors` beside them.
    """
    spec = getattr(model, "spec", None)
    inner: nn.Module = getattr(model, "model", model) if spec is not None else model

    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-", suffix=".tmp") as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        write_tensors(dict(_tensors(model, inner)) if tensors is None else tensors, new / WEIGHTS)
        if head is not None:
            write_tensors(head, new / HEAD)
        write_config(inner, spec, new / CONFIG, getattr(model, "classes", None))
        card = loading_card(json.loads((new / CONFIG).read_bytes()), with_head=head is not None)
        (new / CARD).write_text(card, encoding="utf-8")
        sums = {name: file_sha256(new / name) for name in CHECKED if (new / name).is_file()}
        for name, content in (extra or {}).items():
            if name in (PRETRAIN, EXPORT_FACTS):
                content = content | {SCHEMA: VERSION, SUMS: sums} | _copied_sources(spec, new)
            (new / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for file in new.glob("*.safetensors"):
            shutil.copymode(new / CONFIG, file)  # the format's writer keeps all others out
        replace_folder(new, folder)
    return folder


def _copied_sources(spec: Any, folder: Path) -> dict[str, Any]:
    """Copy the user's files behind a model's parts; return for each part the copy's name and sha256."""
    copied: dict[str, dict[str, str]] = {}
    for part, sha in getattr(spec, "files", {}).items():
        path = Path(getattr(spec, part).rpartition(":")[0]).resolve()
        if path.is_file() and file_digest(path) == sha:
            taken = any(copy["file"] == path.name and copy["sha256"] != sha for copy in copied.values())
            name = f"{part}_{path.name}" if taken else path.name
            shutil.copyfile(path, folder / name)
            for imported in imported_files(path):  # beside the file, as it finds them
                beside = imported.relative_to(path.parent) if path.parent in imported.parents else imported.name
                if not (folder / beside).exists():
                    (folder / beside).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(imported, folder / beside)
            copied[part] = {"file": name, "sha256": sha}
    return {SOURCES: copied} if copied else {}


def check_named_part(folder: Path, part: str, value: str) -> None:
    """Check that a user's part may be taken because an export names it: the user has named this very file before.

    An export of a stranger must not have code run that came with it; the user can name the file after reading it.

    Args:
        folder: of the export.
        part: "stem", "attention", "ffn" or "arch".
        value: `path/to/file.py:Name`, as the export names it.

    Raises:
        UsageError: it may not; the message says how to name it.
    """
    path, _, name = value.rpartition(":")
    file = Path(path).resolve()
    if file.is_file() and is_allowed(locate(value)):
        return
    source = _sources(folder).get(part, {})
    copy = folder / Path(source.get("file", file.name)).name
    if file.is_file() and source.get("sha256") in (None, file_digest(file)):
        why, copy = "is named by the export alone", file
    else:
        why = "has changed since they were trained" if file.is_file() else "is not there any more"
    named = f"{copy if copy.is_file() else 'FILE.py'}:{name}"
    flag = f"--backbone {named} --weights {folder}" if part == "arch" else f"--{part} {named}"
    raise UsageError(
        f"the file of {part}, {path}, {why}, and no file runs that you have not named; read it, then give {flag}"
    )


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
    known = [name for name in CHECKED if name in sums and (name == CONFIG or (folder / name).is_file())]
    present = {name: file_sha256(folder / name) for name in {loaded, *known} if (folder / name).is_file()}
    return [name for name in dict.fromkeys([loaded, *known]) if present.get(name) != sums.get(name)]


def _sources(folder: Path) -> dict[str, dict[str, str]]:
    sources: dict[str, dict[str, str]] = pretraining_facts(folder).get(SOURCES, {})
    return sources


def same_sources(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Return the user's parts whose file is that with which the weights were trained; see `changed_sources`."""
    sources = _sources(folder)
    return [part for part in files if part in sources and sources[part]["sha256"] == files[part]]


def changed_sources(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Return in words the user's parts whose file is another than that the weights were trained with.

    Args:
        files: sha256 of the user's file behind each part, as `BackboneSpec.files`.
    """
    return [
        f"the file of {part} has changed since they were trained (as it was then: {folder / Path(source['file']).name})"
        for part, source in _sources(folder).items()
        if part in files and files[part] != source["sha256"]
    ]


def write_tensors(tensors: "Mapping[str, Tensor]", path: Path) -> None:
    """Write tensors in the format of safetensors. Raises OSError when they cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # one copy of each, contiguous: the format takes neither shared nor strided tensors
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(copies, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"is the disk full? {error}") from error


def _tensors(model: Any, inner: "nn.Module") -> "list[tuple[str, Tensor]]":
    from backbones.checkpoints.classifier import SEPARATE_HEAD

    beside = model.head.state_dict() if inner is not model and model.head is not None else {}
    return [*inner.state_dict().items(), *((f"{SEPARATE_HEAD}.{name}", tensor) for name, tensor in beside.items())]


def is_export(folder: Path) -> bool:
    """Return whether a folder has a `config.json` of timm: one that names an architecture."""
    file = folder / CONFIG
    return file.is_file() and b'"architecture"' in file.read_bytes()


def export_folder(weights: str) -> Path | None:
    """Return the exported folder on this machine that a backbone's `weights` name; None if they name something else."""
    if weights.startswith("hf-hub:"):
        try:
            path = hub.cached_file(weights.removeprefix("hf-hub:"), (CONFIG,)).parent
        except UserError:  # not there, which is for those to say who need the weights
            return None
    else:
        path = inside_run(Path(weights.removeprefix("local-dir:")))
    folder = path if path.is_dir() else path.parent
    inside = path.is_dir() or (path.is_file() and path.name in WEIGHT_FILES)
    return folder if inside and is_export(folder) else None


def inside_run(path: Path) -> Path:
    """Return the folder `export` of a run's folder that has one, and every other path as it is; `~` is replaced."""
    path = Path(with_home(str(path)))
    return path / EXPORT if (path / EXPORT / CONFIG).is_file() else path


def pretraining_facts(folder: Path) -> dict[str, Any]:
    """Return what `pretrain.json` or `export.json` in an exported folder says about the run behind it; an empty mapping
    without these files.

    Raises:
        UserError: it cannot be read, or is damaged.
    """
    files = (folder / name for name in (PRETRAIN, EXPORT_FACTS))
    file = next((file for file in files if file.is_symlink() or file.exists()), None)
    if file is None:
        return {}
    try:
        facts: dict[str, Any] = dict(parse_json(file.read_bytes()))
    except OSError as error:
        raise UserError(
            f"{file}: cannot be read ({error.strerror}), so that it is not known whose weights these are; make it "
            "readable, or delete the folder"
        ) from None
    except (ValueError, TypeError) as error:
        raise UserError(f"{file}: damaged ({error}); train again, or delete the folder") from None
    return facts


def read_config(folder: Path) -> dict[str, Any]:
    """Return the `config.json` of an exported folder, its architecture and arguments by our names.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        read = (folder / CONFIG).read_bytes()
        if b'"architecture"' not in read:
            raise ValueError("it names no architecture of timm: give --backbone and --weights")
        config: dict[str, Any] = dict(parse_json(read))
        if SUITE in config:
            config |= {IMPORT: REGISTRATION, **config.pop(SUITE)}
        if not isinstance(config["architecture"], str):
            raise ValueError("`architecture` is no text")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / CONFIG}: not the configuration of an exported model: {reason_of(error)}") from None
    return config


def mean_and_std(config: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return mean and std of the images, as far as the configuration names them."""
    named = config.get("pretrained_cfg", {})
    return {key: tuple(named[key]) for key in ("mean", "std") if named.get(key) is not None}


def image_size(config: dict[str, Any]) -> tuple[int, int]:
    """Return (H, W) in pixels that the position grid was made for."""
    size = config.get("model_args", {}).get("img_size")
    if size is None:
        size = (config.get("pretrained_cfg", {}).get("input_size") or (3, 224, 224))[1:]
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)
