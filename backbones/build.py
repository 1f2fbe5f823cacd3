"""From a specification and located weights to a model without head."""

from dataclasses import replace
from typing import Any

import timm
import torch
from timm.models import get_pretrained_cfg
from torch import Tensor, nn

import backbones.vit
from backbones import exports, parts
from backbones.errors import UserError, WrongWords
from backbones.spec import IMAGENET_MEAN, IMAGENET_STD, BackboneSpec
from backbones.weights import Located, load_weights

Size = int | tuple[int, int]


def build(
    spec: BackboneSpec, located: Located, img_size: Size | None = None
) -> tuple[nn.Module, BackboneSpec, list[str]]:
    """The model, its specification with mean and std, and what `load="partial"` left as initialised."""
    size = (img_size, img_size) if isinstance(img_size, int) else img_size
    if spec.kind == "ours":
        model = _ours(spec, size or (224, 224))
    elif spec.kind == "user":
        model = _users(spec, size or (224, 224))
    else:
        model = _timms(spec, located, size)
    untrained = [] if _converted(spec, located) else load_weights(model, located, spec)
    usual = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD} | _statistics(model, located)
    return model, replace(spec, mean=spec.mean or usual["mean"], std=spec.std or usual["std"]), untrained


def _statistics(model: Any, located: Located) -> dict[str, Any]:
    """Mean and std that the weights were made with, else those usual for the architecture."""
    if located.folder is not None:
        return exports.statistics(exports.read_config(located.folder))
    config = get_pretrained_cfg(located.timm_name) if located.timm_name else None
    return exports.statistics({"pretrained_cfg": config.to_dict() if config else getattr(model, "pretrained_cfg", {})})


def _ours(spec: BackboneSpec, size: tuple[int, int]) -> Any:
    assert spec.patch is not None
    if size[0] % spec.patch or size[1] % spec.patch:
        raise WrongWords(
            f"backbone {spec.name}: the patch size {spec.patch} does not divide {size[0]} x {size[1]} pixels (H x W)"
        )
    keys = ("stem", "attention", "ffn", "depth", "pool", "pos", "qk_norm", "gate", "alpha", "length", "train_size")
    options = {key: getattr(spec, key) for key in keys}
    return timm.create_model(
        spec.arch, num_classes=0, patch_size=spec.patch, img_size=size, drop_path_rate=spec.drop_path, **options
    )


def _users(spec: BackboneSpec, size: tuple[int, int]) -> Any:
    made = parts.load(spec.arch)()
    if not isinstance(made, nn.Module):
        raise UserError(f"{spec.arch}: a model is an nn.Module class Name(), or a function that returns one")
    model: Any = made
    if hasattr(model, "reset_classifier"):
        model.reset_classifier(0)
    if not hasattr(model, "num_features"):
        training = model.training
        with torch.no_grad():
            features = model.eval()(torch.zeros(1, 3, *size))
        if not isinstance(features, Tensor) or features.ndim != 2:
            raise UserError(f"{spec.arch}: a model maps images [B, 3, H, W] to features [B, D]")
        model.num_features = features.shape[1]
        model.train(training)
    return model


def _converted(spec: BackboneSpec, located: Located) -> bool:
    """Whether timm loads its own released weights, with its own conversion of their names."""
    return spec.kind == "timm" and located.timm_name.split(".")[0] == spec.arch.split(".")[0]


def _timms(spec: BackboneSpec, located: Located, size: tuple[int, int] | None) -> Any:
    name, source = spec.arch, {}
    if _converted(spec, located):
        name = located.timm_name
        source = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(located.path)}}
    elif located.folder is not None:
        found = exports.read_config(located.folder)["architecture"]
        if found != spec.arch.split(".")[0]:
            raise UserError(f"{located.folder} holds a {found}, not backbone {spec.name} ({spec.arch})")
        name = f"local-dir:{located.folder}"
    model = _sized(name, size, {**source, "drop_path_rate": spec.drop_path or None}, spec)
    try:
        model.reset_classifier(0, backbones.vit.POOLS[spec.pool]) if spec.pool else model.reset_classifier(0)
    except (AssertionError, TypeError, ValueError) as error:
        raise WrongWords(f"backbone {spec.name}: `pool: {spec.pool}` does not suit {spec.arch} ({error})") from None
    return model


def _sized(name: str, size: tuple[int, int] | None, options: dict[str, Any], spec: BackboneSpec) -> Any:
    """A model that takes any image size if it can: timm's families spell that wish in different ways, or need none."""
    sized = {"img_size": size} if size else {}
    refusals = []
    for wish in ({**sized, "dynamic_img_size": True}, {**sized, "strict_img_size": False}, sized, {}):
        try:
            return timm.create_model(name, **options, **wish)
        except TypeError as error:
            refusals.append(str(error))
        except RuntimeError as error:
            raise UserError(f"backbone {spec.name}: {options.get('pretrained_cfg_overlay', name)}: {error}") from error
    raise WrongWords(
        f"backbone {spec.name}: timm's {spec.arch} cannot be made so: {refusals[-1]}"
        + ("; give --drop-path 0" if "drop_path" in refusals[-1] else "")
    )
