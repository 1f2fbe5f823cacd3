"""Reading weights in files: which networks a file holds, which of them is taken, and its tensors under timm's names."""

import contextlib
import hashlib
import io
import json
import math
import pickle
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from timm.models import adapt_input_conv
from torch import Tensor

from backbones.archs import timm_names
from backbones.weights.layouts import HEAD_NAMES, LAYOUTS, Layout, rename
from transfer.core import exports
from transfer.core.errors import Replaced, UserError, first_line, shortened

_WRAPPER = r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
_NOT_EVALUATED = {"student", "momentum", "key", "k", "gram", "current", "opt"}
"""Words in the prefix of a network that its project trains or keeps beside the one it evaluates."""
_MMCV = "ema.mmcv."
"""Prefix that is given to mmcv's average."""
_NO_WEIGHTS = {
    b"": "empty",
    b"<": "a web page",
    b"version https://git-lfs": "a pointer; `git lfs pull` fetches the file",
}
"""What a file is by its first bytes."""
_DEQUANTIZE = "Dequantize them (multiply by their scales) and save float32, float16 or bfloat16"
_SAVE = "save its tensors: torch.save(model.state_dict(), FILE)"


@dataclass(frozen=True, kw_only=True)
class StoredNetwork:
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
    heads: int | None = None
    """Attention heads of each block, which no tensor's shape tells; None: not known."""
    quick_gelu: bool | None = None
    """Whether its FFNs have x sigmoid(1.702 x) as activation, OpenAI's approximation of GELU; None: not known."""


def read_network(
    path: Path, sha256: str | None, known: Collection[str], *, weights_key: str | None = None
) -> StoredNetwork:
    """Return the network of a file that is evaluated, or the one that `weights_key` names.

    Of several, the teacher is taken, then an exponential moving average, then the network that is trained by gradients
    beside a momentum copy.

    Args:
        path: the file.
        sha256: its digest (hex), where it is known.
        known: the model's own names, with those of the heads that are asked for.
        weights_key: the name or prefix of another network of the file.

    Raises:
        UserError: the file cannot be read, or holds no such network, or several that no rule ranks.
    """
    reads, layout = [file.read_bytes() for file in exports.shards(path)], LAYOUTS[-1]
    digest = exports.digest_of_shards([hashlib.sha256(read).hexdigest() for read in reads])
    if sha256 and re.fullmatch("[0-9a-f]{64}", sha256) and digest != sha256:
        raise Replaced(path)
    try:
        content = dict[str, Any]()
        for read in reads:
            content |= _load(read)
        tensors = _without_mmcv_names(rename(_flattened(content, "")))
        if not any(re.search(_WRAPPER, name) for name in known):
            tensors = rename(tensors, (_WRAPPER, ""))
        layout, names = _find_networks(tensors, {*known})
        chosen = _choose(names, weights_key, _words(content, tensors), tensors, shortened(list(content)))
        layout = layout if chosen in names else LAYOUTS[-1]
        nested = tuple(prefix for prefix in names if _is_within(prefix, chosen))
        below = [name for name in tensors if name.startswith(chosen)]
        inside = {name.removeprefix(chosen): tensors[name] for name in below if not name.startswith(nested)}
        if quantized := [name for name in inside if _is_quantized(inside[name])]:
            raise UserError(f"quantized tensors: {_typed(quantized, inside)}. {_DEQUANTIZE}")
        state = layout.to_timm(inside, known)
        if len({*known} & inside.keys()) > len({*known} & state.keys()):  # they are the model's own, as EVA's `gamma_1`
            state, layout = inside, LAYOUTS[-1]
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:  # what a damaged file raises depends on where the damage is
        unsafe = isinstance(error, pickle.UnpicklingError)  # torch's advice is to run what it holds
        reason = "damaged, or it holds Python objects, which are not run" if unsafe else first_line(error)
        raise UserError(f"{path}: cannot be read as {layout.name or 'weights'}: {reason}") from error
    aside = {*filter(HEAD_NAMES.match, state.keys() - {*known})}
    aside |= {name for name in tensors if not name.startswith((*names, chosen, "optimizer"))}
    facts = _facts_of_transformers(path.parent)
    width = len(state["norm.weight"]) if "norm.weight" in state else 0
    return StoredNetwork(
        state={name: tensor for name, tensor in state.items() if name not in aside},
        layout=layout.name,
        name=names.get(chosen, chosen.rstrip(".")) if len(names) > 1 else "",
        others=tuple(name for prefix, name in names.items() if prefix != chosen),
        statistics=facts.get("statistics", layout.statistics),
        left_out=tuple(sorted(aside)),
        heads=facts.get("heads", layout.heads.get(width)),
        quick_gelu=facts.get("quick_gelu", layout.quick_gelu),
    )


class _StandIn(list[Any]):
    """What takes the place of a Python object in a checkpoint: options, numpy's scalars, whole modules."""

    def __init__(self, *given: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...


class _MappingStandIn:
    """The same for a mapping of another class, which torch fills as an OrderedDict."""

    def __new__(cls, *given: Any) -> Any:
        return OrderedDict()


def _load(read: bytes) -> Mapping[str, Any]:
    """Return the contents of a safetensors, .npz or PyTorch file, told by its bytes; none of the code in it runs."""
    if read[8:9] == b"{" and int.from_bytes(read[:8], "little") <= len(read):
        return load(read)
    for start, what in _NO_WEIGHTS.items():
        if read[: len(start) or None] == start:
            raise UserError(f"is {what}")
    files = zipfile.ZipFile(io.BytesIO(read)).namelist() if zipfile.is_zipfile(io.BytesIO(read)) else []
    if any("/code/" in name for name in files):
        raise UserError(f"is a TorchScript program, which is not run; {_SAVE}, or give timm's or open_clip's file")
    if files and files[0].endswith(".npy"):
        with np.load(io.BytesIO(read)) as arrays:
            return rename({name: torch.from_numpy(arrays[name]) for name in arrays.files}, ("/", "."))
    names, mappings = set[str](), set[str]()
    with contextlib.suppress(Exception):  # files older than torch 1.6 tell theirs one by one
        names = {*torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(read))}
    while True:
        classes = [_MappingStandIn if name in mappings else type(name, (_StandIn,), {}) for name in names]
        try:
            with torch.serialization.safe_globals(list(zip(classes, names))):
                content = torch.load(io.BytesIO(read), map_location="cpu", weights_only=True)
            break
        except pickle.UnpicklingError as error:
            unknown = {*re.findall(r"Unsupported global: GLOBAL (\S+) was not", str(error))} - names
            filled = {*re.findall(rf"got <class '{__name__}\.(\S+)'>", str(error))} - mappings
            if not unknown and not filled:
                raise
            mappings |= filled
            names |= unknown | {f"builtins.{name}" for name in unknown}  # torch names these without their module
    if not isinstance(content, Mapping):
        raise UserError(f"holds a whole object, not a mapping of tensors; {_SAVE}")
    return content


def _flattened(content: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
    for key, value in content.items():
        if isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping):
            yield from _flattened(value, f"{prefix}{key}.")


def _without_mmcv_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with the average that mmcv's EMAHook keeps in buffers, as `ema_blocks_0_norm1_bias`, as a network
    `ema.mmcv`.
    """
    buffers: dict[str, str] = {}
    for name in tensors:
        for prefix, rest in _cuts(name):
            buffers[f"{prefix}ema_{rest.replace('.', '_')}"] = f"{prefix}{_MMCV}{rest}"
    return {buffers.get(name, name): tensor for name, tensor in tensors.items()}


def _cuts(name: str) -> list[tuple[str, str]]:
    """Return a name cut before each of its parts: ("", "a.b"), ("a.", "b")."""
    starts = [0, *(dot.end() for dot in re.finditer(r"\.", name))]
    return [(name[:start], name[start:]) for start in starts]


def _is_within(prefix: str, outer: str) -> bool:
    return prefix != outer and prefix.startswith(outer)


def _is_quantized(tensor: Tensor) -> bool:
    return tensor.is_quantized or (tensor.is_floating_point() and tensor.itemsize == 1)


def _words(content: Mapping[str, Any], tensors: Collection[str]) -> tuple[set[str], set[str]]:
    """Return words in the prefix of a network for which it is passed over, and for which it is preferred."""
    passed_over = _NOT_EVALUATED
    if any(name.endswith("momentum_head.last_layer.weight_v") for name in tensors):
        passed_over = passed_over - {"momentum"}  # DINO's paper evaluates the teacher, solo-learn the student
    hub = "message_hub" in content or "mmengine_version" in str(content.get("meta"))
    if hub or "ema_state_dict.steps" in tensors or any(_MMCV in name for name in tensors):
        return passed_over | {"ema"}, set()  # the EMAHook of mmcv and mmengine swaps average and network on saving
    wrapped = any(name.startswith("ema_state_dict.module.") for name in tensors)
    is_torchs = "ema_state_dict.n_averaged" in tensors  # torch's own average, which mmengine's is not
    return passed_over, {"ema"} if is_torchs or not wrapped else set()


def _find_networks(tensors: Mapping[str, Tensor], known: Collection[str]) -> tuple[Layout, dict[str, str]]:
    """Return the layout of a file, and for each network its prefix and its name: what tells it from the others."""
    counts: Counter[str] = Counter()
    for name in tensors:
        counts.update(prefix for prefix, rest in _cuts(name) if rest in known)
    models = [prefix for prefix, count in counts.items() if 2 * count >= len(known)]
    text = "\n".join(tensors)
    for layout in (row for row in LAYOUTS if re.search(row.sign, text, re.MULTILINE)):
        anchor = re.compile(rf"(|.*?\.){layout.anchor}")
        prefixes = list(dict.fromkeys(match[1] for name in tensors if (match := anchor.match(name))))
        # a user's model has a ViT within, and names of its own around it
        if prefixes and not any(_is_within(prefix, outer) for prefix, outer in product(prefixes, models)):
            break
    else:
        prefixes = models
    pieces = [prefix.split(".") for prefix in prefixes]
    common = {"", "module"}.union(set[str]().union(*pieces).intersection(*pieces))
    names: dict[str, str] = {}
    for prefix, words in zip(prefixes, pieces):
        name = ".".join(word for word in words if word not in common)
        names[prefix] = name or prefix.rstrip(".") or "top level"
    return layout, names


def _choose(
    names: Mapping[str, str], key: str | None, words: tuple[set[str], set[str]], tensors: Collection[str], entries: str
) -> str:
    """Return the prefix of the network that is taken; `words` are those of `_words`."""
    part = f".{(key or '').strip('.')}."
    below = {(f".{name}".partition(part)[0] + part)[1:] for name in tensors if part in f".{name}"}
    by_name = [prefix for prefix, name in names.items() if key in (None, name)]
    prefixes = by_name or [prefix for prefix in names if part in f".{prefix}"] or [*below]
    ranks: dict[str, tuple[bool, ...]] = {}
    for prefix in prefixes:
        title = {*re.split(r"[._]", prefix.lower())}
        ranks[prefix] = (not title & words[0], "teacher" in title, bool(title & words[1]))
    best = [prefix for prefix in prefixes if ranks[prefix] == max(ranks.values())]
    if len(best) == 1:
        return best[0]
    some = f"tensors such as {', '.join([*tensors][:3])}" if tensors else f"no tensors; {_SAVE}"
    held = f"its networks: {', '.join(names.values())}" if names else f"it holds {entries}; {some}"
    wrong = "which network is meant?" if best else f"holds no network {key or 'that is recognised'}"
    raise UserError(f"{wrong}; {held}; --weights-key NAME takes one by its name or the prefix of its tensors")


def _facts_of_transformers(folder: Path) -> dict[str, Any]:
    """Return heads, pixel statistics and the kind of GELU from the configurations of transformers or open_clip in a
    folder.
    """
    facts: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, KeyError):
        config = json.loads((folder / "open_clip_config.json").read_bytes())
        facts["quick_gelu"] = config["model_cfg"].get("quick_gelu", False)
    with contextlib.suppress(OSError, ValueError, KeyError):
        config = json.loads((folder / "config.json").read_bytes())
        if "model_type" in config:
            config |= config.get("vision_config") or {}
            facts["quick_gelu"] = config.get("hidden_act") == "quick_gelu"
            facts["heads"] = config["num_attention_heads"]
            shown = json.loads((folder / "preprocessor_config.json").read_bytes())
            facts["statistics"] = (tuple(shown["image_mean"]), tuple(shown["image_std"]))
    return facts


def check_values(path: Path, state: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
    """Check that the tensors of a file that a model takes are finite floats where the model has floats.

    Raises:
        UserError: they are not.
    """
    floats = [name for name in sorted(state.keys() & model.keys()) if model[name].is_floating_point()]
    if others := [name for name in floats if not state[name].is_floating_point()]:
        raise UserError(f"{path}: the model has floats where the file has {_typed(others, state)}. {_DEQUANTIZE}")
    broken = [name for name in floats if not state[name].isfinite().all()]
    if broken := [name for name in broken if model[name].is_meta or model[name].isfinite().all()]:  # else a mask
        raise UserError(f"{path}: NaN or infinity in {shortened(broken)}. Use an earlier checkpoint")


def _typed(names: Sequence[str], state: Mapping[str, Tensor]) -> str:
    return shortened([f"{name} ({str(state[name].dtype).removeprefix('torch.')})" for name in names])


def check_gelu(path: Path, network: StoredNetwork, model: Any, arch: str) -> str:
    """Check that the FFNs of a model have the GELU of a network; return a note where the file leaves that open.

    Raises:
        UserError: they have the other GELU; the message names architectures that fit.
    """
    acts = [block.mlp.act for block in getattr(model, "blocks", []) if hasattr(getattr(block, "mlp", None), "act")]
    if not acts or (network.quick_gelu is None and network.layout != "CLIP"):
        return ""
    quick = math.isclose(float(acts[0](torch.ones(1))), torch.sigmoid(torch.tensor(1.702)), rel_tol=1e-4)
    here, there = ("quick GELU", "GELU") if quick else ("GELU", "quick GELU")
    other = re.sub("_clip_(quickgelu_)?", "_clip_" if quick else "_clip_quickgelu_", arch.split(".")[0])
    fit = f"--backbone {other if other != arch and other in timm_names() else f'FILE.py:NAME, a class with {there}'}"
    if network.quick_gelu not in (None, quick):
        raise UserError(f"{path}: a network with {there}; {arch} has {here}. Use {fit}")
    return "" if network.quick_gelu == quick else f"{here}, not known to be this file's (for {there}: {fit})"


def fit_channels(state: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return weights of RGB images with their first convolution for the channels that the model takes, as timm has it.

    One channel gets the sum over RGB; others get RGB over and over, scaled to the same sum. Weights of as many channels
    as the model's are left as they are.

    Args:
        state: tensors by the model's names.
        model: its `pretrained_cfg` names the convolution; the weights of a model without fit as they are or not at all.
    """
    layers = getattr(model, "pretrained_cfg", {}).get("first_conv") or ()
    parameters = dict(model.named_parameters())
    for layer in [layers] if isinstance(layers, str) else layers:
        name = f"{layer}.weight"
        if name in state and name in parameters and state[name].ndim == 4 and state[name].shape[1] == 3:
            state = state | {name: adapt_input_conv(parameters[name].shape[1], state[name])}
    return state
