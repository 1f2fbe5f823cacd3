"""mmdetection over the bridge: it imports in silence, trains and predicts."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from backbones.errors import UserError
from tasks.detection import mmlab

mmlab.load()

import mmdet  # noqa: E402
from mmdet.registry import MODELS  # noqa: E402
from mmdet.structures import DetDataSample  # noqa: E402
from mmdet.structures.mask import BitmapMasks  # noqa: E402
from mmengine.config import Config, ConfigDict  # noqa: E402
from mmengine.structures import InstanceData  # noqa: E402

SIDE = 96
BOXES = torch.tensor([[8.0, 8, 56, 60], [40, 24, 90, 88]])
SILENT = """
import mmdet.structures.mask.structures as early
from tasks.detection import mmlab
mmlab.load()
mmlab.load()
from mmengine.registry import DefaultScope
from mmdet.datasets.transforms import RandomCrop
import mmcv.ops
print(mmlab.ops_source(), DefaultScope.get_current_instance().scope_name, early.roi_align is mmcv.ops.roi_align)
"""


def masks(boxes=BOXES, side=SIDE):
    drawn = np.zeros((len(boxes), side, side), np.uint8)
    for mask, (left, top, right, bottom) in zip(drawn, boxes.int().tolist()):
        mask[top:bottom, left:right] = 1
    return BitmapMasks(drawn, side, side)


def sample():
    made = DetDataSample()
    shape = (SIDE, SIDE)
    made.set_metainfo(
        {
            "img_shape": shape,
            "ori_shape": shape,
            "pad_shape": shape,
            "batch_input_shape": shape,
            "scale_factor": (1.0, 1.0),
        }
    )
    made.gt_instances = InstanceData(bboxes=BOXES, labels=torch.tensor([0, 2]), masks=masks())
    return made


SMALLER = {80: 3, 256: 16, 512: 32, 1000: 40, 1024: 32, 2000: 60}
"""Numbers of mmdet's configs (classes, channels, samples, proposals), and those for a test."""


def smaller(value):
    if isinstance(value, dict):
        return {key: smaller(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(smaller(inner) for inner in value)
    return SMALLER.get(value, value) if isinstance(value, int) else value


def small(name):
    """One of mmdet's models with a ResNet of a few channels, which keeps detections of any score."""
    model = Config.fromfile(Path(mmdet.__file__).parent / f".mim/configs/_base_/models/{name}.py").model.to_dict()
    model = smaller(model) | {"data_preprocessor": None}
    model["backbone"] |= {"depth": 18, "base_channels": 8, "init_cfg": None, "frozen_stages": -1}
    model["neck"]["in_channels"] = [8, 16, 32, 64]
    model["test_cfg"].get("rcnn", model["test_cfg"])["score_thr"] = 0.0
    torch.manual_seed(0)
    return MODELS.build(ConfigDict(model))


@pytest.mark.nightly
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("faster-rcnn_r50_fpn", ("loss_cls", "loss_bbox")),
        ("mask-rcnn_r50_fpn", ("loss_cls", "loss_bbox", "loss_mask")),
        ("cascade-mask-rcnn_r50_fpn", ("s0.loss_cls", "s1.loss_bbox", "s2.loss_bbox", "s2.loss_mask")),
        ("retinanet_r50_fpn", ("loss_cls", "loss_bbox")),
    ],
)
def test_detectors_train_and_predict(name, parts, precision):
    model, images = small(name), torch.rand(1, 3, SIDE, SIDE)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
        losses = model.loss(images, [sample()])
    # of a second stage alone: these gradients reach the first convolution through RoIAlign
    chosen = [losses[part] for part in parts]
    sum(sum(loss) if isinstance(loss, list) else loss for loss in chosen).backward()
    gradient = model.backbone.conv1.weight.grad
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
        (found,) = [result.pred_instances for result in model.predict(images, [sample()])]
    assert 20 < len(found.scores) <= 100
    assert (found.scores.diff() <= 0).all()
    assert ("masks" in found) == ("mask" in name)
    if precision == torch.float32:  # coordinates of bfloat16 are too coarse to tell
        assert overlaps(found) <= 0.5 + 1e-4, "NMS at 0.5"


def overlaps(found):
    """The largest IoU of two boxes of one class."""
    same = (found.labels[:, None] == found.labels).fill_diagonal_(False)
    return (torchvision.ops.box_iou(found.bboxes, found.bboxes) * same).max()


@pytest.mark.nightly
def test_import_is_silent_and_repairs_what_was_imported_early():
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("bridge mmdet True\n", "")


def test_compiled_operators_are_found_without_importing_them(monkeypatch, tmp_path):
    (tmp_path / "mmcv").mkdir()
    for name in ("__init__", "_ext"):
        (tmp_path / "mmcv" / f"{name}.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mmcv", "mmcv._ext"):
        monkeypatch.delitem(sys.modules, name)
    assert mmlab.ops_source() == "compiled"
    (tmp_path / "mmcv/_ext.py").unlink()
    assert mmlab.ops_source() == "bridge"


def test_missing_packages_are_named_with_what_installs_them(monkeypatch):
    find = mmlab.find_spec
    monkeypatch.setattr(mmlab, "find_spec", lambda name: None if name in ("mmcv", "mmdet") else find(name))
    for name in ("mmcv", "mmdet"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"mmcv, mmdet: pip install -e '\.\[detection\]'"):
        mmlab.load()


@pytest.mark.parametrize("official", ["mmcv-full", "mmdet"])
def test_official_packages_beside_the_fork_are_an_error(official, monkeypatch, tmp_path):
    folder = tmp_path / f"{official.replace('-', '_')}-2.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {official}\nVersion: 2.1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=rf"onedl-\w+ and {official} are both installed.*pip uninstall -y onedl-\w+ "):
        mmlab.load()
