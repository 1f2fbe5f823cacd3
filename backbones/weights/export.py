"""`config.json` and the card of an exported folder: how timm builds the model, and what to import before.

`config.json` has timm's own names wherever timm has the architecture, so that it needs no import of ours.
"""

import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from timm.models._hub import save_config_for_hf  # what timm's public `save_for_hf` writes besides the weights
from torch import Tensor, nn

from backbones.archs import ARCHS, POOLS, VITS
from backbones.stems import find_stem
from transfer.core import exports
from transfer.core.files import file_sha256, folder_replacement, rendered
from transfer.core.live_modules import is_live
from transfer.core.user_code import USER_PARTS, is_in_file, sources

_OF_RELEASE = ("tag", "description", "origin_url", "paper_name", "paper_ids", "notes", "license")
"""Entries of timm that describe the weights released for an architecture."""
_TIMM_NAMES = {"vit_ti": "tiny", "vit_s": "small", "vit_b": "base", "vit_l": "large"}
_PLAIN = {"attention": "softmax", "ffn": "mlp", "gate": "off", "qk_norm": False, "pre_logits": False}
"""Fields of a plain ViT in which ours is what timm builds."""
_TIMM_INTERPOLATIONS = {"bicubic": "bicubic", "bilinear": "bilinear", "area": "box"}


def exported_config(backbone: Any, scored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the `config.json` of a `Backbone`; `scored` is that of `export`."""
    model, spec = backbone.model, backbone.spec
    images: dict[str, Any] = {"mean": spec.mean, "std": spec.std}
    images |= (timms := timm_preprocessing(scored))
    size = scored["size"] if timms else getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is not None:
        images["input_size"] = (spec.in_chans, *size)
    name = spec.arch
    base = {"architecture": name, "num_classes": backbone.classes or 0, "pretrained_cfg": images}
    if is_in_file(name):
        arguments = {"arch": name, "in_chans": spec.in_chans}
        built = {"architecture": exports.USERS_MODEL, "model_args": arguments}
        return base | built | {exports.IMPORT: exports.REGISTRATION}
    if not exports.is_of_timm(model):
        return base
    with tempfile.TemporaryDirectory() as folder:
        save_config_for_hf(model, f"{folder}/config.json", data_config=images)
        config: dict[str, Any] = json.loads(Path(folder, "config.json").read_bytes())
    if is_live(name) and not _rebuilds(model, config):
        return base
    for name in _OF_RELEASE if spec.weights == "random" else ("tag", "label_names"):
        config["pretrained_cfg"].pop(name, None)
    if config["architecture"] in ARCHS:
        ours = {name: config.get(name) for name in ("architecture", "model_args")}
        theirs = timm_arguments(spec, config)
        config |= theirs | {exports.SUITE: ours} if theirs else {exports.IMPORT: exports.REGISTRATION}
    return config


def _rebuilds(model: nn.Module, config: dict[str, Any]) -> bool:
    """Return whether timm builds modules of the same classes by a configuration, so that none was replaced since."""
    with torch.device("meta"):
        rebuilt = timm.create_model(config["architecture"], **config.get("model_args", {}))
    return [*map(type, rebuilt.modules())] == [*map(type, model.modules())]


def timm_arguments(spec: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Return architecture and arguments by which timm builds the same model; empty where timm has none.

    Args:
        config: the content of `config.json` by our names.
    """
    if spec.arch not in VITS or spec.stem is None or spec.patch is None or "stem" in spec.files:
        return {}
    if find_stem(spec.stem).sized(spec.patch) != find_stem("patchify").sized(spec.patch):
        return {}
    if any((getattr(spec, name) or False) != value and getattr(spec, name) != value for name, value in _PLAIN.items()):
        return {}
    arch, arguments = VITS[spec.arch], config.get("model_args", {})
    kept_arguments = {name: arguments[name] for name in ("img_size", "num_classes", "in_chans") if name in arguments}
    sizes = {
        "patch_size": spec.patch,
        "embed_dim": arch.dim,
        "depth": spec.depth or arch.depth,
        "num_heads": arch.heads,
    }
    pooling = {"global_pool": POOLS[spec.pool or "cls"], "class_token": spec.pool != "gap"}
    others = {"no_embed_class": not spec.cls_pos_embed, "fc_norm": False, "dynamic_img_size": True}
    name = f"vit_{_TIMM_NAMES.get(spec.arch, 'tiny')}_patch16_224"
    return {"architecture": name, "model_args": {**kept_arguments, **sizes, **pooling, **others}}


def timm_preprocessing(scored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of timm's configuration by which its transform prepares images as they were scored, or as
    nearly as it can; none for a detector's, which have no size in common.

    Args:
        scored: see `export`.
    """
    resize, height = scored.get("resize"), scored.get("size", [0])[0]
    if not isinstance(resize, int | list):
        return {}
    first = resize if isinstance(resize, int) else resize[0]
    share = height / first
    if math.floor(height / share) < first:  # as timm computes it back
        share = math.nextafter(share, 0)
    mode = "center" if isinstance(resize, int) else "squash"
    return {"interpolation": _TIMM_INTERPOLATIONS[scored["interpolation"]], "crop_pct": share, "crop_mode": mode}


CARD = "README.md"


def export(
    backbone: Any,
    folder: Path | str,
    extra: dict[str, Any] | None = None,
    *,
    scored: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    head: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a model so that the folder is either complete or absent.

    `timm.create_model("local-dir:FOLDER", pretrained=True)` rebuilds it, also with another `img_size`. The card in the
    folder says what is to be imported before that. The user's files behind the model are copied into the folder,
    and the configuration names these copies.

    A classifier is part of it; one that stands beside a user's whole model has names of its own in the file.

    Args:
        backbone: a `Backbone`, whose mean and std are written too.
        folder: replaced if it exists.
        extra: further JSON files, by name. That with the facts of a run gets the sha256 of the other files.
        scored: how the images were prepared that the model was scored on, see
            `transfer.data.loading.options.preprocessing`. timm's transform of the configuration does the same, or the
            card says that it cannot.
        tensors: the backbone's tensors, by default its state dict.
        head: tensors for a file `head.safetensors` beside them.
    """
    if tensors is None:
        tensors = backbone.model.state_dict() | backbone.separate_head_state()
    with folder_replacement(folder := Path(folder)) as new:
        write_tensors(tensors, new / exports.WEIGHTS)
        if head is not None:
            write_tensors(head, new / exports.HEAD)
        config = exported_config(backbone, scored or {})
        if backbone.classes and (labels := (extra or {}).get(exports.PRETRAIN, {}).get("classes")):
            config["label_names"] = labels
        _copy_sources(arguments := config.get("model_args", {}), new)
        copied = {part: text for part, text in arguments.items() if is_in_file(str(text))}
        (new / exports.CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        card = rendered(  # how the model is loaded, and what happens without the import
            Path(__file__).parent / "card.md",
            config=config,
            copies=copied,
            needed=config.get(exports.IMPORT),
            resampling=(config.get(exports.SUITE) or {}).get("model_args", {}).get("pos_embed_interp", "antialias"),
            with_head=head is not None,
            scored=scored,
        )
        (new / CARD).write_text(card, encoding="utf-8")
        sums = {name: file_sha256(new / name) for name in exports.CHECKED if (new / name).is_file()}
        for name, content in (extra or {}).items():
            if name in (exports.PRETRAIN, exports.EXPORT_FACTS):
                options = content.get("options", {})
                copies = {part: copied[part] for part in copied if is_in_file(str(options.get(part)))}
                content = content | {exports.SCHEMA: exports.VERSION, exports.SUMS: sums}
                content |= {"options": options | copies} if copies else {}
            (new / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for file in new.glob("*.safetensors"):
            shutil.copymode(new / exports.CONFIG, file)  # the format's writer keeps all others out
    return folder


def _copy_sources(arguments: dict[str, Any], folder: Path) -> None:
    """Copy the user's files behind a model's parts into a folder, as they were imported, and let the arguments of the
    model name the copies: `my_stem.py:MyStem`.
    """
    for part in USER_PARTS:
        if not is_in_file(text := str(arguments.get(part))):
            continue
        files = sources(text)
        present = {file: folder / file for file in files if (folder / file).exists()}
        taken = any(copy.read_bytes() != files[file] for file, copy in present.items())
        below = folder / part if taken else folder
        for file, content in files.items():
            (below / file).parent.mkdir(parents=True, exist_ok=True)
            (below / file).write_bytes(content)
        copy = (below / next(iter(files))).relative_to(folder).as_posix()
        arguments[part] = f"{copy}:{text.rpartition(':')[2]}"


def write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors in the format of safetensors. Raises OSError when they cannot be written."""
    # one copy of each, contiguous: the format takes neither shared nor strided tensors
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(copies, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"is the disk full? {error}") from error
