"""Architectures: the sizes and fields of ours, and the names of timm's, read without importing timm or torch."""

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transfer.core import exports


@dataclass(frozen=True)
class ViTArch:
    """Width D, number of blocks and number of heads of a plain ViT; the FFN is 4 D wide."""

    dim: int
    depth: int
    heads: int


@dataclass(frozen=True)
class VOLOArch:
    """Blocks, width and heads of each stage of a VOLO (arXiv 2106.13112): outlookers first, then transformers."""

    depths: tuple[int, ...]
    dims: tuple[int, ...]
    heads: tuple[int, ...]

    @property
    def dim(self) -> int:
        """Width of the tokens that the stem makes."""
        return self.dims[0]


VITS = {
    "vit_ti": ViTArch(192, 12, 3),
    "vit_s": ViTArch(384, 12, 6),
    "vit_b": ViTArch(768, 12, 12),
    "vit_l": ViTArch(1024, 24, 16),
    "vit_tiny": ViTArch(64, 2, 2),  # for tests
}
VOLOS = {
    "volo_d1": VOLOArch((4, 4, 8, 2), (192, 384, 384, 384), (6, 12, 12, 12)),
    "volo_tiny": VOLOArch((1, 1, 1), (32, 64, 64), (2, 2, 2)),  # for tests
}
ARCHS: dict[str, ViTArch | VOLOArch] = {**VITS, **VOLOS}
POOLS = {"cls": "token", "gap": "avg", "mean": "avg"}
"""Our pooling -> timm's."""

# None: it depends on the architecture or on another choice
_VIT: dict[str, Any] = {
    "stem": "patchify",
    "attention": "softmax",
    "ffn": "mlp",
    "patch": 16,
    "depth": None,
    "pool": "cls",
    "pos": "learned",
    "pos_embed_interp": "antialias",
    "cls_pos_embed": True,
    "pre_logits": False,
    "init": "deit",
    "qk_norm": None,
    "gate": "off",
    "alpha": 1.0,
    "length": "tokens",
    "train_size": (224, 224),
}
_VOLO: dict[str, Any] = {"stem": "patchify", "ffn": "mlp", "patch": 8, "pos_embed_interp": "antialias"}
ARCHITECTURE_FIELDS = tuple(_VIT)
"all fields that only some architectures take"


def default_fields(arch: str) -> dict[str, Any]:
    """Return the fields that an architecture takes, with their defaults. timm's models and users' take the pooling at
    most.
    """
    if arch in VITS:
        return _VIT | {"depth": VITS[arch].depth}
    if arch in VOLOS:
        return dict(_VOLO)
    if ".py:" in arch or arch.startswith("live:"):
        return {}
    return {"pool": None, "pos_embed_interp": "antialias"} if arch.split(".")[0] in plain_vits() else {"pool": None}


def changes_tensors(key: str, *values: Any) -> bool:
    """Return whether two values of a field give a model other tensors; some fields only say how a model was made or
    resized.

    Args:
        values: that it has in two models; an exponent has a tensor where it is learned in one of them.
    """
    if key == "alpha":
        return "learned" in values
    return key not in ("init", "train_size", "pos_embed_interp", "length")


@lru_cache
def timm_names() -> tuple[str, ...]:
    """Return timm's architectures, read from its sources in milliseconds (importing timm takes seconds)."""
    return _names("*.py")


@lru_cache
def plain_vits() -> frozenset[str]:
    """Return the names in `timm_names` of plain vision transformers, which have positions for one grid of patches."""
    return frozenset(_names("vision_transformer.py") + _names("deit.py"))


def _names(pattern: str) -> tuple[str, ...]:
    package = find_spec("timm")
    assert package is not None
    assert package.origin is not None
    files = (Path(package.origin).parent / "models").glob(pattern)
    sources = "\n".join(file.read_text(encoding="utf-8") for file in files)
    return tuple(sorted({*re.findall(r"^@register_model\s*\n(?:@.*\n)*def (\w+)", sources, re.MULTILINE)}))


def exported_fields(folder: Path) -> dict[str, Any]:
    """Return the fields of `BackboneSpec` that an exported folder stands for."""
    config = exports.read_config(folder)
    values: dict[str, Any] = {"arch": config["architecture"], "weights": str(folder)}
    arguments = config.get("model_args", {})
    if config["architecture"] in ARCHS:
        arguments = {"patch" if key == "patch_size" else key: value for key, value in arguments.items()}
        known = (*ARCHITECTURE_FIELDS, "in_chans")
        values |= {key: value for key, value in arguments.items() if key in known} | exports.users_parts(folder)
    elif channels := arguments.get("in_chans"):
        values["in_chans"] = channels
    return values | exports.mean_and_std(config)


def export_of(weights: str, arch: str) -> dict[str, Any]:
    """Return the fields of the export that weights are, if it is one of this architecture of ours; so that a backbone
    pretrained with a part of another kind is picked up by its name.
    """
    folder = exports.export_folder(weights) if arch in ARCHS else None
    exported = exported_fields(folder) if folder is not None else {}
    return exported if exported.get("arch") == arch else {}
