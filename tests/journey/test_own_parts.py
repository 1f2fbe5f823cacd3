"""A part or backbone of one's own, as the guide shows them, goes through everything that one of the suite goes through.

What cannot be is refused before anything is trained.
"""

import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import backbones.vit  # noqa: F401  (registers our architectures in timm)
import transfer
from tests.documents import files_in
from tests.journey.test_deployment import check_onnx, program_of
from tests.support import stopped_after
from transfer.core.errors import UserError
from transfer.report.__main__ import main as report
from transfer.sweep.__main__ import main as sweep
from transfer.testing import check_backbone
from transfer.verify.__main__ import main as verify

COMMON: dict[str, Any] = {"smoke": True, "threads": 1, "workers": 0, "progress": False}
FEW = {"subset": 24, "epochs": 1}
MARKED = ("--smoke", "--dirty")
PARTS = {
    "attention function": {"attention": "my_attention.py:linear"},
    "attention core": {"attention": "my_attention.py:Temperature"},
    "attention class": {"attention": "my_attention.py:Linear"},
    "stem": {"stem": "my_stem.py:MyStem"},
    "ffn": {"ffn": "my_ffn.py:GatedFFN"},
}
POOLED, OF_TIMM = ("backbone by file", "live backbone"), ("timm name", "live timm model")
OF_MAPS = "gives pooled features only, no maps"
OF_POOLED = {"detect": OF_MAPS, "segment": OF_MAPS, "tokens": "token layout is unknown"}
OF_POOLED["relative positions"] = "is not a plain ViT"
REFUSED = {
    **{(kind, step): said for kind in POOLED for step, said in OF_POOLED.items()},
    ("attention class", "relative positions"): "cannot have relative positions",
    **dict.fromkeys(
        [(kind, "relative positions") for kind in OF_TIMM], "relative positions need an attention of this suite"
    ),
}
"""What a backbone cannot do: a part of the message that says so."""


@dataclass
class Own:
    """What someone brings, pretrained by labels."""

    kind: str
    given: dict[str, Any]
    run: Any
    folder: Path

    @property
    def weights(self) -> str:
        return str(self.run.weights)

    def evaluate(self, task: str, **given: Any) -> Any:
        return transfer.evaluate(task, backbone=self.weights, **(COMMON | given))[0]


def given_of(kind: str) -> dict[str, Any]:
    if kind in PARTS:
        return {"backbone": "tiny", **PARTS[kind]}
    if kind == "live timm model":
        return {"backbone": timm.create_model("test_vit", num_classes=0, dynamic_img_size=True)}
    if kind == "live backbone":
        import my_backbone

        return {"backbone": my_backbone.Net}
    return {"backbone": "my_backbone.py:Net"} if kind == "backbone by file" else {"backbone": "test_vit"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with the files of the guide."""
    folder = tmp_path_factory.mktemp("own")
    for name, text in files_in("docs/adding-a-part.md").items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("my_backbone", None)


@pytest.fixture(scope="module", params=[*PARTS, *POOLED, *OF_TIMM])
def own(request: pytest.FixtureRequest, folder: Path) -> Own:
    name, given = request.param.replace(" ", "_"), given_of(request.param)
    trained = transfer.pretrain("deit", **given, **COMMON, **FEW, name=name)[0]
    return Own(request.param, given, trained, folder)


def logged(own: Own) -> Any:
    return own.evaluate("linear", subset=24)


def images(own: Own) -> list[Path]:
    """Pictures with some detail, larger than the models'."""
    folder = own.folder / "pictures"
    folder.mkdir(exist_ok=True)
    names = [folder / f"{number}.png" for number in range(3)]
    for number, name in enumerate(names):
        pixels = np.random.default_rng(number).integers(0, 255, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((120, 90), Image.Resampling.BICUBIC).save(name)
    return names


def dino(own: Own) -> None:
    name = own.kind.replace(" ", "_") + "_dino"
    assert not transfer.pretrain("dino", **own.given, **COMMON, **FEW, name=name)[0].outcome.startswith("nonfinite")


def resumed(own: Own) -> None:
    """An interrupted pretraining ends bit for bit as the other one."""
    again: dict[str, Any] = {**own.given, **COMMON, **FEW, "name": own.kind.replace(" ", "_"), "out": "again"}
    again |= {"export_dir": "again"}
    with stopped_after(1), pytest.raises(KeyboardInterrupt):
        transfer.pretrain("deit", **again)
    assert transfer.pretrain("deit", **again)[0].record.export == own.run.record.export


def predicted(own: Own) -> None:
    """timm, with nothing but the export and its registration, gives the features of `predict`."""
    found = own.run.predict(images(own), features=True).arrays["features"]
    if own.kind == "live backbone":  # its class is no part of the export
        with pytest.raises(RuntimeError, match="Unknown model"):
            timm.create_model(f"local-dir:{own.weights}", pretrained=True)
        return
    model = timm.create_model(f"local-dir:{own.weights}", pretrained=True, num_classes=0).eval()
    transform: Any = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    with torch.no_grad():
        features = model(torch.stack([transform(Image.open(name)) for name in images(own)])).numpy()
    assert np.abs(features - found).max() < 1e-5


def exported(own: Own) -> None:
    """`torch.export` and ONNX take any number of images."""
    backbone = own.run.backbone().eval()
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        program = program_of(backbone, 32)
        written = torch.onnx.export(program, (torch.rand(2, 3, 32, 32),), dynamo=True, verbose=False)
        seven = torch.rand(7, 3, 32, 32)
        assert torch.allclose(program.module()(seven), backbone(seven), atol=1e-5)
    written.save(file := io.BytesIO())
    check_onnx(file.getvalue(), backbone, (3, 32, 32))


def swept(own: Own) -> None:
    """The commands of `bench` for a part are planned, with every model built; a whole backbone is a sweep's."""
    if own.kind.startswith("live"):
        pytest.skip("a sweep is made of commands, and a live module has no name in them")
    if own.kind in PARTS:
        words = [word for part, value in PARTS[own.kind].items() for word in (f"--{part}", value)]
        assert sweep(["bench", "--tier", "smoke", *words, "--dry-run", "--out", "sweeps"]) == 0
    else:
        step = {"pretrain": "deit", "backbone": own.given["backbone"], "dataset": "toy_digits", "seeds": 0}
        after = {"run": "knn", "after": "first", "dataset": "toy_digits", "options": {"smoke": True}}
        steps = {"first": step | {"options": {"smoke": True, **FEW}}, "then": after}
        (own.folder / "mine.yaml").write_text(json.dumps({"about": "one backbone", "steps": steps}))
        assert sweep(["mine.yaml", "--out", "sweeps"]) == 0


def reported(own: Own) -> None:
    logged(own)
    assert report(["runs", *MARKED, "--output", "report.html"]) == 0


def shared(own: Own) -> None:
    """A bundle is imported, verified and shown where the file is not."""
    logged(own)
    assert report(["bundle", "runs", *MARKED, "--output", f"{own.kind}.zip"]) == 0
    assert report(["import", f"{own.kind}.zip", "--out", "elsewhere"]) == 0
    moved = {file: file.rename(file.with_suffix(".gone")) for file in own.folder.glob("my_*.py")}
    try:
        assert verify(["elsewhere"]) == 0
        assert report(["elsewhere", *MARKED]) == 0
    finally:
        for file, gone in moved.items():
            gone.rename(file)


def conforms(own: Own) -> None:
    backbone = own.given["backbone"]
    parts = {name: value for name, value in own.given.items() if name != "backbone"}
    check_backbone(backbone, size=32, **parts).raise_if_failed()


def task(name: str, **given: Any) -> Callable[[Own], None]:
    def evaluated(own: Own) -> None:
        assert np.isfinite([*own.evaluate(name, **given).scores.values()]).all()

    return evaluated


STEPS: dict[str, Callable[[Own], None]] = {
    "knn": task("knn", subset=24),
    "reid": task("reid", subset=8, epochs=1),
    "detect": task("detect", subset=4, epochs=1),
    "relative positions": task("detect", subset=4, epochs=1, window=4, relative=True),
    "classify": task("classify"),
    "linear": task("linear", subset=24, epochs=1),
    "fewshot": task("fewshot"),
    "finetune": task("finetune", subset=24, epochs=1),
    "segment": task("segment", epochs=1),
    "tokens": task("tokens"),
    "dino": dino,
    "resume": resumed,
    "predict": predicted,
    "export": exported,
    "sweep": swept,
    "report": reported,
    "bundle": shared,
    "conformance": conforms,
}
EVERY = ("knn", "reid", "detect")
"""What each kind takes by default."""
OTHERS = [step for step in STEPS if step not in EVERY]


def test_a_live_class_and_its_file_are_one_training(folder: Path) -> None:
    """Both take images in [0, 1] as they are."""
    by_file, live = (
        transfer.pretrain("deit", **given_of(kind), **COMMON, **FEW, name="same", out=out, export_dir=out)[0]
        for out, kind in zip(("file", "live"), POOLED)
    )
    assert live.scores == by_file.scores
    assert [*map(np.mean, (live.record.backbone["mean"], live.record.backbone["std"]))] == [0, 1]
    assert by_file.record.backbone["mean"] == live.record.backbone["mean"]


def test_a_live_timm_model_with_another_module_is_no_model_of_timm(folder: Path) -> None:
    model = timm.create_model("test_vit", num_classes=0, dynamic_img_size=True)
    model.blocks[1].mlp.act = torch.nn.ReLU()  # whose tensors are the same
    run = transfer.pretrain("deit", backbone=model, name="changed", **COMMON, **FEW)[0]
    config = json.loads((Path(run.weights) / "config.json").read_text())
    assert config["architecture"] == "live:changed"
    assert transfer.evaluate("classify", backbone=model, weights=str(run.weights), name="changed", **COMMON)[0].scores


@pytest.mark.parametrize("step", [*EVERY, *(pytest.param(step, marks=pytest.mark.nightly) for step in OTHERS)])
def test_each_kind_in_each_step(step: str, own: Own) -> None:
    """It passes, or is refused in one line by a dry run as by the run, which leaves nothing."""
    if (own.kind, step) not in REFUSED:
        STEPS[step](own)
        return
    before = [*Path("runs").iterdir()]
    with pytest.raises(UserError, match=REFUSED[own.kind, step]) as refused:
        STEPS[step](own)
    assert "\n" not in str(refused.value)
    assert [*Path("runs").iterdir()] == before
