"""Exported models: folders in timm's format, `config.json` and `model.safetensors`. Importing this imports no torch."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.checkpoints import hub
from backbones.errors import UserError
from backbones.runtime.files import replace_folder

if TYPE_CHECKING:
    from torch import Tensor, nn

CONFIG, WEIGHTS, PRETRAIN = "config.json", "model.safetensors", "pretrain.json"
REQUIRES, REGISTRATION = "requires_import", "backbones.vit"
"the entry of `CONFIG` that names the module to import before timm knows the architecture, and its value for ours"
WEIGHT_FILES = (WEIGHTS, "pytorch_model.bin", "model.pth", "model.pt")
"names that weights have in a folder, first come first served"


def export(model: "nn.Module", folder: Path | str, extra: dict[str, Any] | None = None) -> Path:
    """Write a model so that the folder is either complete or absent.

    After `import backbones.vit`, `timm.create_model("local-dir:FOLDER", pretrained=True)` rebuilds it, also with
    another `img_size`.

    A classifier is part of it; one that stands beside a user's whole model has names of its own in the file.

    Args:
        model: a `Backbone` (whose mean and std are written too) or a model made by `timm.create_model`.
        folder: replaced if it exists.
        extra: further JSON files, by name.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    spec = getattr(model, "spec", None)
    inner: nn.Module = getattr(model, "model", model) if spec is not None else model
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        # one copy of each, contiguous: the format takes neither shared nor strided tensors
        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in _tensors(model, inner)}
        try:
            save_file(tensors, new / WEIGHTS, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"is the disk full? {error}") from error
        _write_config(inner, spec, new / CONFIG, getattr(model, "classes", None))
        shutil.copymode(new / CONFIG, new / WEIGHTS)  # the format's writer keeps all others out
        for name, content in (extra or {}).items():
            (new / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        replace_folder(new, folder)
    return folder


def _tensors(model: Any, inner: "nn.Module") -> "list[tuple[str, Tensor]]":
    from backbones.checkpoints.classifier import SEPARATE_HEAD

    beside = model.head.state_dict() if inner is not model and model.head is not None else {}
    return [*inner.state_dict().items(), *((f"{SEPARATE_HEAD}.{name}", tensor) for name, tensor in beside.items())]


def _write_config(model: "nn.Module", spec: Any, path: Path, classes: int | None) -> None:
    described: dict[str, Any] = {"mean": spec.mean, "std": spec.std} if spec is not None else {}
    if not hasattr(model, "pretrained_cfg"):  # a user's whole model, which timm cannot build
        name = spec.arch if spec is not None else type(model).__name__
        config = {"architecture": name, "num_classes": classes or 0, "pretrained_cfg": described}
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        return
    from timm.models._hub import save_config_for_hf  # what timm's public `save_for_hf` writes besides the weights

    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is not None:
        described["input_size"] = (getattr(model, "in_chans", 3), *size)
    registered = {REQUIRES: REGISTRATION} if type(model).__module__.startswith("backbones.") else {}
    save_config_for_hf(model, str(path), data_config=described, model_config=registered)


def export_folder(weights: str) -> Path | None:
    """Return the exported folder on this machine that a backbone's `weights` name; None if they name something else."""
    if weights.startswith("hf-hub:"):
        try:
            return hub.cached_file(weights.removeprefix("hf-hub:"), (CONFIG,)).parent
        except UserError:  # not there, which is for those to say who need the weights
            return None
    path = Path(weights.removeprefix("local-dir:"))
    folder = path if path.is_dir() else path.parent
    inside = path.is_dir() or (path.is_file() and path.name in WEIGHT_FILES)
    return folder if inside and (folder / CONFIG).is_file() else None


def pretraining_facts(folder: Path) -> dict[str, Any]:
    """Return what `pretrain.json` in an exported folder says about the run behind it; an empty mapping without that
    file.

    Raises:
        UserError: it is damaged.
    """
    try:
        content = json.loads((folder / PRETRAIN).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a description of a run")
        if not isinstance(content.get("classes", []), list) or not isinstance(content.get("origin", {}), dict):
            raise ValueError("not a description of a run")
    except OSError:
        return {}
    except ValueError as error:
        raise UserError(f"{folder / PRETRAIN}: damaged ({error}); pretrain again, or delete the folder") from None
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """Return the `config.json` of an exported folder.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        config["architecture"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder / CONFIG}: not the configuration of an exported model: {error!r}") from None
    return config


def mean_and_std(config: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return mean and std of the images, as far as the configuration names them."""
    named = config.get("pretrained_cfg", {})
    return {key: tuple(named[key]) for key in ("mean", "std") if key in named}


def image_size(config: dict[str, Any]) -> tuple[int, int]:
    """Return (H, W) in pixels that the position grid was made for."""
    size = config.get("model_args", {}).get("img_size")
    if size is None:
        size = config.get("pretrained_cfg", {}).get("input_size", (3, 224, 224))[1:]
    height, width = (size, size) if isinstance(size, int) else size
    return int(height), int(width)
