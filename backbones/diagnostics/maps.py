"""Maps of an image's tokens as pictures: where the last block attends to, and how alike its tokens are.

Shapes: B images, h x w grid of patch tokens, N queries, L keys.
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from PIL import Image, ImageOps
from torch import Tensor, nn
from torchvision.transforms.v2.functional import to_pil_image

from backbones.backbone import Backbone
from backbones.diagnostics.recorder import weights_shown, why_no_attention_weights
from transfer.core.pictures import file_name
from transfer.data.loading.images import to_floats

HEAT_COLORS = ("#000004", "#fcffa4", "#bb3754")
SHARE = 0.65
"""Of the map where it is blended with the image."""


def token_maps(
    backbone: Backbone, images: Tensor, maps_of: Callable[[Tensor], list[Tensor]] | None = None
) -> dict[str, Tensor]:
    """Return maps [B, h, w] of images [B, 3, H, W].

    `maps_of` gives maps [B, D, h, w] of the images, the last block's last; None: the backbone's own. It may leave out
    the class token.

    `attention`: the weights of the last block on patch tokens, mean over heads; those of the class token, or else the
    mean over all queries. It is missing where the block's weights are unknown. `similarity`: the cosine of each patch
    token after the last block with the mean of all.

    Raises:
        UserError: the backbone gives no maps.
    """
    attention = getattr([*getattr(backbone.model, "blocks", [None])][-1], "attn", None)
    received: list[Tensor] = []
    with nullcontext() if why_no_attention_weights(attention) else weights_shown(attention, received.append):
        tokens = (maps_of(images) if maps_of else backbone.maps(images, [-1]))[-1].float()
    maps = {"similarity": nn.functional.cosine_similarity(tokens, tokens.mean((2, 3), keepdim=True), dim=1)}
    prefix = received[-1].shape[-1] - tokens[0, 0].numel() if received else -1
    if prefix in (0, getattr(backbone.model, "num_prefix_tokens", 0)):  # else the block attends within windows
        weights = received[-1].float().mean(1)
        rows = weights[:, 0] if prefix else weights.mean(1)
        maps["attention"] = rows[:, prefix:].unflatten(1, tokens.shape[2:])
    return maps


def save_maps(maps: dict[str, Tensor], pixels: Tensor, folder: Path, name: str) -> None:
    """Save each map [1, h, w] over its image [1, C, H, W] as `folder`/NAME.KIND.png, from its least to its largest.

    Of other channels than grey or RGB the mean is shown.
    """
    shown = pixels[0] if pixels.shape[1] in (1, 3) else to_floats(pixels[0]).mean(0)
    image = to_pil_image(shown).convert("L").convert("RGB")
    for kind, (rows,) in maps.items():
        shares = (rows - rows.min()) / (rows.max() - rows.min()).clamp(min=1e-12)
        heat = to_pil_image(shares.cpu()).resize(image.size, Image.Resampling.BICUBIC)
        file = folder / f"{file_name(name)}.{kind}.png"
        Image.blend(image, ImageOps.colorize(heat, *HEAT_COLORS), SHARE).save(file)
