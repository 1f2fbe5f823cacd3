"""Parity of detection with ViTDet's backbone as detectron2 has it (arXiv 2203.16527).

    git clone https://github.com/facebookresearch/detectron2 CHECKOUT
    python -m tests.benchmarks parity_vitdet --checkout CHECKOUT

One Mask R-CNN of mmdetection, once around our maps and simple pyramid and once around detectron2's own, with equal
weights, images, boxes and masks, in float64: a small ViT with windows of 14 tokens, two global blocks, relative
positions and positions made for 14 x 14 places, as `configs/tasks/detect.yaml` has them but for the sizes, padded as in
ViTDet (`--window-padding keys`). Compares the levels, all losses and the gradient of every parameter; exits with 1
where a difference is above its limit. A minute for 24 x 24 tokens; `--side 1024` takes
the recipe's 64 x 64.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backbones.backbone import create
from tasks.detect.detectors import build_detector
from tasks.detect.feature_maps import MapOptions, VitMaps
from tasks.detect.task import resolve_detector
from tests.benchmarks.parity.checks import Check, checkout_parser, report
from tests.benchmarks.parity.vitdet_peer import Peer
from transfer.cli.command import read_command
from transfer.cli.recipe import task_recipe
from transfer.task import load_task

DEPTH, CLASSES, IMAGES, BOXES = 4, 7, 1, 5


def main(argv: Sequence[str] | None = None) -> int:
    """Compares everything; the exit status."""
    parser = checkout_parser(__doc__)
    parser.add_argument("--side", type=int, default=384, help="of the images in pixels; the recipe's is 1024")
    parser.add_argument("--detector", default="mask_rcnn", help="of configs/detectors, with the simple pyramid")
    given = parser.parse_args(argv)
    peer, ours = Peer(given.checkout), our_detector(given.side, given.detector)
    return report([*compare(ours, *peer.detector(ours, given.side), given.side)])


def our_detector(side: int, name: str) -> Any:
    """The detector around a small backbone as the recipe has it, in float64; what starts at zero is moved."""
    words = ["--backbone", "tiny", "--window-padding", "keys"]
    command = read_command(task_recipe("detect"), load_task("detect").options, words)
    options, way = command.options, command.resolved(False).pos_embed_interp
    torch.manual_seed(0)
    backbone = create("tiny", weights="random", depth=DEPTH, pos_embed_interp=way)  # positions for 14 x 14 places
    maps = VitMaps(
        backbone,
        MapOptions(
            out_indices=(-1,), window=options.window, global_blocks=(1, 3), padding=options.window_padding,
            relative=options.relative, grid=(side // backbone.stride,) * 2,
        ),
    )  # fmt: skip
    detector = build_detector(resolve_detector(name), maps, options.pyramid, CLASSES).double()
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
    total = sum(sides[1].values())
    yield Check("training: sum of the losses", abs(sum(sides[0].values()) - total), 1e-10, f"{total:.6f}")
    peers = dict(theirs.named_parameters())
    worst, where = 0.0, ""
    for name, peer in names.items():
        mine, other = ours.get_parameter(name).grad, peers[peer].grad
        assert mine is not None, name
        assert other is not None, peer
        apart = float((mine - other).norm() / other.norm().clamp(min=1e-300)) if other.any() else float(mine.norm())
        worst, where = max((worst, where), (apart, name))
    yield Check("training: gradients, by their norms", worst, 1e-9, f"{len(names)} parameters, {where}")


def losses_of(detector: Any, inputs: Tensor, samples: list[Any]) -> dict[str, float]:
    """The losses of one step, whose gradients stay in place; regions are drawn from one seed."""
    torch.manual_seed(1)
    losses = detector.loss(inputs, samples)
    parts = {
        name: torch.stack([part.mean() for part in (value if isinstance(value, list | tuple) else [value])]).sum()
        for name, value in losses.items()
        if "loss" in name
    }
    torch.stack([*parts.values()]).sum().backward()
    return {name: value.item() for name, value in parts.items()}


def a_batch(side: int) -> tuple[Tensor, list[Any]]:
    """Smooth noise, and rectangles with masks of half their area."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData

    rng = np.random.default_rng(0)
    coarse = torch.from_numpy(rng.random((IMAGES, 3, 8, 8)))
    images = nn.functional.interpolate(coarse, size=(side, side), mode="bilinear")
    samples = []
    for _ in range(IMAGES):
        corners = rng.uniform(0, 0.6 * side, (BOXES, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(0.1 * side, 0.4 * side, (BOXES, 2))], axis=1)
        masks = np.zeros((BOXES, side, side), dtype=np.uint8)
        for mask, (left, top, right, bottom) in zip(masks, boxes.astype(int)):
            mask[top:bottom, left : (left + right) // 2] = 1
        sample = DetDataSample(metainfo=dict.fromkeys(("img_shape", "pad_shape", "batch_input_shape"), (side, side)))
        sample.gt_instances = InstanceData(
            bboxes=torch.from_numpy(boxes),
            labels=torch.from_numpy(rng.integers(0, CLASSES, BOXES)),
            masks=BitmapMasks(masks, side, side),
        )
        sample.ignored_instances = InstanceData(bboxes=torch.zeros(0, 4, dtype=torch.float64))
        samples.append(sample)
    return images, samples
