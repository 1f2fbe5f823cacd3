"""`create` and `Backbone`: any model of this suite or of timm behind one interface.

Shapes: B images, H x W pixels, D channels, N tokens, h x w token grid.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import timm
import torch
from timm.models import group_parameters
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import backbones.vit  # registers our architectures in timm
from backbones import parts
from backbones.errors import UserError, WrongWords
from backbones.spec import IMAGENET_MEAN, IMAGENET_STD, BackboneSpec, override, resolve
from backbones.weights import Located, find_weights, load_weights

Size = int | tuple[int, int]


def create(name_or_spec: str | BackboneSpec, *, img_size: Size | None = None, **overrides: Any) -> "Backbone":
    """A backbone with its weights, without a head.

    Args:
        name_or_spec: see `spec.resolve`.
        img_size: (H, W) in pixels that the position grid is made for (default 224); other sizes still work.
        overrides: fields of `BackboneSpec`, e.g. `stem=`, `attention=`, `weights=`, `load=`.

    Raises:
        WrongWords: an unknown name, key or value, or a size that the patch does not divide.
        UserError: weights that are missing, damaged or of another shape.
    """
    spec = resolve(name_or_spec, **overrides) if isinstance(name_or_spec, str) else override(name_or_spec, **overrides)
    located = find_weights(spec)
    return build(spec, located, img_size)


def build(spec: BackboneSpec, located: Located, img_size: Size | None = None) -> "Backbone":
    """The backbone of a specification whose weights have been found."""
    size = (img_size, img_size) if isinstance(img_size, int) else img_size
    if spec.kind == "ours":
        model = _ours(spec, size or (224, 224))
        untrained = load_weights(model, located, spec)
    elif spec.kind == "user":
        model = _users(spec)
        untrained = load_weights(model, located, spec)
    else:
        model, untrained = _timms(spec, located, size)
    statistics = getattr(model, "pretrained_cfg", {})
    spec = replace(
        spec,
        mean=spec.mean or tuple(statistics.get("mean", IMAGENET_MEAN)),
        std=spec.std or tuple(statistics.get("std", IMAGENET_STD)),
    )
    return Backbone(model, spec, weights_id=located.weights_id, untrained=untrained)


def _ours(spec: BackboneSpec, size: tuple[int, int]) -> nn.Module:
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


def _users(spec: BackboneSpec) -> nn.Module:
    model = parts.load(spec.arch)()
    if not isinstance(model, nn.Module):
        raise UserError(f"{spec.arch}: a model is an nn.Module class Name() or a function that returns one")
    if hasattr(model, "reset_classifier"):
        model.reset_classifier(0)
    return model


def _timms(spec: BackboneSpec, located: Located, size: tuple[int, int] | None) -> tuple[nn.Module, list[str]]:
    """A model of timm's; its released weights pass through timm's own conversion."""
    options: dict[str, Any] = {"drop_path_rate": spec.drop_path or None}
    if spec.pool is not None:
        options["global_pool"] = backbones.vit.POOLS[spec.pool]
    name = located.timm_name or (f"local-dir:{located.folder}" if located.folder else spec.arch)
    overlay = None
    if located.timm_name:
        overlay = {"file": str(located.path)}
    for extra in _size_options(size):
        try:
            model = timm.create_model(
                name, pretrained=bool(overlay), pretrained_cfg_overlay=overlay, **(options | extra)
            )
            break
        except TypeError as error:
            failure = error
        except RuntimeError as error:
            raise UserError(f"{located.path or spec.arch}: {error}") from error
    else:
        raise WrongWords(f"backbone {spec.name}: timm's {spec.arch} does not take these options: {failure}")
    model.reset_classifier(0)
    return model, [] if located.timm_name else load_weights(model, located, spec)


def _size_options(size: tuple[int, int] | None) -> list[dict[str, Any]]:
    """Ways to ask a model of timm's for any input size, the best first; convolutional models take none of them."""
    sized = {"img_size": size} if size else {}
    return [{**sized, "dynamic_img_size": True}, {**sized, "strict_img_size": False}, sized, {}]


class Backbone(nn.Module):
    """Images [B, 3, H, W], float in [0, 1] (before augmentation noise), to features; normalised inside.

    Attributes:
        dim: D. stride: pixels per step of the last map. spec: fully resolved. weights_id: "sha256:<hex>", "timm:<arch.tag>" or
        "random". untrained: names left as initialised under `load="partial"`.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, model: nn.Module, spec: BackboneSpec, *, weights_id: str = "random", untrained: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.model = model
        self.spec = spec
        self.weights_id = weights_id
        self.untrained = list(untrained)
        self.register_buffer("mean", torch.tensor(spec.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(spec.std).view(1, 3, 1, 1), persistent=False)
        self.dim = int(getattr(model, "num_features", 0)) or self._probed_dim()
        self.stride = _stride(model)
        self._layers: dict[str, int] = {}

    def pooled(self, images: Tensor) -> Tensor:
        """Features [B, D]: what the model's own classifier would see."""
        x = self._input(images)
        if hasattr(self.model, "forward_features") and hasattr(self.model, "forward_head"):
            return self.model.forward_head(self.model.forward_features(x), pre_logits=True)
        return self.model(x)

    def forward(self, images: Tensor) -> Tensor:
        """The same as `pooled`, so that wrappers (DDP, compilers) see one entry."""
        return self.pooled(images)

    def maps(self, images: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """Token maps [B, D, h, w] after the given blocks (of plain ViTs; stages of others), counted from 0, -1 the last.

        Without the final norm.
        """
        if not hasattr(self.model, "forward_intermediates"):
            raise UserError(f"backbone {self.spec.name}: {self.spec.arch} gives pooled features only, no maps")
        depth = self.depth if self._is_vit else len(self.model.feature_info)
        wanted = [layer % depth for layer in layers if -depth <= layer < depth]
        if len(wanted) != len(layers):
            raise ValueError(f"layers {list(layers)}: {self.spec.arch} has {depth}")
        order = sorted(set(wanted))
        found = self.model.forward_intermediates(
            self._input(images), indices=order, intermediates_only=True, output_fmt="NCHW"
        )
        return [found[order.index(layer)] for layer in wanted]

    def tokens(self, images: Tensor, norm: bool = False) -> list[Tensor]:
        """Tokens [B, N, D] of the stem, after adding positions, and after every block: depth + 2 entries.

        The class token is included from the second entry on. `norm` applies the final norm to the blocks' entries.
        """
        if not self._is_vit:
            raise UserError(
                f"backbone {self.spec.name}: tokens are those of plain vision transformers, not of {self.spec.arch}"
            )
        model = self.model
        x = model.patch_embed(self._input(images))
        entries = [x.flatten(1, -2)]
        x = model.norm_pre(model.patch_drop(model._pos_embed(x)))
        entries.append(x)
        for block in model.blocks:
            x = block(x)
            entries.append(model.norm(x) if norm else x)
        return entries

    @property
    def depth(self) -> int:
        """Number of blocks, or of what timm counts as layers in other models."""
        if self._is_vit:
            return len(self.model.blocks)
        return max(self._layer_table().values(), default=1) - 1

    def layer_of(self, parameter_name: str) -> int:
        """For layer decay: 0 stem, positions, class token; i + 1 block i; depth + 1 all that follows.

        `parameter_name` as in `named_parameters()` of the backbone or of the model within.
        """
        table = self._layer_table()
        name = parameter_name.removeprefix("model.")
        if name not in table:
            raise KeyError(parameter_name)
        return table[name]

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) over the weights as they are now and the resolved model."""
        digest = hashlib.sha256(json.dumps(self.spec.identity(), sort_keys=True).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            tensor = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def _is_vit(self) -> bool:
        return isinstance(self.model, VisionTransformer)

    def _layer_table(self) -> dict[str, int]:
        if not self._layers:
            names = [name for name, _ in self.model.named_parameters()]
            if hasattr(self.model, "group_matcher"):
                matcher = self.model.group_matcher(coarse=False)
                self._layers = {
                    name: int(layer) for name, layer in group_parameters(self.model, matcher, reverse=True).items()
                }
            else:
                self._layers = dict.fromkeys(names, 0)
        return self._layers

    def _input(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be [B, 3, H, W], not {tuple(images.shape)}")
        return (images - self.mean) / self.std

    def _probed_dim(self) -> int:
        with torch.no_grad():
            training = self.model.training
            features = self.model.eval()(torch.zeros(1, 3, 224, 224))
            self.model.train(training)
        if not isinstance(features, Tensor) or features.ndim != 2:
            raise UserError(f"{self.spec.arch}: a model maps images [B, 3, H, W] to features [B, D]")
        return features.shape[1]


def _stride(model: nn.Module) -> int:
    info = getattr(model, "feature_info", None)
    if info:
        last = info[-1]
        return int(last["reduction"])
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    return int(patch[0]) if patch else int(getattr(model, "stride", 1))


__all__ = ["Backbone", "build", "create"]
_ = math
