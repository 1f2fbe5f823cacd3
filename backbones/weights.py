"""Pretrained weights: where they lie, what identifies them, and how they get into a model. Never touches the network.

`find_weights` needs neither torch nor a model; `load_weights` does.
"""

import argparse
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.errors import UserError, WrongWords, nearest
from backbones.spec import BackboneSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

_FILES = ("model.safetensors", "pytorch_model.bin", "model.pth", "model.pt")
# which entry of a checkpoint is the model, in this order; DINO's evaluation takes the teacher
_ENTRIES = ("teacher", "model", "state_dict", "student")
_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "state_dict.", "teacher.", "student.")
_HEADS = re.compile(r"(head|head_dist|fc|classifier|projector|predictor)\.")


@dataclass(frozen=True)
class Located:
    """Weights that are there. `path` is a file, or None for random weights."""

    path: Path | None
    weights_id: str
    timm_name: str = ""
    "arch.tag, where the weights are timm's"
    folder: Path | None = None
    "the exported folder around `path`, with its config.json"


def find_weights(spec: BackboneSpec) -> Located:
    """Where the weights of a backbone are, without building it.

    Raises:
        WrongWords: the source cannot be read, or timm has no such tag.
        UserError: the weights are not on this machine; the message says how to get them.
    """
    source = spec.weights
    if source == "random":
        return Located(None, "random")
    if source == "timm" or source.startswith("timm:"):
        return _timm(spec, source.removeprefix("timm").removeprefix(":"))
    if source.startswith("hf-hub:"):
        repository, _, revision = source.removeprefix("hf-hub:").partition("@")
        path = _cached(repository, revision or None, _FILES[:2])
        return Located(path, f"sha256:{sha256(path)}")
    path = Path(source.removeprefix("local-dir:"))
    if path.is_file():
        return Located(path, f"sha256:{sha256(path)}")
    if path.is_dir():
        file = next((path / name for name in _FILES if (path / name).is_file()), None)
        if file is None:
            raise UserError(f"backbone {spec.name}: the folder {path} holds none of {', '.join(_FILES)}")
        return Located(file, f"sha256:{sha256(file)}", folder=path if (path / "config.json").is_file() else None)
    words = ("config", "random", "timm", "hf-hub:", "timm:")
    if not path.suffix and len(path.parts) == 1:
        raise WrongWords(
            f"weights '{source}': neither a file, a folder, nor one of {', '.join(words)}{nearest(source, words)}"
        )
    raise UserError(
        f"backbone {spec.name}: there are no weights at {path}: pretrain it (python -m transfer.pretrain ...), "
        f"or name a file, a folder, timm:<arch.tag> or random with --weights"
    )


def sha256(path: Path) -> str:
    """sha256 (hex) of a file, remembered as long as its size and time stay the same."""
    status = path.stat()
    return _sha256(str(path.resolve()), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256(path: str, size: int, time: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _timm(spec: BackboneSpec, tag: str) -> Located:
    """timm's released weights, in the local Hugging Face cache."""
    from timm.models import get_pretrained_cfg, list_pretrained

    if not tag and spec.kind != "timm":
        raise WrongWords(
            f"backbone {spec.name}: {spec.arch} is no architecture of timm; name the weights: timm:<arch.tag>"
        )
    name = tag or spec.arch
    config = get_pretrained_cfg(name, allow_unregistered=True)
    if config is None or not config.has_weights:
        raise WrongWords(f"weights 'timm:{name}': timm has no such weights{nearest(name, list_pretrained())}")
    full = f"{config.architecture}.{config.tag}" if config.tag else str(config.architecture)
    if not config.hf_hub_id:
        raise UserError(
            f"weights 'timm:{full}': not on the Hugging Face hub; fetch {config.url} and give the file as --weights"
        )
    repository, _, revision = config.hf_hub_id.partition("@")
    files = (config.hf_hub_filename,) if config.hf_hub_filename else _FILES[:2]
    return Located(_cached(repository, revision or None, files), f"timm:{full}", timm_name=full)


def _cached(repository: str, revision: str | None, files: tuple[str, ...]) -> Path:
    from huggingface_hub import try_to_load_from_cache

    for file in files:
        path = try_to_load_from_cache(repository, file, revision=revision)
        if isinstance(path, str):
            return Path(path)
    at = f" --revision {revision}" if revision else ""
    raise UserError(
        f"the weights of {repository} are not in the local Hugging Face cache, and nothing is downloaded here; "
        f"fetch them once with: hf download {repository}{at}"
    )


def load_weights(model: "nn.Module", located: Located, spec: BackboneSpec) -> list[str]:
    """Puts weights into a model without its head, the position grid resampled.

    Returns:
        Names of the parameters and buffers that stay as initialised; none under `load="strict"`.

    Raises:
        UserError: the file is damaged, or does not fit.
    """
    if located.path is None:
        return []
    partial = spec.load == "partial"
    grid = None
    if located.folder is not None:
        grid = _exported_grid(located.folder, spec, partial)
    state = clean(read_state(located.path), str(located.path))
    state = _fitted(state, model, grid, str(located.path))
    target = model.state_dict()
    wrong = {
        key: f"{tuple(state[key].shape)} for {tuple(target[key].shape)}"
        for key in target.keys() & state.keys()
        if target[key].shape != state[key].shape
    }
    missing = sorted(target.keys() - state.keys())
    unexpected = sorted(state.keys() - target.keys())
    good = {key: value for key, value in state.items() if key in target and key not in wrong}
    if not partial and (wrong or missing or unexpected):
        listed = [
            *_listed("missing", missing),
            *_listed("unexpected", unexpected),
            *_listed("of another shape", [f"{key} {shapes}" for key, shapes in sorted(wrong.items())]),
        ]
        raise UserError(
            f"{located.path} does not fit backbone {spec.name}: {'; '.join(listed)}. "
            "`--load partial` takes what fits and trains the rest from scratch"
        )
    if not any(value.is_floating_point() for value in good.values()):
        raise UserError(
            f"{located.path}: not one tensor fits backbone {spec.name} ({spec.arch}); it holds {', '.join([*state][:3])}, ..."
        )
    model.load_state_dict(good, strict=False)
    return sorted(target.keys() - good.keys())


def _listed(title: str, names: list[str], most: int = 4) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return [f"{title} {', '.join(names[:most])}{more}"]


def read_state(path: Path) -> dict[str, Any]:
    """The contents of a .safetensors or PyTorch file, on the CPU.

    Raises:
        UserError: the file is damaged, or would run code when it is read.
    """
    import torch
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # released DINO and DeiT files hold their command's options beside the tensors
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged file raises depends on where the damage is
        reason = str(error).strip().splitlines()
        raise UserError(f"{path}: cannot be read as weights: {reason[0] if reason else error!r}") from error
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: holds a {type(content).__name__}, not a dictionary of tensors")
    return dict(content)


def clean(content: Mapping[str, Any], where: str) -> "dict[str, Tensor]":
    """The model's tensors out of a checkpoint: entries unwrapped, prefixes stripped, heads and DeiT's distillation token dropped."""
    import torch

    while not any(isinstance(value, torch.Tensor) for value in content.values()):
        entry = next((key for key in _ENTRIES if isinstance(content.get(key), Mapping)), None)
        if entry is None:
            raise UserError(
                f"{where}: no tensors, and none of the entries {', '.join(_ENTRIES)}; it holds {', '.join(map(str, content))}"
            )
        content = content[entry]
    state = {key: value for key, value in content.items() if isinstance(value, torch.Tensor)}
    for owner in ("teacher.", "student."):
        if any(key.startswith(owner) for key in state):
            state = {key: value for key, value in state.items() if key.startswith(owner)}
    state = {_stripped(key): value for key, value in state.items()}
    state = {key: value for key, value in state.items() if not _HEADS.match(key)}
    if "dist_token" in state:
        del state["dist_token"]
        positions = state["pos_embed"]  # class token, distillation token, patches
        state["pos_embed"] = torch.cat([positions[:, :1], positions[:, 2:]], dim=1)
    return state


def _stripped(key: str) -> str:
    while any(key.startswith(prefix) for prefix in _PREFIXES):
        key = key.partition(".")[2]
    return key


def _fitted(
    state: "dict[str, Tensor]", model: "nn.Module", grid: tuple[int, int] | None, where: str
) -> "dict[str, Tensor]":
    from timm.models.vision_transformer import VisionTransformer

    from backbones.vit import fit_positions

    if not isinstance(model, VisionTransformer):
        return state
    try:
        return fit_positions(state, model, grid)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _exported_grid(folder: Path, spec: BackboneSpec, partial: bool) -> tuple[int, int] | None:
    """The token grid of an exported folder; under `strict` also proof that it holds the same architecture.

    Softmax and ReLU attention, say, have the same tensors, so that the names would not tell.
    """
    from backbones.spec import resolve

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if spec.kind != "ours":
        return None
    exported = resolve(str(folder))
    ours, theirs = spec.identity(), exported.identity()
    keys = ("arch", "stem", "attention", "ffn", "patch", "depth", "qk_norm", "gate", "alpha")
    differing = [f"{key} {theirs[key]} (here {ours[key]})" for key in keys if ours[key] != theirs[key]]
    if differing and not partial:
        raise UserError(
            f"{folder} holds another model than backbone {spec.name}: {', '.join(differing)}; "
            "`--load partial` takes what fits all the same"
        )
    size = config.get("model_args", {}).get("img_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    assert exported.patch is not None or exported.kind != "ours"
    return (height // exported.patch, width // exported.patch) if exported.patch else None
