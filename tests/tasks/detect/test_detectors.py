import pytest
import torch

from backbones.backbone import create
from tasks.detect.detectors import SimplePyramid, TapScales, build_detector
from tasks.detect.feature_maps import MapOptions, make_maps
from tasks.detect.task import resolve_detector
from transfer.core.settings import config_names


def built(name: str, pyramid: str = "simple", backbone: str = "tiny"):
    torch.manual_seed(0)
    given = {"depth": 4} if backbone == "tiny" else {}
    taps = (0, 1, 2, 3) if pyramid == "taps" else (-1,)
    maps = make_maps(create(backbone, weights="random", **given), MapOptions(out_indices=taps))
    return build_detector(resolve_detector(name), maps, pyramid, 7)


@pytest.mark.parametrize("name", config_names("detectors"))
def test_every_shipped_detector_is_built_and_knows_its_classes(name: str) -> None:
    detector = built(name)
    levels = detector.extract_feat(torch.rand(1, 3, 64, 96))
    anchors = (getattr(detector, "rpn_head", None) or detector.bbox_head).prior_generator
    assert len(levels) == anchors.num_levels
    assert [96 // level.shape[3] for level in levels][:3] == [stride[0] for stride in anchors.strides][:3]
    assert all(level.dtype == torch.float32 for level in levels)
    assert detector.with_mask == resolve_detector(name).masks
    counts = {module.num_classes for module in detector.modules() if hasattr(module, "num_classes")} - {0, 1}
    assert counts == {7}


def test_pyramids_and_models_with_stages() -> None:
    assert isinstance(built("faster_rcnn_light").neck, SimplePyramid)
    for detector in (built("faster_rcnn_light", "taps"), built("faster_rcnn_light", backbone="test_resnet")):
        assert type(detector.neck).__name__ == "FPN"
        assert [level.shape[3] for level in detector.extract_feat(torch.rand(1, 3, 64, 96))][:4] == [24, 12, 6, 3]


@pytest.mark.parametrize("pyramid", ["simple", "taps"])
@pytest.mark.parametrize("name", ["mask_rcnn_light", "retinanet"])
def test_every_parameter_that_trains_gets_a_gradient(name: str, pyramid: str) -> None:
    detector = built(name, pyramid).train()
    torch.stack([level.sum() for level in detector.extract_feat(torch.rand(2, 3, 64, 96))]).sum().backward()
    for part in (detector.backbone, detector.neck):
        assert all(parameter.grad is not None for parameter in part.parameters() if parameter.requires_grad)
    frozen = {name for name, parameter in detector.named_parameters() if not parameter.requires_grad}
    assert "backbone.maps.backbone.model.cls_token" in frozen
    # RetinaNet's levels begin at stride 8
    unused = {name for name in frozen if name.startswith("backbone.scales.")}
    assert bool(unused) == (name == "retinanet" and pyramid == "taps")
    assert detector.training


@pytest.mark.parametrize("stride", [4, 8, 16])
def test_levels_have_their_strides(stride: int) -> None:
    maps = [torch.rand(1, 32, 128 // stride, 64 // stride) for _ in range(4)]
    levels = SimplePyramid(32, stride, 8)(maps)
    assert [tuple(level.shape[1:]) for level in levels] == [(8, 128 // s, 64 // s) for s in (4, 8, 16, 32, 64)]
    retina = SimplePyramid(32, stride, 8, (8, 16, 32, 64, 128))(maps)
    assert [level.shape[2] for level in retina] == [16, 8, 4, 2, 1]
    taps = TapScales(32, stride)
    found = taps(maps)
    assert [level.shape[2] for level in found] == [32, 16, 8, 4]
    assert [level.shape[1] for level in found] == taps.channels
