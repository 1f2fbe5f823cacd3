"""ViTDet (Li et al. 2022, arXiv 2203.16527) from a checkout of detectron2, with the weights of our maps and pyramid.

Its own files make the vision transformer and the simple pyramid (`modeling/backbone/vit.py`, `utils.py`, `fpn.py`,
`backbone.py`; `layers/`). Nothing of it is kept here. detectron2 itself, which is compiled, is not needed: what these
files import from elsewhere and do not use here is stood in for at run time.
"""

import copy
import importlib
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from backbones.backbone import Backbone
from tasks.detect.feature_maps import VitMaps
from tests.benchmarks.parity.checks import importing
from transfer.core.errors import UserError

ROOMS = ("detectron2", "detectron2.layers", "detectron2.modeling", "detectron2.modeling.backbone")
LAYERS = {"wrappers": "Conv2d", "batch_norm": "get_norm", "blocks": "CNNBlockBase", "shape_spec": "ShapeSpec"}


class Levels(nn.Module):
    """Images [B, 3, H, W] in [0, 1] -> the peer's five levels, in the place of our backbone and neck."""

    def __init__(self, pyramid: Any, backbone: Backbone) -> None:
        super().__init__()
        self.pyramid = pyramid
        self.normalised = partial(_normalised, backbone.mean.clone(), backbone.std.clone())

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.pyramid(self.normalised(images)).values())


def _normalised(mean: Tensor, std: Tensor, images: Tensor) -> Tensor:
    return (images - mean.to(images.dtype)) / std.to(images.dtype)


class Peer:
    """The peer's modules. Raises UserError where the checkout is not its repository."""

    def __init__(self, checkout: Path) -> None:
        self.vit, self.fpn = _import(checkout)

    def detector(self, ours: Any, side: int) -> tuple[Any, dict[str, str]]:
        """A copy of our detector around the peer's backbone and pyramid, and its names of our parameters.

        Args:
            ours: with `VitMaps` and the simple pyramid. side: of the square images, in pixels.
        """
        maps: VitMaps = ours.backbone.maps
        model: Any = maps.backbone.model
        window = maps.options.window
        net = self.vit.ViT(
            img_size=side, patch_size=maps.backbone.stride, embed_dim=maps.backbone.dim, depth=len(model.blocks),
            num_heads=model.blocks[0].attn.num_heads, norm_layer=partial(nn.LayerNorm, eps=1e-6),
            use_rel_pos=maps.options.relative, window_size=window,
            window_block_indexes=[number for number, windowed in enumerate(maps.windowed) if windowed],
            pretrain_img_size=model.patch_embed.img_size[0],
        )  # fmt: skip
        first = next(iter(ours.neck.neck.levels[0].body.parameters()))
        top = self.fpn.LastLevelMaxPool()
        pyramid = self.vit.SimpleFeaturePyramid(net, "last_feat", len(first), (4.0, 2.0, 1.0, 0.5), top, "LN", 0)
        theirs = copy.deepcopy(ours)
        theirs.backbone, theirs.neck = Levels(pyramid, maps.backbone), nn.Identity()
        theirs.to(first.dtype)
        names = _names(ours, theirs)
        _take_weights(theirs, ours, names)
        return theirs, names


def _names(ours: Any, theirs: Any) -> dict[str, str]:
    """The peer's name of each parameter of ours that trains."""
    inside, pyramid = "backbone.maps.backbone.model.", "backbone.pyramid."
    found = {}
    for name, parameter in ours.named_parameters():
        if name.startswith(inside) and parameter.requires_grad:
            found[name] = name.replace(inside, f"{pyramid}net.").replace(".attn.core.", ".attn.")
        elif not name.startswith((inside, "neck.")):
            found[name] = name
    levels = [[name for name, _ in level.named_parameters()] for level in ours.neck.neck.levels]
    stages = [f"{pyramid}simfp_{number}" for number in range(2, 2 + len(levels))]
    for number, (level, stage) in enumerate(zip(levels, stages)):  # both make their layers in the order of their use
        peers = [name for name, _ in theirs.get_submodule(stage).named_parameters()]
        for mine, peer in zip(level, peers, strict=True):
            found[f"neck.neck.levels.{number}.{mine}"] = f"{stage}.{peer}"
    return found


@torch.no_grad()
def _take_weights(theirs: Any, ours: Any, names: dict[str, str]) -> None:
    """Every parameter of the peer's gets the value of ours; none is left over."""
    peers = dict(theirs.named_parameters())
    if set(names.values()) != set(peers):
        raise UserError(f"the peer's parameters have other names: {sorted(set(names.values()) ^ set(peers))[:5]}")
    for name, peer in names.items():
        peers[peer].copy_(ours.get_parameter(name))


def _import(checkout: Path) -> tuple[ModuleType, ModuleType]:
    made = _stand_ins(checkout / "detectron2")
    file, rooms = "detectron2/modeling/backbone/vit.py", ("detectron2", "fvcore")
    with importing(checkout, file, "facebookresearch/detectron2", rooms, made):
        for name, wanted in LAYERS.items():
            module = importlib.import_module(f"detectron2.layers.{name}")
            setattr(made["detectron2.layers"], wanted, getattr(module, wanted))
        vit, fpn = (importlib.import_module(f"detectron2.modeling.backbone.{name}") for name in ("vit", "fpn"))
    return vit, fpn


def _stand_ins(package: Path) -> dict[str, ModuleType]:
    """Packages whose own beginnings would import what is compiled, and names that are imported but not used here."""
    made = {name: ModuleType(name) for name in ROOMS}
    for name, module in made.items():
        module.__path__ = [str(package.joinpath(*name.split(".")[1:]))]
    registry = SimpleNamespace(register=lambda: lambda function: function)
    unused: dict[str, dict[str, Any]] = {
        **{name: {} for name in ("fvcore", "fvcore.nn", "fvcore.nn.weight_init")},
        "fvcore.nn.distributed": {"differentiable_all_reduce": None},
        "detectron2.utils": {"comm": None, "env": None},
        "detectron2.utils.env": {"TORCH_VERSION": tuple(int(part) for part in torch.__version__.split(".")[:2])},
        "detectron2.modeling.backbone.build": {"BACKBONE_REGISTRY": registry},
        "detectron2.modeling.backbone.resnet": {"build_resnet_backbone": None},
    }
    for name, content in unused.items():
        made[name] = ModuleType(name)
        vars(made[name]).update(content)
    for name, module in made.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(made[parent], child, module)
    return made
