"""Reading checkpoints of others: a model's tensors out of what DINO, DeiT, TransReID-SSL, Lightning and others save."""

import argparse
import hashlib
import io
import pickle
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from backbones.errors import Replaced, UserError, first_line, shortened

# which entry of a checkpoint is the model, in this order: DINO is evaluated by its teacher
_ENTRIES = ("teacher", "model", "state_dict", "student")
_OWNERS = ("teacher.", "student.")
_PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "state_dict.", *_OWNERS)
_HEAD = re.compile(r"(_classifier|head|head_dist|aux_head|fc|classifier|last_layer|projection_head)\.")


@dataclass(frozen=True, kw_only=True)
class Network:
    """One network of a file of weights."""

    state: dict[str, Tensor]
    """Its tensors under timm's names, with the heads that were asked for."""
    layout: str = ""
    """What the file is recognised as, as "DINO"; empty for a plain state dict."""
    name: str = ""
    """Which network of the file it is, as "teacher" or "state_dict_ema"; empty where there is one."""
    others: tuple[str, ...] = ()
    """The names of the file's other networks, which `weights_key` takes."""
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and std of the pixels that the layout's project publishes, for images in [0, 1]; None: not known."""
    left_out: tuple[str, ...] = ()
    """Names in the file of what belongs to no backbone: heads, decoders, mask tokens."""


def read_network(path: Path, sha256: str | None, known: Collection[str], *, weights_key: str | None = None) -> Network:
    """Return the network of a file that is evaluated, or the one that `weights_key` names.

    Args:
        path: the file.
        sha256: its digest (hex), where it is known.
        known: the model's own names, with those of the heads that are asked for.
        weights_key: the name or prefix of another network of the file.

    Raises:
        UserError: the file cannot be read, or holds no such network.
    """
    return Network(state=model_tensors(read_checkpoint(path, sha256), known, str(path)))


def read_checkpoint(path: Path, sha256: str | None = None) -> dict[str, Any]:
    """Return the contents of a .safetensors or PyTorch file, on the CPU.

    Args:
        sha256: of the file (hex), where it is known; the bytes that are read must have it.

    Raises:
        UserError: the file is damaged, would run code when it is read, or is another than it was.
    """
    read = path.read_bytes()
    if sha256 and re.fullmatch("[0-9a-f]{64}", sha256) and hashlib.sha256(read).hexdigest() != sha256:
        raise Replaced(path)
    try:
        if path.suffix == ".safetensors":
            return load(read)
        # released DINO and DeiT files hold the options of their command beside the tensors
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(io.BytesIO(read), map_location="cpu", weights_only=True)
        if not isinstance(content, Mapping):
            raise TypeError(f"it holds a {type(content).__name__}, not a dictionary of tensors")
    except Exception as error:  # what a damaged file raises depends on where the damage is
        unsafe = isinstance(error, pickle.UnpicklingError)  # torch's advice is to run what it holds
        reason = "damaged, or it holds Python objects, which are not run" if unsafe else first_line(error)
        raise UserError(f"{path}: cannot be read as weights: {reason}") from error
    return dict(content)


def model_tensors(content: Mapping[str, Any], known: Collection[str], where: str) -> dict[str, Tensor]:
    """Return the model's tensors in a checkpoint, under the model's names.

    Entries are unwrapped, prefixes stripped, and heads dropped unless the model has them. Of a distilled DeiT the
    distillation token and its position are dropped.

    Args:
        content: the content of the file.
        known: the model's own names, which are never touched.
        where: the file, for messages.
    """
    while not any(isinstance(value, Tensor) for value in content.values()):
        entry = next((name for name in _ENTRIES if isinstance(content.get(name), Mapping)), None)
        if entry is None:
            raise UserError(f"{where}: holds no tensors and none of {', '.join(_ENTRIES)}, but {shortened(content)}")
        content = content[entry]
    state = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    for owner in _OWNERS:
        owned = {name: value for name, value in state.items() if name.startswith(owner)}
        if owned and not owned.keys() & set(known):
            state = owned
            break
    state = {_strip_prefixes(name, known): value for name, value in state.items()}
    state = {name: value for name, value in state.items() if name in known or not _HEAD.match(name)}
    if "dist_token" in state and "dist_token" not in known:
        del state["dist_token"]
        positions = state["pos_embed"]  # class token, distillation token, patches
        state["pos_embed"] = torch.cat([positions[:, :1], positions[:, 2:]], dim=1)
    return state


def _strip_prefixes(name: str, known: Collection[str]) -> str:
    while name not in known and name.startswith(_PREFIXES):
        name = name.partition(".")[2]
    return name
