"""`config.json` and the card of an exported folder: how timm builds the model, and what to import before.

`config.json` has timm's own names wherever timm has the architecture, so that it needs no import of ours.
Importing this imports no torch.
"""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backbones.archs import ARCHS, VITS
from backbones.stems import find_stem
from transfer.core.user_code import is_in_file

if TYPE_CHECKING:
    from torch import nn

SUITE = "suite"
"""The entry with architecture and arguments by our names, where timm's own stand before it."""
IMPORT, REGISTRATION = "requires_import", "backbones.vit"
"""The entry that names the module to import before timm knows the architecture, and its value for ours."""
USERS_MODEL = "users_model"
"""The architecture, after that import, of a user's whole model, which the argument `arch` names."""
_OF_RELEASE = ("tag", "description", "origin_url", "paper_name", "paper_ids", "notes", "license")
"""Entries of timm that describe the weights released for an architecture."""
_TIMM_NAMES = {"vit_ti": "tiny", "vit_s": "small", "vit_b": "base", "vit_l": "large"}
_PLAIN = {"attention": "softmax", "ffn": "mlp", "gate": "off", "qk_norm": False, "pre_logits": False}
"""Fields of a plain ViT in which ours is what timm builds."""
_POOLS = {"cls": "token", "gap": "avg", "mean": "avg"}


def described(model: "nn.Module", spec: Any, classes: int | None) -> dict[str, Any]:
    """Return the content of the `config.json` of a model.

    Args:
        spec: that of a `Backbone`; None for a model that timm made.
        classes: outputs of the classifier beside a user's whole model.
    """
    images: dict[str, Any] = {"mean": spec.mean, "std": spec.std} if spec is not None else {}
    if not hasattr(model, "pretrained_cfg"):  # a user's whole model, which timm cannot build by itself
        name = spec.arch if spec is not None else type(model).__name__
        own = {"architecture": name, "num_classes": classes or 0, "pretrained_cfg": images}
        if not is_in_file(name):
            return own
        arguments = {"arch": name, "in_chans": spec.in_chans}
        return own | {"architecture": USERS_MODEL, "model_args": arguments, IMPORT: REGISTRATION}
    from timm.models._hub import save_config_for_hf  # what timm's public `save_for_hf` writes besides the weights

    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if size is not None:
        images["input_size"] = (getattr(model, "in_chans", 3), *size)
    with tempfile.TemporaryDirectory() as folder:
        save_config_for_hf(model, f"{folder}/config.json", data_config=images)
        config: dict[str, Any] = json.loads(Path(folder, "config.json").read_bytes())
    for name in _OF_RELEASE if spec is not None and spec.weights == "random" else ("tag",):
        config["pretrained_cfg"].pop(name, None)
    if config["architecture"] in ARCHS:
        ours = {name: config.get(name) for name in ("architecture", "model_args")}
        theirs = timm_arguments(spec, config) if spec is not None else {}
        config |= theirs | {SUITE: ours} if theirs else {IMPORT: REGISTRATION}
    return config


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
    given = {name: arguments[name] for name in ("img_size", "num_classes", "in_chans") if name in arguments}
    return {
        "architecture": f"vit_{_TIMM_NAMES.get(spec.arch, 'tiny')}_patch16_224",
        "model_args": {
            **given,
            "patch_size": spec.patch,
            "embed_dim": arch.dim,
            "depth": spec.depth or arch.depth,
            "num_heads": arch.heads,
            "global_pool": _POOLS[spec.pool or "cls"],
            "class_token": spec.pool != "gap",
            "no_embed_class": not spec.cls_pos_embed,
            "fc_norm": False,
            "dynamic_img_size": True,
        },
    }


def loading_card(config: dict[str, Any], *, with_head: bool) -> str:
    """Return the card of an exported folder: how the model is loaded, and what happens without the import.

    Args:
        config: the content of `config.json`.
    """
    name, needed = config["architecture"], config.get(IMPORT)
    lines = ["# Weights of a backbone", "", f"Architecture: `{name}`. `model.safetensors` holds the backbone."]
    if with_head:
        lines.append("`head.safetensors` holds what was trained on top of it, and `export.json` the run behind both.")
    code = ["import timm", "", 'model = timm.create_model("local-dir:FOLDER", pretrained=True)']
    if name.startswith("live:"):
        text = "The class of this model is not part of timm. Create a model of it, and load the tensors into that:"
        load = 'model.load_state_dict(load_file("FOLDER/model.safetensors"))'
        code = ["from safetensors.torch import load_file", "", load]
    elif needed:
        text = f"""timm knows this architecture after `import {needed}` (package vit-transfer). Without that import it
raises `RuntimeError: Unknown model`."""
        code.insert(1, f"import {needed}")
    else:
        text = "timm builds this architecture itself; nothing else is to be imported."
        way = (config.get(SUITE) or {}).get("model_args", {}).get("pos_embed_interp", "antialias")
        if way != "antialias":
            text += (
                f"\nAt other image sizes timm resamples positions in its own way; this model was trained with {way}."
            )
    return "\n".join([*lines, "", text, "", "```python", *code, "```", ""])
