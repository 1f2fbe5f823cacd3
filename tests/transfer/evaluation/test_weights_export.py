"""Exports are published whole, never over another run's; weights that come with the suite."""

import hashlib
import json
from pathlib import Path

import pytest
import timm
import torch

import transfer
from backbones.backbone import create
from backbones.spec import resolve
from tests.runs import record
from tests.ship import ship
from tests.transfer.core.test_files import files_of_at_most
from transfer.cli.options import PretrainRunOptions
from transfer.core import exports
from transfer.core.errors import MissingInput, UserError
from transfer.evaluation.weights_export import check_target, publish, target_of
from transfer.pretrain import main as pretrain
from transfer.run import main as run
from transfer.verify.checks import check_files


def exported(folder: Path, run_key: str, weights: bytes = b"weights", **about: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    content = {"run": "pretrain-x", "identity": run_key, "options": {"lr": 0.1, "epochs": 2}, **about}
    (folder / "pretrain.json").write_text(json.dumps(content))
    return folder


def test_several_seeds_go_to_folders_of_their_own(tmp_path: Path) -> None:
    run = PretrainRunOptions(seeds=(0, 1), name="mine", export_dir=tmp_path)
    assert [target_of(run, "tiny", seed) for seed in run.seeds] == [
        tmp_path / "mine" / f"seed{seed}" for seed in (0, 1)
    ]
    assert target_of(PretrainRunOptions(seeds=(1,), export_dir=tmp_path), "tiny", 1) == tmp_path / "tiny"
    exported(tmp_path / "mine", "one seed", seed=0)
    with pytest.raises(
        UserError, match=r"weights of one seed; move its files into .*mine/seed0, or use another --name"
    ):
        target_of(run, "tiny", 0)
    (exported(tmp_path / "all" / "seed0", "zero") / "config.json").touch()
    assert target_of(PretrainRunOptions(name="all", export_dir=tmp_path), "tiny", 3) == tmp_path / "all" / "seed3"


def test_what_was_there_survives_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    source = exported(tmp_path / "export", "new", b"new" * 100_000)
    target = exported(tmp_path / "weights" / "mine", "old", b"old")
    with files_of_at_most(1000), pytest.raises(UserError, match="cannot be written"):
        publish(source, target)
    assert (target / "model.safetensors").read_bytes() == b"old"
    publish(source, target)
    assert (target / "model.safetensors").read_bytes() == b"new" * 100_000
    assert [path.name for path in target.parent.iterdir()] == ["mine"]


def test_another_runs_export_is_in_the_way_and_the_difference_is_named(tmp_path: Path) -> None:
    target = exported(tmp_path / "weights" / "mine", "one")
    check_target(target, "one", {"lr": 0.1})
    exported(tmp_path / "two", "one", options={"lr": 0.1, "stem": "mine.py:Stem"})
    for given, options in ((target, {"epochs": 2}), (tmp_path / "two", {"stem": "/a/mine.py:Stem"})):
        with pytest.raises(UserError, match=r"pretrain-x: lr 0\.1 there, 0\.2 here\).*--name.*--replace"):
            check_target(given, "two", {"lr": 0.2, **options})


SMALL = ["--smoke", "--threads", "1", "--workers", "0", "--device", "cpu", "--subset", "40", "--size", "32"]
IMAGES = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs`, and in `shipped` what was made of its run."""
    folder = tmp_path_factory.mktemp("shipped")
    words = ["deit", "--backbone", "tiny", "--stem", "conv", *SMALL, "--resize", "32", "--epochs", "1"]
    words += ["--warmup-epochs", "0", "--batch-size", "32", "--validate-at"]
    assert pretrain([*words, "--out", str(folder / "runs"), "--export-dir", str(folder / "weights")]) == 0
    ship(transfer.load(folder / "runs")[0], "toy_conv", folder / "shipped")
    return folder


@pytest.fixture
def shipped(trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the weights `toy_conv`, as if the suite had them; the working directory is empty."""
    monkeypatch.setattr(exports, "SHIPPED_WEIGHTS", trained / "shipped")
    return trained / "shipped" / "toy_conv"


def test_a_task_takes_them_by_name_and_records_the_file_as_shipped(
    shipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["knn", "--backbone", "tiny", "--stem", "conv", "--weights", "toy_conv", *SMALL, "--out", "out"]
    assert run(words) == 0
    kept, content = record(Path("out")), (shipped / "export" / exports.WEIGHTS).read_bytes()
    assert kept.weights_id == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert kept.backbone["weights"] == kept.options["weights"] == "toy_conv", "a place on this machine"
    line = "weights toy_conv: tensors rounded to float16"
    assert line in kept.notes
    assert capsys.readouterr().err.count(line) == 1
    assert kept.origin["smoke"], "the training's marks"


def test_features_are_those_of_the_training_but_for_rounding(trained: Path, shipped: Path) -> None:
    ours = create("tiny", stem="conv", weights="toy_conv", img_size=32).eval()
    full = create("tiny", stem="conv", weights=str(trained / "weights" / "tiny"), img_size=32).eval()
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.float32}
    with torch.inference_mode():
        torch.testing.assert_close(ours.pooled(IMAGES), full.pooled(IMAGES), rtol=0, atol=0.02)
        theirs = timm.create_model(f"local-dir:{shipped}/export", pretrained=True, num_classes=0).eval()
        torch.testing.assert_close(theirs(ours.normalised(IMAGES)), ours.pooled(IMAGES))
    assert full.loaded
    assert not str(full.loaded)


def test_the_run_is_shipped_as_it_can_be_shared(trained: Path, shipped: Path) -> None:
    (before,), (after,) = transfer.load(trained / "runs"), transfer.load(shipped)
    assert after.scores == before.scores
    assert not check_files(shipped, after.record)[0]
    text = "".join(path.read_text() for path in shipped.rglob("*") if path.suffix in (".json", ".yaml", ".md"))
    assert str(trained) not in text
    card = (shipped / "export" / "README.md").read_text()
    assert "# toy_conv\n" in card
    assert "bundled synthetic data" in card
    assert str(before.record.export) in card


def test_what_the_working_directory_has_of_this_name_comes_first(shipped: Path, tmp_path: Path) -> None:
    assert exports.export_folder("toy_conv") == shipped / "export"
    with pytest.raises(MissingInput, match="did you mean 'toy_conv'"):
        create("tiny", weights="toy_cnv")
    (tmp_path / "toy_conv").mkdir()
    (tmp_path / "toy_conv" / exports.CONFIG).write_text(json.dumps({"architecture": "vit_tiny"}))
    assert exports.export_folder("toy_conv") == Path("toy_conv")


def test_each_that_the_suite_has_is_a_backbone_of_this_name() -> None:
    for name in exports.shipped_names():
        assert resolve(name).weights == name
        assert create(name, img_size=32).pooled(IMAGES).isfinite().all()
