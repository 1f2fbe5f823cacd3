"""Parity of detection with ViTDet's backbone as detectron2 has it (arXiv 2203.16527).

    git clone https://github.com/facebookresearch/detectron2 CHECKOUT
    python -m tests.benchmarks parity_vitdet --checkout CHECKOUT

One Mask R-CNN of mmdetection, once around our maps and simple pyramid and once around detectron2's own, with equal
weights, images, boxes and masks, in float64: a small ViT with windows of 14 tokens, two global blocks, relative
positions and positions made for 14 x 14 places, as `configs/tasks/detect.yaml` has them but for the sizes, padded as in
ViTDet (`--window-padding keys`). Compares the levels, all losses and the gradient of every parameter; exits with 1
where a difference is above its limit. A minute for 24 x 24 tokens; `--side 1024` takes the recipe's
64 x 64.

Needs facebookresearch/detectron2 and mmdetection.
"""

import copy
import importlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from backbones.backbone import Backbone, create
from tasks.detect.detectors import build_detector
from tasks.detect.feature_maps import VitMapOptions, VitMaps
from tasks.detect.task import resolve_detector
from tests.benchmarks.options import read
from tests.benchmarks.parity.checks import Check, importing, report
from tests.support import command
from transfer.core.errors import UserError

ROOMS = ("detectron2", "detectron2.layers", "detectron2.modeling", "detectron2.modeling.backbone")
LAYERS = {"wrappers": "Conv2d", "batch_norm": "get_norm", "blocks": "CNNBlockBase", "shape_spec": "ShapeSpec"}


class Levels(nn.Module):
    """Images [B, 3, H, W] in [0, 1] -> the peer's five levels, in the place of our backbone and neck."""

    def __init__(self, pyramid: Any, backbone: Backbone) -> None:
        super().__init__()
        self.pyramid, self.pixels = pyramid, (backbone.mean.clone(), backbone.std.clone())

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        mean, std = (part.to(images.dtype) for part in self.pixels)
        return tuple(self.pyramid((images - mean) / std).values())


def peer_detector(checkout: Path, ours: Any, side: int) -> tuple[Any, dict[str, str]]:
    """A copy of our detector around the peer's backbone and pyramid, and its names of our parameters.

    Args:
        checkout: of the peer's repository. ours: with `VitMaps` and the simple pyramid.
        side: of the square images, in pixels.
    """
    vit, fpn = _import(checkout)
    maps: VitMaps = ours.backbone.maps
    model: Any = maps.backbone.model
    window = maps.options.window
    net = vit.ViT(
        img_size=side, patch_size=maps.backbone.stride, embed_dim=maps.backbone.dim, depth=len(model.blocks),
        num_heads=model.blocks[0].attn.num_heads, norm_layer=partial(nn.LayerNorm, eps=1e-6),
        use_rel_pos=maps.options.relative, window_size=window,
        window_block_indexes=[number for number, windowed in enumerate(maps.windowed) if windowed],
        pretrain_img_size=model.patch_embed.img_size[0],
    )  # fmt: skip
    first = ours.neck.levels[0][1].weight
    top = fpn.LastLevelMaxPool()
    pyramid = vit.SimpleFeaturePyramid(net, "last_feat", len(first), (4.0, 2.0, 1.0, 0.5), top, "LN", 0)
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
    levels = [[name for name, _ in level.named_parameters()] for level in ours.neck.levels]
    stages = [f"{pyramid}simfp_{number}" for number in range(2, 2 + len(levels))]
    for number, (level, stage) in enumerate(zip(levels, stages)):  # both make their layers in the order of their use
        peers = [name for name, _ in theirs.get_submodule(stage).named_parameters()]
        for mine, peer in zip(level, peers, strict=True):
            found[f"neck.levels.{number}.{mine}"] = f"{stage}.{peer}"
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
    file, rooms = "detectron2/modeling/backbone/vit.py", ("detectron2", "fvcore")
    with importing(checkout, file, "facebookresearch/detectron2", rooms, _stand_ins(checkout / "detectron2")):
        for name, wanted in LAYERS.items():
            module = importlib.import_module(f"detectron2.layers.{name}")
            setattr(sys.modules["detectron2.layers"], wanted, getattr(module, wanted))
        vit, fpn = (importlib.import_module(f"detectron2.modeling.backbone.{name}") for name in ("vit", "fpn"))
    return vit, fpn


def _stand_ins(package: Path) -> dict[str, dict[str, Any]]:
    """Packages whose own beginnings would import what is compiled, and names that are imported but not used here."""
    registry = SimpleNamespace(register=lambda: lambda function: function)
    return {
        **{name: {"__path__": [str(package.joinpath(*name.split(".")[1:]))]} for name in ROOMS},
        **{name: {} for name in ("fvcore", "fvcore.nn", "fvcore.nn.weight_init")},
        "fvcore.nn.distributed": {"differentiable_all_reduce": None},
        "detectron2.utils": {"comm": None, "env": None},
        "detectron2.utils.env": {"TORCH_VERSION": tuple(int(part) for part in torch.__version__.split(".")[:2])},
        "detectron2.modeling.backbone.build": {"BACKBONE_REGISTRY": registry},
        "detectron2.modeling.backbone.resnet": {"build_resnet_backbone": None},
    }


DEPTH, CLASSES, BOXES = 4, 7, 5


def main(argv: Sequence[str]) -> int:
    """Compares everything; the exit status."""
    given = read(argv, __doc__, checkout=Path, side=384)
    ours = our_detector(given.side)
    return report([*compare(ours, *peer_detector(given.checkout, ours, given.side), given.side)])


def our_detector(side: int) -> Any:
    """The detector around a small backbone as the recipe has it, in float64; what starts at zero is moved."""
    recipe = command("detect", "--backbone", "tiny", "--window-padding", "keys")
    options, way = recipe.options, recipe.resolved(False).pos_embed_interp
    torch.manual_seed(0)
    backbone = create("tiny", weights="random", depth=DEPTH, pos_embed_interp=way)  # positions for 14 x 14 places
    maps = VitMaps(
        backbone,
        VitMapOptions(
            out_indices=(-1,), window=options.window, global_blocks=(1, 3), padding=options.window_padding,
            relative=options.relative, grid=(side // backbone.stride,) * 2,
        ),
    )  # fmt: skip
    detector = build_detector(resolve_detector("mask_rcnn"), maps, options.pyramid, CLASSES).double()
    for known, parameter in maps.named_parameters():
        if "rel_pos" in known or "pos_embed" in known:
            nn.init.normal_(parameter, std=0.2)
    return detector.train()


def compare(ours: Any, theirs: Any, names: dict[str, str], side: int) -> Iterator[Check]:
    """The levels of both, then what a training step makes of them."""
    inputs, samples = a_batch(side)
    with torch.no_grad():
        pairs = zip(ours.extract_feat(inputs), theirs.extract_feat(inputs), strict=True)
        levels = [float((a - b).abs().max() / b.abs().max()) for a, b in pairs]
    yield Check("levels, largest difference by largest value", max(levels), 1e-12, f"{len(levels)} levels")
    sides = [losses_of(detector, inputs, samples) for detector in (ours, theirs)]
    for name, value in sides[0].items():
        yield Check(f"training: {name}", abs(value - sides[1][name]), 1e-10, f"{value:.6f}")
    peers = dict(theirs.named_parameters())
    apart = []
    for name, peer in names.items():
        mine, other = ours.get_parameter(name).grad, peers[peer].grad
        apart.append(float((mine - other).norm() / (other.norm() or 1.0)))
    yield Check(
        "training: gradients, by their norms", float(torch.tensor(apart).max()), 1e-9, f"{len(names)} parameters"
    )


def losses_of(detector: Any, inputs: Tensor, samples: list[Any]) -> dict[str, float]:
    """The losses of one step and their sum, whose gradients stay in place; regions are drawn from one seed."""
    torch.manual_seed(1)
    total, parts = detector.parse_losses(detector.loss(inputs, samples))
    total.backward()
    return {name: value.item() for name, value in parts.items() if "loss" in name}


def a_batch(side: int) -> tuple[Tensor, list[Any]]:
    """Noise, with boxes and masks as mmdetection's own tests draw them."""
    from mmdet.testing import demo_mm_inputs

    drawn = demo_mm_inputs(1, (3, side, side), num_items=[BOXES], num_classes=CLASSES, with_mask=True)
    for sample in drawn["data_samples"]:
        sample.set_metainfo(dict.fromkeys(("pad_shape", "batch_input_shape"), (side, side)))
        for instances in (sample.gt_instances, sample.ignored_instances):
            instances.bboxes = instances.bboxes.double()
    return torch.stack(drawn["inputs"]).double() / 255, drawn["data_samples"]
