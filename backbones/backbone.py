"""`Backbone`: any model of this suite, of timm or of a user behind one interface. `create` makes one from a name.

Shapes: B images, H x W pixels, D channels, N tokens, h x w token grid.
"""

import hashlib
import json
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from timm.models._manipulate import group_with_matcher
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from backbones.build import Built, Size, build_model, check_features, pooled_features
from backbones.spec import BackboneSpec, check_size, override, resolve, sides
from backbones.weights.classifier import SEPARATE_HEAD, Classes
from backbones.weights.locate import find_weights
from transfer.core import user_code
from transfer.core.errors import UsageError, UserError
from transfer.core.machine_errors import in_one_line
from transfer.data.loading.images import to_floats

NEEDED_FOR_MAPS = "its class needs forward_intermediates and feature_info, as timm's models have them"
FEATURE_ROUNDING = 1e-3
"""Largest difference of two ways to compute the same features in float32, as a share of the largest one."""
CPU_BATCH = 16
"""Images at a time on a CPU: activations of more leave the cache, and the allocator maps them again in every layer."""
_AFTER_ALL_LAYERS = "#behind"
"a name that no model has: its layer is that of all which timm counts to none, the classifier first"


def create(
    name_or_spec: str | BackboneSpec, *, img_size: Size | None = None, classes: Classes = None, **overrides: Any
) -> "Backbone":
    """Return a backbone with its weights.

    Args:
        name_or_spec: see `spec.resolve`.
        img_size: (H, W) in pixels that the position grid is made for, default 224; others still work, resampled
            in every forward pass.
        classes: None, without classifier; a number C, with a fresh one; "trained", with the one that the weights hold.
        overrides: fields of `BackboneSpec`, e.g. `stem=`, `attention=`, `weights=`, `load=`.

    Raises:
        UsageError: an unknown name, key or value, or a size that the patch does not divide.
        UserError: weights that are missing, damaged, of another model, or without the classifier asked for.
    """
    is_name = isinstance(name_or_spec, str)
    spec = resolve(name_or_spec, **overrides) if is_name else override(name_or_spec, **overrides)  # type: ignore[arg-type]
    located = find_weights(spec)
    backbone = Backbone(build_model(spec, located, img_size, classes), located.weights_id)
    if is_name and (line := str(backbone.loaded or "")):  # of a specification a run says it
        warnings.warn(line, stacklevel=2)
    return backbone


def check_builds(spec: BackboneSpec, img_size: Size, **overrides: Any) -> None:
    """Build a backbone without its weights and send an image through it, so that errors are found before anything is
    trained.

    Raises:
        UsageError: the parts do not fit each other or the image size.
    """
    size = sides(img_size)
    if spec.drop_path not in (0, overrides.get("drop_path", spec.drop_path)):
        raise UsageError(f"backbone {spec.name}: `drop_path` is the recipe's here, set --drop-path {spec.drop_path}")
    check_size(spec, size)
    try:
        backbone = create(spec, img_size=size, **overrides, weights="random", load="strict").eval()
        with torch.inference_mode():
            features = backbone.pooled(torch.zeros(1, spec.in_chans, *size))
        check_features(features, spec, size, backbone.dim if spec.kind == "user" else None)
        if spec.files or spec.kind == "user":
            _check_custom(backbone, size)
    except UserError:
        raise
    except Exception as error:
        fault = f"does not accept images of {size[0]} x {size[1]} pixels: {in_one_line(error)}"
        raise UsageError(f"backbone {spec.name} {fault}") from error


def _check_custom(backbone: "Backbone", size: tuple[int, int]) -> None:
    """Raise UserError unless the features that a user's code gives are finite, and of each image alone."""
    spec = backbone.spec
    images = torch.rand(2, spec.in_chans, *size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        alone, together = backbone.pooled(images[:1]), backbone.pooled(images)
    fault = ""
    if not together.isfinite().all():
        fault = "gives features that are not finite"
    elif (together[:1] - alone).abs().max() > FEATURE_ROUNDING / 10 * alone.abs().max():
        fault = "gives an image different features in another batch or a second pass (in evaluation mode)"
    if fault:
        parts = ", ".join(user_code.place(getattr(spec, part)) for part in spec.files) or spec.arch
        raise UserError(f"{parts}: {fault}; see `python -m transfer.doctor backbone --help`")


def check_weights_fit(spec: BackboneSpec, img_size: Size | None) -> None:
    """Load the weights of a backbone once, so that those of another model are found before data is opened.

    Errors of the parts and of the image size are left to `check_builds`, whose messages name the option.

    Raises:
        UserError: the weights are damaged, or of another model.
    """
    try:
        create(spec, img_size=img_size)
    except Exception as error:  # of a user's part that builds for no image, as check_builds says in one line
        if isinstance(error, UserError) and not isinstance(error, UsageError):
            raise


class Backbone(nn.Module):
    """A model that gives features of images [B, C, H, W], C = `spec.in_chans`, floats in [0, 1] (before augmentation
    noise), which it normalises.

    Attributes:
        model: the model within.
        classes: outputs C of the classifier; None without one.
        head: the classifier of a user's whole model, which stands beside it; all others have theirs within.
        dim: D. stride: pixels per step of the last map.
        spec: fully resolved, mean and std included.
        weights_id: "sha256:<hex>", "timm:<arch.tag>" or "random".
        loaded: what was taken of its weights; None of random ones.
        untrained: what `load="partial"` left as initialised.
    """

    model: Any
    mean: Tensor
    std: Tensor

    def __init__(self, built: Built, weights_id: str) -> None:
        super().__init__()
        self.weights_id, (self.model, self.spec, loaded, self.classes, head) = weights_id, built
        self.loaded, self.untrained = loaded, loaded.untrained if loaded else []
        self.head = head.linear if head else None
        self._head_names = frozenset(head.names if head else ())
        self.register_buffer("mean", torch.tensor(self.spec.mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(self.spec.std).view(1, -1, 1, 1), persistent=False)
        self.dim = int(getattr(self.model, "head_hidden_size", None) or self.model.num_features)
        info = getattr(self.model, "feature_info", None)
        self.stride = int(info[-1]["reduction"]) if info else int(getattr(self.model, "stride", 1))
        self._layers: dict[str, int] = {}

    def pooled(self, images: Tensor) -> Tensor:
        """Return features [B, D]: what the model's own classifier would see."""
        return pooled_features(self.model, self.normalised(images))

    def logits(self, images: Tensor) -> Tensor:
        """Return the outputs [B, C] of the classifier.

        Raises:
            UserError: this backbone was made without one.
        """
        if self.classes is None:
            fix = "create(..., classes=C) makes one, classes='trained' takes that of the weights"
            raise UserError(f"backbone {self.spec.name} has no classifier; {fix}")
        return self.model(self.normalised(images)) if self.head is None else self.head(self.pooled(images))

    def dense_logits(self, images: Tensor, box: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs [B, C] of a VOLO and those of every patch token [B, N, C], with tokens mixed within a
        box; see `volo.VOLO.dense_logits`.
        """
        return self.model.dense_logits(self.normalised(images), box)

    def forward(self, images: Tensor) -> Tensor:
        """Return the same as `pooled`, for wrappers that know `forward` only (DDP, compilers)."""
        return self.pooled(images)

    def maps(self, images: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """Return token maps [B, D, h, w] after the given blocks (stages, in models of stages), without the final norm.

        Counted from 0; negative numbers count from the end.
        """
        if not hasattr(self.model, "forward_intermediates"):
            lacks = f"gives pooled features only, no maps; {NEEDED_FOR_MAPS}"
            raise UserError(f"backbone {self.spec.name}: {self.spec.arch} {lacks}")
        blocks = len(self.model.feature_info)
        if not all(-blocks <= layer < blocks for layer in layers):
            raise ValueError(f"layers {list(layers)}: {self.spec.arch} has {blocks}")
        indices = [layer % blocks for layer in layers]
        order = sorted(set(indices))
        x = self.normalised(images)
        maps = self.model.forward_intermediates(x, indices=order, intermediates_only=True, output_fmt="NCHW")
        return [maps[order.index(layer)] for layer in indices]

    def tokens(self, images: Tensor, norm: bool = False) -> list[Tensor]:
        """Return tokens [B, N, D] of the stem, after adding positions, and after every block: depth + 2 entries.

        The class token is included from the second entry on. `norm` puts the final norm on the blocks' entries.
        """
        model = self.model
        if not isinstance(model, VisionTransformer):
            fault = f"{self.spec.arch} is not a plain ViT, so token outputs are unavailable"
            raise UserError(f"backbone {self.spec.name}: {fault}")
        x = model.patch_embed(self.normalised(images))
        entries = [x.flatten(1, -2)]
        x = model.norm_pre(model.patch_drop(model._pos_embed(x)))
        entries.append(x)
        for block in model.blocks:
            x = block(x)
            entries.append(model.norm(x) if norm else x)
        return entries

    @property
    def depth(self) -> int:
        """The number of blocks; in models without blocks, the layers that timm counts for layer decay, but for the
        stem.
        """
        return self._layer_table().get(_AFTER_ALL_LAYERS, 1) - 1

    def layer_of(self, parameter_name: str) -> int:
        """Return the layer of a parameter for layer decay, as timm counts: 0 for stem, positions and class token, i + 1
        for block i, depth for the final norm, depth + 1 for all others.

        Args:
            parameter_name: as in `named_parameters()` of the backbone or of the model within.
        """
        return self._layer_table().get(parameter_name.removeprefix("model."), self.depth + 1)

    @property
    def fingerprint(self) -> str:
        """The sha256 (hex) over the weights as they are now, and over all that decides the model's function."""
        described = self.spec.identity()
        for key in ("name", "load", "drop_path", "init"):
            del described[key]
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        for name, tensor in sorted([*self.model.state_dict().items(), *self.separate_head_state().items()]):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    def separate_head_state(self) -> dict[str, Tensor]:
        """Return the tensors of a classifier that stands beside the model, by their names in an export."""
        return {} if self.head is None else self.head.state_dict(prefix=f"{SEPARATE_HEAD}.")

    def _layer_table(self) -> dict[str, int]:
        if not self._layers and hasattr(self.model, "group_matcher"):
            parameters = iter([*self.model.named_parameters(), (_AFTER_ALL_LAYERS, None)])
            layers = group_with_matcher(parameters, self.model.group_matcher(coarse=False), reverse=True)
            self._layers = {name: layer for name, layer in layers.items() if name not in self._head_names}
        return self._layers

    def normalised(self, images: Tensor) -> Tensor:
        """Return images [B, C, H, W], floats in [0, 1] or bytes, as the model's input.

        Raises:
            ValueError: tensors of another form.
        """
        images = to_floats(images)
        if images.ndim != 4 or images.shape[1] != self.spec.in_chans or not images.is_floating_point():
            form = f"{images.dtype} {tuple(images.shape)}"
            raise ValueError(f"images are [B, {self.spec.in_chans}, H, W], float in [0, 1] or uint8, not {form}")
        return (images - self.mean) / self.std
