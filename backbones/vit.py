"""Plain vision transformers with exchangeable stem, attention and FFN, registered in timm by importing this module.

Shapes: B images, H x W pixels, N tokens (class token included), D channels, h x w token grid.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import resample_abs_pos_embed
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from backbones.attention import make_attention
from backbones.ffn import WITHOUT_NORM, make_ffn
from backbones.spec import ARCHS, IMAGENET_MEAN, IMAGENET_STD
from backbones.stem_layers import StemEmbed

POOLS = {"cls": "token", "gap": "avg", "mean": "avg"}


class ViT(VisionTransformer):
    """timm's VisionTransformer, whose parameter names it keeps, with parts chosen by strings and numbers.

    Any H and W that the patch size divides; the position grid is resampled. Initialised as DeiT.

    Args:
        stem, attention, ffn: names in `stems.py`, `attention.py`, `ffn.py`, or `path/to/file.py:Name`.
        pool: "cls"; "gap": mean over the tokens of a model without class token; "mean": mean over the patch tokens of one with.
            The final norm stands before the pooling in all three.
        pos: "learned", or "sincos2d", fixed (MoCo v3's form).
        qk_norm, gate, alpha, length: of the attention, see there.
        train_size: (H, W) in pixels at pretraining, whose token count is L with `length="train"`.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        depth: int,
        num_heads: int,
        stem: str = "patchify",
        attention: str = "softmax",
        ffn: str = "mlp",
        patch_size: int = 16,
        pool: str = "cls",
        pos: str = "learned",
        qk_norm: bool = False,
        gate: bool = False,
        alpha: float | str = 1.0,
        length: str = "tokens",
        train_size: int | tuple[int, int] = 224,
        img_size: int | tuple[int, int] = 224,
        global_pool: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            img_size=img_size,
            patch_size=patch_size,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            global_pool=global_pool or POOLS[pool],
            class_token=pool != "gap",
            fc_norm=False,
            qkv_bias=True,
            norm_layer=_norm,
            weight_init="skip",
            dynamic_img_size=True,
            embed_layer=lambda **arguments: StemEmbed(stem, **arguments),
            mlp_layer=lambda in_features, hidden_features, **_: make_ffn(ffn, in_features, hidden_features),
            **options,
        )
        height, width = (train_size, train_size) if isinstance(train_size, int) else train_size
        train_tokens = (height // patch_size) * (width // patch_size) + self.num_prefix_tokens
        self.pos = pos
        for block in self.blocks:
            # timm takes a class for the attention and passes it no options of ours
            block.attn = make_attention(
                attention,
                embed_dim,
                num_heads,
                qk_norm=qk_norm,
                gate=gate,
                alpha=alpha,
                length=length,
                train_tokens=train_tokens,
            )
            if ffn in WITHOUT_NORM:
                block.norm2 = nn.Identity()
        self.weight_init_mode = ""
        self.init_weights(needs_reset=False)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """As DeiT: truncated normal (0.02) for linear layers, positions and class token; torch's default for convolutions."""
        super().init_weights(mode, needs_reset)
        if self.cls_token is not None:
            nn.init.trunc_normal_(self.cls_token, std=0.02)
        if self.pos == "sincos2d":
            grid = sincos2d(*self.patch_embed.grid_size, self.embed_dim)
            with torch.no_grad():
                self.pos_embed.zero_()  # the class token gets no position
                self.pos_embed[0, self.num_prefix_tokens :] = grid
            self.pos_embed.requires_grad_(False)


def _norm(dim: int, **options: Any) -> nn.LayerNorm:
    return nn.LayerNorm(dim, eps=1e-6, **options)


def sincos2d(height: int, width: int, dim: int) -> Tensor:
    """Fixed positions [h * w, D]: sin x, cos x, sin y, cos y at D / 4 frequencies each (MoCo v3, arXiv 2104.02057)."""
    if dim % 4:
        raise ValueError(f"sincos2d needs a width that 4 divides, not {dim}")
    frequencies = 10000 ** -torch.linspace(0, 1, dim // 4)
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angles_x, angles_y = (axis.reshape(-1, 1) * frequencies for axis in (x, y))
    return torch.cat([angles_x.sin(), angles_x.cos(), angles_y.sin(), angles_y.cos()], dim=1)


def fit_positions(
    state: dict[str, Tensor], model: VisionTransformer, old_grid: tuple[int, int] | None
) -> dict[str, Tensor]:
    """`state` with the position embedding [1, prefix + h' * w', D] resampled to the model's grid (bicubic, timm's).

    Args:
        old_grid: (h', w'); None: square, else twice as high as wide (images of persons), else that of the model.

    Raises:
        ValueError: the grid cannot be told from the number of tokens.
    """
    if "pos_embed" not in state or model.pos_embed is None:
        return state
    prefix = 0 if model.no_embed_class else model.num_prefix_tokens
    grid: tuple[int, int] = model.patch_embed.grid_size
    tokens = state["pos_embed"].shape[1] - prefix
    if old_grid is None or old_grid[0] * old_grid[1] != tokens:
        old_grid = _grid_of(tokens, grid)
    resampled = resample_abs_pos_embed(state["pos_embed"], list(grid), list(old_grid), num_prefix_tokens=prefix)
    return state | {"pos_embed": resampled}


def _grid_of(tokens: int, grid: tuple[int, int]) -> tuple[int, int]:
    for ratio in (1, 2):
        width = round((tokens / ratio) ** 0.5)
        if ratio * width * width == tokens:
            return ratio * width, width
    if grid[0] * grid[1] == tokens:
        return grid
    raise ValueError(f"pos_embed has {tokens} patch positions, which are neither a square nor a 2:1 grid")


def _adapt(state: dict[str, Tensor], model: ViT) -> dict[str, Tensor]:
    """timm's hook on loading an exported folder: another image size than that of the export."""
    size = model.pretrained_model_args.get("img_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    patch = model.patch_embed.patch_size[0]
    return fit_positions(state, model, (height // patch, width // patch))


default_cfgs = generate_default_cfgs(
    {
        name: {
            "architecture": name,
            "mean": IMAGENET_MEAN,
            "std": IMAGENET_STD,
            "interpolation": "bicubic",
            "crop_pct": 0.875,
            "classifier": "head",
        }
        for name in ARCHS
    }
)


def _register(name: str) -> Callable[..., nn.Module]:
    arch = ARCHS[name]

    def entry(pretrained: bool = False, **options: Any) -> nn.Module:
        sizes = {"embed_dim": arch.dim, "depth": arch.depth, "num_heads": arch.heads}
        indices = options.pop("out_indices", 3)
        return build_model_with_cfg(
            ViT,
            name,
            pretrained,
            pretrained_filter_fn=_adapt,
            feature_cfg={"out_indices": indices, "feature_cls": "getter"},
            **(sizes | options),
        )

    entry.__name__ = entry.__qualname__ = name
    return register_model(entry)


for _name in ARCHS:
    globals()[_name] = _register(_name)


def export(model: nn.Module, folder: Path | str, extra: dict[str, Any] | None = None) -> Path:
    """Writes timm's folder format, `config.json` and `model.safetensors`, so that the folder is complete or absent.

    After `import backbones.vit`, `timm.create_model("local-dir:FOLDER", pretrained=True)` rebuilds the model, also with another
    `img_size`.

    Args:
        model: a `Backbone` (whose mean and std are written) or a timm model made by `timm.create_model`.
        folder: replaced if it exists.
        extra: further JSON files, by name.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    spec = getattr(model, "spec", None)
    statistics = {"mean": spec.mean, "std": spec.std} if spec is not None else None
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        new = Path(scratch) / "new"
        inner = model.model if spec is not None else model
        timm.models.save_for_hf(inner, str(new), safe_serialization=True, data_config=statistics)
        for name, content in (extra or {}).items():
            (new / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if folder.exists():
            os.replace(folder, Path(scratch) / "old")
        os.replace(new, folder)
        shutil.rmtree(Path(scratch) / "old", ignore_errors=True)
    return folder
