"""Exports outside the suite: by timm with the functions of the guide, by `torch.export` and by onnxruntime."""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score
from torch import nn

import transfer
from backbones.backbone import create
from tasks.detect.feature_maps import StageMaps, VitMapOptions, VitMaps
from tests.documents import files_in
from tests.tasks.support import digits
from transfer.data.reid.dataset import open_reid
from transfer.data.spec import resolve_dataset

COMMON: dict[str, Any] = {"backbone": "tiny", "smoke": True, "threads": 1, "workers": 0, "progress": False}


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The functions that the guide gives a deployer."""
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "deploy.py").write_text(files_in("docs/guide/weights.md")["deploy.py"])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import deploy
    sys.modules.pop("deploy")
    return deploy


@pytest.mark.parametrize("feature", ["before", "after"])
def test_map_of_reid_from_the_export_alone(feature: str, guide: ModuleType, tmp_path: Path) -> None:
    given = {"attention": "relu", "flip_test": feature == "after", "subset": 8, "epochs": 2, "out": str(tmp_path)}
    run = transfer.evaluate("reid", feature=feature, **given, **COMMON)[0]
    data = open_reid(resolve_dataset("toy_market"), None, subset=8)
    query, gallery = (
        guide.ranked_features(run.weights, [Image.open(data.root / sample.path) for sample in samples]).double().numpy()
        for samples in (data.query, data.gallery)
    )
    found = run.predict([data.root / sample.path for sample in data.query]).arrays["features"]
    assert np.abs(query - found).max() < 1e-5
    precisions = []
    distances = ((query[:, None] - gallery) ** 2).sum(-1)
    for sample, similarity in zip(data.query, -distances, strict=True):
        same = np.array([other.identity == sample.identity for other in data.gallery])
        kept = ~(same & np.array([other.camera == sample.camera for other in data.gallery]))
        precisions.append(average_precision_score(same[kept], similarity[kept]))
    assert np.mean(precisions) == pytest.approx(run.scores["mAP"], abs=1e-6)


def test_top1_of_a_probe_from_the_export_alone(guide: ModuleType, tmp_path: Path) -> None:
    run = transfer.evaluate("linear", weights="random", resize=40, subset=40, out=str(tmp_path), **COMMON)[0]
    split = digits(40, "linear").val
    predicted = guide.class_logits(run.weights, [split.read(index) for index in range(len(split))]).argmax(1).numpy()
    assert np.mean(predicted == split.labels) == run.scores["top1"]


def test_a_neck_in_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's script, for a neck: the file takes any number of images."""
    run = transfer.evaluate("reid", subset=8, epochs=1, out=str(tmp_path / "runs"), **COMMON)[0]
    file = str(tmp_path / "model.onnx")
    monkeypatch.setattr(sys, "argv", ["to_onnx.py", str(run.folder), file, "encode"])
    with warnings.catch_warnings(action="ignore"):
        exec(files_in("docs/guide/weights.md")["to_onnx.py"], {"__name__": "to_onnx"})
    check_onnx(file, run.model().encode, (3, *run.record.details["preprocessing"]["size"]))


class Maps(nn.Module):
    def __init__(self, name: str, **given: Any) -> None:
        super().__init__()
        self.backbone = create(name, img_size=64, weights="random", **given)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.backbone.maps(images, [-1])[0]


def vitdet(**given: Any) -> nn.Module:
    options = VitMapOptions(out_indices=(-1,), window=3, global_blocks=(1,), relative=True, grid=(4, 4))
    return VitMaps(create("vit_tiny", img_size=64, weights="random", **given), options)


MODELS: dict[str, Any] = {
    "patchify": lambda: create("tiny", img_size=64),
    "conv": lambda: create("tiny", img_size=64, stem="conv"),
    "relu": lambda: create("tiny", img_size=64, attention="relu"),
    "gated sum": lambda: create("tiny", img_size=64, attention="softplus_sum", gate="silu", qk_norm=True),
    "volo": lambda: create("volo_tiny", img_size=64, weights="random"),
    "timm": lambda: create("test_vit", img_size=64, weights="random"),
    "maps": lambda: Maps("tiny"),
    "detector": vitdet,
    "detector relu": lambda: vitdet(attention="relu"),
    "detector stages": lambda: StageMaps(create("volo_tiny", img_size=64, weights="random")),
}


@pytest.mark.parametrize("name", MODELS)
def test_exported_programs_take_any_number_of_images(name: str) -> None:
    model = MODELS[name]().eval()
    with torch.no_grad():
        program = program_of(model, 64).module()
        for count in (1, 7):
            images = torch.rand(count, 3, 64, 64)
            torch.testing.assert_close(program(images), model(images), atol=1e-5, rtol=1e-5)


def program_of(model: nn.Module, side: int) -> torch.export.ExportedProgram:
    """A model for any number of square images, as `torch.export` writes it."""
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    with warnings.catch_warnings(action="ignore"):
        return torch.export.export(model, (torch.rand(2, 3, side, side),), dynamic_shapes=(batch,))


def check_onnx(file: str | bytes, model: Callable[[torch.Tensor], torch.Tensor], size: Sequence[int]) -> None:
    """Fail unless onnxruntime gives what a model gives, of any number of images."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for count in (1, 7):
        images = torch.rand(count, *size)
        (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
        with torch.no_grad():
            assert np.abs(model(images).numpy() - found).max() < 1e-4
