"""Detectors of mmdetection by name, around the maps of a backbone of this suite.

Pyramids from maps of one stride are ViTDet's simple one, and the four-level one from intermediate blocks.
Shapes: D channels of the backbone, C of the pyramid.
"""

import copy
import logging
import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from backbones.backbone import Backbone
from tasks.detect import mmlab
from tasks.detect.feature_maps import StageMaps, VitMaps
from tasks.detect.learner import widen
from tasks.detect.task import DetectorSpec
from transfer.core.errors import UsageError, UserError, did_you_mean

STRIDES = (4, 8, 16, 32)
"""Strides of the pyramid's levels that are computed from the backbone's maps, in pixels."""


def scales(stride: int) -> list[float]:
    """Return the factors that bring a map of this stride to `STRIDES`.

    Raises:
        UsageError: the stride is not 4, 8 or 16.
    """
    if stride not in (4, 8, 16):
        raise UsageError(f"maps of stride {stride}: pyramids are made from patches of 4, 8 and 16 pixels")
    return [stride / target for target in STRIDES]


def rescale(dim: int, factor: float) -> tuple[nn.Module, int]:
    """Return a module that scales a map of D channels by 4, 2, 1, 1/2, 1/4 ..., and its number of output channels.

    As in ViTDet (arXiv 2203.16527, section 3): strided deconvolutions upwards, with a norm between two; max pooling
    downwards.
    """
    if factor == 4:
        first, second = nn.ConvTranspose2d(dim, dim // 2, 2, 2), nn.ConvTranspose2d(dim // 2, dim // 4, 2, 2)
        return nn.Sequential(first, LayerNorm2d(dim // 2), nn.GELU(), second), dim // 4
    if factor == 2:
        return nn.ConvTranspose2d(dim, dim // 2, 2, 2), dim // 2
    return (nn.Identity() if factor == 1 else nn.MaxPool2d(round(1 / factor))), dim


def _level(dim: int, factor: float, channels: int) -> nn.Sequential:
    """Return one level: rescaled, then 1x1 and 3x3 convolutions with norms and without activation, to C channels."""
    scale, width = rescale(dim, factor)
    first, second = nn.Conv2d(width, channels, 1, bias=False), nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    return nn.Sequential(scale, first, LayerNorm2d(channels), second, LayerNorm2d(channels))


class SimplePyramid(nn.Module):
    """ViTDet's pyramid: every level up to stride 32 from the last map alone, coarser ones by pooling the one before.

    Args:
        dim: D. stride: stride of the map, 4, 8 or 16. channels: C. strides: strides of the levels, rising.
    """

    def __init__(self, dim: int, stride: int, channels: int = 256, strides: Sequence[int] = (4, 8, 16, 32, 64)) -> None:
        super().__init__()
        factors = dict(zip(STRIDES, scales(stride)))
        self.levels = nn.ModuleList(_level(dim, factors[level], channels) for level in strides if level in factors)
        self.pooled = len(strides) - len(self.levels)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the levels [B, C, ., .], one for each stride, of the last of the maps [B, D, h, w]."""
        levels = [level(maps[-1]) for level in self.levels]
        for _ in range(self.pooled):
            levels.append(F.max_pool2d(levels[-1], 1, 2))
        return tuple(levels)


class TapScales(nn.Module):
    """Maps of four blocks, normalised, brought to strides 4, 8, 16 and 32 for a feature pyramid network.

    As ViT-Adapter's and XCiT's baselines do (arXiv 2205.08534, 2106.09681).

    Args:
        dim: D. stride: stride of the maps, 4, 8 or 16.
    """

    def __init__(self, dim: int, stride: int) -> None:
        super().__init__()
        steps = [rescale(dim, factor) for factor in scales(stride)]
        self.norms = nn.ModuleList(LayerNorm2d(dim) for _ in steps)
        self.steps = nn.ModuleList(step for step, _ in steps)
        self.channels = [width for _, width in steps]

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return maps of strides 4, 8, 16, 32 with `channels`, of four maps [B, D, h, w]."""
        return [step(norm(x)) for step, norm, x in zip(self.steps, self.norms, maps, strict=True)]


Pyramid = Literal["simple", "taps"]
UNSERVED = ("RPN", "FastRCNN", "SingleStageDetector")
"""Types of mmdetection's base models that find no classes, need proposals, or come with a backbone of their own."""


def build_detector(
    spec: DetectorSpec, maps: VitMaps | StageMaps, pyramid: Pyramid, classes: int, *, ignore_iof: float = 0
) -> Any:
    """Build a detector of mmdetection around the maps, with its heads initialised.

    Args:
        spec: description of the detector.
        maps: feature maps of the backbone.
        pyramid: `simple`: every level from the last map (ViTDet); `taps`: from four maps of one stride, through
            mmdetection's FPN. Maps of several strides go through that FPN as they are.
        classes: number of categories.
        ignore_iof: `ignore_iof_thr` of mmdetection's assigners; 0 leaves the description's.

    Raises:
        UserError: mmdetection is missing or has no such base.
        UsageError: the description does not fit the base, or the maps do not fit the pyramid.
    """
    mmlab.load()
    config = _config(spec, classes)
    if ignore_iof and "ignore_iof_thr" not in str(config):
        raise UsageError(f"--ignore-iof: detector {spec.name} has no `ignore_iof_thr`; add it to its assigners")
    if ignore_iof:
        _set(config, "ignore_iof_thr", ignore_iof)
    levels, neck = _levels(maps, pyramid, config)
    config["backbone"] = {"type": nn.Identity}
    padding = {"pad_size_divisor": math.lcm(32, maps.backbone.stride), "pad_mask": spec.masks}
    pixels = {"mean": [0.0] * 3, "std": [255.0] * 3, "non_blocking": True}
    config["data_preprocessor"] = {"type": "DetDataPreprocessor", **pixels, **padding}
    config["neck"] = {"type": nn.Identity} if isinstance(neck, nn.Module) else neck
    detector = _build(spec, config)
    detector.backbone = levels
    if isinstance(neck, nn.Module):
        detector.neck = neck
    widen(detector)
    detector.data_preprocessor.register_forward_hook(partial(_pad_with_mean, maps.backbone))
    try:
        levels_seen = freeze_unreached(detector)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        fault = "do not fit, or the backbone cannot take images of other sizes than its own"
        raise UsageError(f"{maps.backbone.spec.name} and detector {spec.name} {fault}: {error!r}") from error
    _check_strides(spec, detector, levels_seen)
    return detector


def _pad_with_mean(backbone: Backbone, _: nn.Module, inputs: tuple[Any, ...], prepared: dict[str, Any]) -> None:
    """Pad images with the mean, as mmdetection's configurations do; it is 0 after the backbone's normalisation."""
    mean = backbone.mean[0]
    for image, padded in zip(inputs[0]["inputs"], prepared["inputs"]):
        height, width = image.shape[1:]
        padded[:, height:], padded[:, :, width:] = mean, mean


def _build(spec: DetectorSpec, config: dict[str, Any]) -> Any:
    """Build mmdetection's detector, initialised unless on the meta device.

    Raises:
        UsageError: it cannot be built, or contradicts its file.
    """
    from mmdet.registry import MODELS
    from mmengine.config import ConfigDict

    try:
        detector = MODELS.build(ConfigDict(config))
    except (TypeError, KeyError, ValueError, AssertionError, AttributeError, RuntimeError) as error:
        raise UsageError(f"detector {spec.name}: mmdetection cannot build it: {error!r}") from error
    if detector.with_mask != spec.masks:
        predicted, value = ("masks", "true") if detector.with_mask else ("no masks", "false")
        raise UsageError(f"detector {spec.name}: it predicts {predicted}, so its file must say `masks: {value}`")
    if not any(parameter.is_meta for parameter in detector.parameters()):  # meta tensors have no values
        logging.disable(logging.INFO)  # mmdetection logs the origin of every parameter
        try:
            detector.init_weights()
        finally:
            logging.disable(logging.NOTSET)
    return detector


def _check_strides(spec: DetectorSpec, detector: Any, widths: list[int]) -> None:
    """Raise UsageError unless the levels, of these `widths` for a test image, have the strides of the anchors."""
    head = getattr(detector, "rpn_head", None) or detector.bbox_head
    expected = [stride[0] for stride in head.prior_generator.strides]
    side = 2 * detector.data_preprocessor.pad_size_divisor
    if [max(side // stride, 1) for stride in expected] != widths:
        strides = [side // width for width in widths]
        raise UsageError(f"detector {spec.name}: anchors of strides {expected}, but the levels have strides {strides}")


def freeze_unreached(detector: Any) -> list[int]:
    """Freeze the parameters of backbone and neck that no level depends on, for which DDP would wait.

    These are the class token, or the scale of a level that the detector's FPN leaves out. Return the widths of the
    levels for a small test image, in pixels.
    """
    training, side = detector.training, 2 * detector.data_preprocessor.pad_size_divisor
    detector.eval()
    with torch.enable_grad():
        levels = detector.extract_feat(torch.rand(1, 3, side, side))
        torch.stack([level.square().sum() for level in levels]).sum().backward()
    for module in (detector.backbone, detector.neck):
        for parameter in module.parameters():
            if parameter.grad is None:
                parameter.requires_grad_(False)
            parameter.grad = None
    detector.train(training)
    return [level.shape[3] for level in levels]


def _config(spec: DetectorSpec, classes: int) -> dict[str, Any]:
    """Return mmdetection's configuration of the model, the description merged into its base."""
    import mmdet
    from mmengine.config import Config

    path = Path(mmdet.__file__).parent / ".mim" / "configs" / "_base_" / "models" / f"{spec.base}.py"
    if not path.is_file():
        bases = [file.stem for file in path.parent.glob("*.py")]
        raise UserError(f"detector {spec.name}: mmdetection has no base {spec.base!r}{did_you_mean(spec.base, bases)}")
    config = Config.fromfile(path)
    config.merge_from_dict({"model": copy.deepcopy(spec.model)} if spec.model else {})
    model: dict[str, Any] = config.model.to_dict()
    if not isinstance(model.get("neck"), dict) or model.get("type") in UNSERVED:
        raise UsageError(f"detector {spec.name}: {spec.base} is not a class detector with a feature pyramid (FPN)")
    _set(model, "num_classes", classes)
    return model


def _set(config: Any, key: str, value: Any) -> None:
    """Set every entry of that name, at any depth."""
    if isinstance(config, dict):
        for name in config:
            if name == key:
                config[name] = value
            else:
                _set(config[name], key, value)
    elif isinstance(config, list | tuple):
        for item in config:
            _set(item, key, value)


def _levels(maps: VitMaps | StageMaps, pyramid: Pyramid, config: dict[str, Any]) -> tuple[nn.Module, Any]:
    """Return the module in the place of the backbone, from images [B, 3, H, W] in [0, 1] to the maps that the neck
    takes; and the neck: a module, or the configuration of one.
    """
    neck, scales = config["neck"], None
    several = len(set(maps.strides)) > 1
    if several or pyramid == "taps":
        scales = None if several else TapScales(maps.channels[0], maps.strides[0])
        neck["in_channels"] = list(scales.channels if scales else maps.channels)
    else:
        first = (config.get("rpn_head") or config["bbox_head"])["anchor_generator"]["strides"]
        neck = SimplePyramid(maps.channels[-1], maps.strides[-1], neck["out_channels"], first)
    return nn.Sequential(OrderedDict(maps=maps, scales=scales or nn.Identity())), neck
