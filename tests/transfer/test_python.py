"""Python goes the way of the command line: equal records, live modules, sets of runs, the guide's study."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import transfer
from backbones.backbone import create
from backbones.vit import export
from tests.documents import files_in
from tests.transfer.modules import TinyNet, Wide, tiny_net
from transfer.core.errors import DeviceLost
from transfer.core.files import ROOT
from transfer.core.live_modules import LiveModule
from transfer.engine.context import Context
from transfer.records.run_set import FRAME_COLUMNS
from transfer.run import main

SMOKE: dict[str, Any] = {"smoke": True, "threads": 1, "progress": False}
SHORT: dict[str, Any] = {**SMOKE, "epochs": 1, "warmup_epochs": 0}


def test_records_are_those_of_the_command_line(tmp_path: Path) -> None:
    """The second way finds the record of the first; made apart, both have equal keys and scores."""
    flags = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--epochs", "2", "--warmup-epochs", "0"]
    flags += ["--lr", "0.03", "--num-identities", "4", "--no-flip-test", "--stem", "patchify", "--seeds", "0", "1"]
    assert main([*flags, "--out", str(tmp_path / "command")]) == 0
    runs = transfer.evaluate(
        "reid", backbone="tiny", lr=3e-2, num_identities=4, flip_test=False, stem="patchify", seeds=[0, 1],
        out=tmp_path / "python", **{**SHORT, "epochs": 2},
    )  # fmt: skip
    files = [path / "record.json" for path in (tmp_path / "command").iterdir()]
    by_command = {content["run_id"]: content for content in (json.loads(file.read_bytes()) for file in files)}
    assert {run.run_id for run in runs} == by_command.keys()
    assert len(runs) == 2
    for run in runs:
        assert run.scores == by_command[run.run_id]["scores"]
        assert run.record.run_key == by_command[run.run_id]["run_key"]


def test_a_live_module_is_trained_as_a_copy_and_found_again(tmp_path: Path) -> None:
    module = tiny_net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    runs = transfer.evaluate("reid", backbone=module, name="mine", seeds=[0, 1], out=tmp_path, **SHORT)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [run.record.backbone["name"] for run in runs] == ["mine", "mine"]
    assert runs[0].record.weights_id == runs[1].record.weights_id
    written = (runs[0].folder / "record.json").stat().st_mtime_ns
    again = transfer.evaluate("reid", backbone=tiny_net(), name="mine", seeds=[0, 1], out=tmp_path, **SHORT)
    assert [run.run_id for run in again] == [run.run_id for run in runs]
    assert (again[0].folder / "record.json").stat().st_mtime_ns == written


def test_the_backbone_of_a_run_that_trains_none_is_the_one_that_it_used(tmp_path: Path) -> None:
    (run,) = transfer.evaluate("knn", backbone="tiny", weights="random", seeds=[3], out=tmp_path, **SMOKE)
    used, given = run.model().state_dict(), run.backbone().state_dict()
    assert used.keys() == given.keys()
    assert all(torch.equal(value, given[name]) for name, value in used.items())


def test_weights_that_were_replaced_are_not_those_that_a_run_used(tmp_path: Path) -> None:
    export(create("tiny", weights="random"), tmp_path / "weights")
    (run,) = transfer.evaluate("knn", backbone="tiny", weights=tmp_path / "weights", out=tmp_path / "runs", **SMOKE)
    run.backbone()
    export(create("tiny", weights="random"), tmp_path / "weights")
    with pytest.raises(transfer.UserError, match="not the weights of knn-"):
        run.backbone()


def test_modules_of_one_name_with_other_weights_or_source_do_not_mix(tmp_path: Path) -> None:
    class Other(TinyNet):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return -super().forward(images)

    other = Other()
    other.load_state_dict(tiny_net().state_dict())
    options = {"dataset": "toy_cub200", "out": tmp_path, **SMOKE}
    modules = (tiny_net(0), tiny_net(1), other, TinyNet)
    runs = [transfer.evaluate("fewshot", backbone=module, name="mine", **options)[0] for module in modules]
    assert len({run.run_id for run in runs}) == 4
    assert runs[0].scores == runs[2].scores  # a sign changes no linear probe
    assert runs[3].record.weights_id == "random"


def test_what_one_file_makes_in_several_ways_does_not_mix() -> None:
    ways = [TinyNet, Wide, lambda: Wide(8), lambda: Wide(9), Wide(8), Wide(8, 2.0)]
    assert len({LiveModule("mine", source).source_digest for source in ways}) == len(ways)
    assert LiveModule("mine", Wide).source_digest == LiveModule("mine", Wide).source_digest


def test_a_model_with_forward_features_alone_is_pooled_over_its_tokens(tmp_path: Path) -> None:
    class Tokens(nn.Module):
        def __init__(self, inner: TinyNet) -> None:
            super().__init__()
            self.inner = inner

        def forward_features(self, images: torch.Tensor) -> torch.Tensor:
            return self.inner.stem(images).flatten(2).transpose(1, 2)

    class Pooled(Tokens):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.forward_features(images).mean(1)

    options = {"dataset": "toy_cub200", "out": tmp_path, **SMOKE}
    first, second = (transfer.evaluate("fewshot", backbone=kind(tiny_net()), **options)[0] for kind in (Tokens, Pooled))
    assert first.scores == second.scores


def test_mistakes_have_the_text_of_the_command_line(tmp_path: Path) -> None:
    mistakes: dict[str, dict[str, Any]] = {
        "unknown option 'lrr'; did you mean 'lr'": {"lrr": 1},
        "--lr must be FLOAT, got 'fast'": {"lr": "fast"},
        "dry_run has no use in Python": {"dry_run": True},
    }
    for message, options in mistakes.items():
        with pytest.raises(transfer.UsageError, match=rf"evaluate\(\): {message}"):
            transfer.evaluate("reid", backbone="tiny", out=tmp_path, **SMOKE | options)
    assert not list(tmp_path.iterdir())


def test_each_run_has_its_own_peak_and_none_follows_a_lost_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: Any) -> None:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\nCUDA kernel errors might be ...")

    resets: list[torch.device] = []
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", resets.append)
    monkeypatch.setattr(Context, "on_gpu", True)
    options: dict[str, Any] = {**SHORT, "seeds": [0, 1], "workers": 0, "epochs": 0}
    transfer.evaluate("reid", backbone=TinyNet(), name="mine", out=tmp_path / "good", **options)
    assert len(resets) == 2
    monkeypatch.setattr("tasks.reid.training._rank", lose)
    with pytest.raises(DeviceLost, match=r"unusable in this process.*CUDA error: device-side assert"):
        transfer.evaluate("reid", backbone=TinyNet(), name="mine", out=tmp_path / "lost", **options)
    assert len(resets) == 3


def test_a_run_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    trained: list[nn.Module] = []

    class Fails(TinyNet):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if self.training and all(module is not self for module in trained):
                trained.append(self)
            if len(trained) == 2:
                bytearray(2**62)
            return super().forward(images)

    with pytest.raises(transfer.RunsFailed, match="out of memory on this machine: set more --grad-acc") as raised:
        transfer.evaluate("reid", backbone=Fails(), name="mine", seeds=[0, 1], out=tmp_path, **SHORT)
    assert [run.seed for run in raised.value.runs] == [0]
    (failure,) = raised.value.failures
    assert type(failure.error) is transfer.MachineError
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for stem in ("conv", "patchify"):
        transfer.evaluate("reid", backbone="tiny", stem=stem, seeds=[0, 1], out=out, **SHORT)
    transfer.evaluate("reid", backbone="tiny", lr=1e30, out=out, **SHORT)
    transfer.evaluate("fewshot", backbone=tiny_net(), name="mine", dataset="toy_cub200", out=out, **SMOKE)
    return out


def test_the_frame_and_its_file_have_every_score_and_a_row_for_a_failed_training(folder: Path, tmp_path: Path) -> None:
    runs = transfer.load(folder)
    frame = runs.to_frame()
    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == FRAME_COLUMNS
    assert len(frame) == sum(max(len(run.scores), 1) for run in runs)
    for run in runs:
        rows = frame[frame.run_id == run.run_id].set_index("metric")
        assert rows.value.dropna().to_dict() == run.scores
    failed = frame[~frame.outcome.isin(("completed", "not_judged"))]
    assert failed.metric.tolist() == ["mAP"]
    assert failed.value.isna().all()
    assert frame.groupby("run_id").primary.sum().eq(1).all()
    runs.to_parquet(tmp_path / "runs.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "runs.parquet"), frame, check_dtype=False)


def test_the_guide_names_every_column() -> None:
    guide = (ROOT / "docs" / "guide" / "python.md").read_text()
    assert [name for name in FRAME_COLUMNS if f"`{name}`" not in guide] == []


def test_filter_takes_fields_and_lists_of_values(folder: Path, tmp_path: Path) -> None:
    runs = transfer.load(folder)
    assert len(runs.filter(task="reid", lr=0.05)) == 4
    assert {run.seed for run in runs.filter(stem="patchify")} == {0, 1}
    assert len(runs[:2] + runs[1:3]) == 3
    copied = shutil.copytree(runs[0].folder, tmp_path / runs[0].run_id)
    assert len(runs + transfer.load(copied)) == len(runs), "a copy is the same run"
    assert len(runs.filter(task="reid", stem=["conv", "patchify"], seed=0)) == 3
    with pytest.raises(transfer.UsageError, match="unknown field 'steem'; did you mean 'stem'"):
        runs.filter(steem="conv")


STUDY = files_in("docs/guide/python.md")["study.py"]


def test_a_study_takes_at_most_twelve_lines() -> None:
    compile(STUDY, "study.py", "exec")
    assert len([line for line in STUDY.splitlines() if line.strip() and not line.startswith("#")]) <= 12


@pytest.mark.nightly
def test_the_study_of_the_guide_runs(here: Path) -> None:
    """With one seed instead of two and short trainings, all else as it stands there."""
    few: dict[str, object] = {"few": {"reid": {"epochs": 1}, "linear": {"epochs": 1}, "fewshot": {}}}
    names = dict(few)
    script = STUDY
    for long, short in (("seeds=[0, 1]", "seeds=[0], **few[task]"), ("name=stem", "name=stem, epochs=3")):
        assert long in script
        script = script.replace(long, short)
    exec(script, names)
    runs, table = names["runs"], names["table"]
    assert isinstance(runs, transfer.RunSet)
    assert {run.record.task for run in runs} == {"reid", "fewshot", "linear"}
    weights = {(run.record.backbone["stem"], run.record.weights_id) for run in runs}
    assert len({weights_id for _, weights_id in weights}) == 2, "each stem has the weights of its own pretraining"
    assert table.to_frame()[["difference", "low", "high"]].astype(float).notna().all(axis=None)
    written = {path: path.stat().st_mtime_ns for path in here.rglob("record.json")}
    assert len(written) == len(runs) + 2, "those of the tasks and of two pretrainings"
    exec(script, dict(few))
    assert {path: path.stat().st_mtime_ns for path in here.rglob("record.json")} == written
