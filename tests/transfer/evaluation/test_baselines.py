"""`--baselines`: finished runs of other folders stand for those of a command, or their differences are named."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import transfer
from tests.transfer.sweep.test_runner import InThisProcess
from transfer.api import RunsFailed
from transfer.core.errors import UserError
from transfer.records.baselines import baseline_variants, copied_from, protocol_mismatch
from transfer.records.record import RunKey
from transfer.records.store import RECORD
from transfer.report.__main__ import main as transfer_report
from transfer.runs import Run, RunSet
from transfer.sweep.__main__ import main as transfer_sweep
from transfer.verify.__main__ import main as verify

SMOKE: dict[str, Any] = {"smoke": True, "threads": 1, "progress": False, "backbone": "tiny", "k": [5]}
SWEEP = """
vary: probe
steps:
  probe: {run: knn, backbone: tiny, dataset: toy_digits, seeds: [0], options: {smoke: true, threads: 1, k: [5]}}
"""


def probes(out: Path, **options: Any) -> RunSet:
    return transfer.evaluate("knn", out=out, **{**SMOKE, "feature_cache": out / "features", **options})


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of another folder."""
    return probes(tmp_path_factory.mktemp("theirs") / "runs", stem="conv")[0]


def test_a_run_with_the_same_key_is_copied(theirs: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = theirs.folder.parent
    (tmp_path / theirs.run_id).mkdir()
    (tmp_path / theirs.run_id / "options.yaml").write_text("of a run that was interrupted")
    run = probes(tmp_path, stem="conv", baselines=[folder], progress=True)[0]
    assert verify([str(tmp_path)]) == 0
    assert (run.folder / RECORD).read_bytes() == (theirs.folder / RECORD).read_bytes()
    assert copied_from(run.folder) == str(folder)
    assert f"{run.run_id}: has a record, reused (copied from {folder})" in capsys.readouterr().err
    assert not copied_from(theirs.folder)


def test_a_damaged_baseline_is_not_copied(theirs: Run, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged" / theirs.run_id
    shutil.copytree(theirs.folder, damaged)
    (damaged / "outcomes.npz").write_bytes(b"")
    with pytest.raises(RunsFailed, match=re.escape(f"{damaged}: outcomes.npz: not of the size")):
        probes(tmp_path / "ours", stem="conv", baselines=[damaged.parent])
    assert not (tmp_path / "ours" / theirs.run_id / RECORD).exists()


def test_another_protocol_is_run_and_its_differences_are_named(theirs: Run, tmp_path: Path) -> None:
    run = probes(tmp_path, stem="conv", k=[7], baselines=[theirs.folder.parent])[0]
    assert not copied_from(run.folder)
    (note,) = [note for note in run.record.notes if note.startswith("baselines: ")]
    assert note.endswith(f"the nearest, {theirs.run_id}, has options k 5 there, 7 here")


def test_a_part_and_a_seed_are_no_difference_of_protocol(theirs: Run, tmp_path: Path) -> None:
    run = probes(tmp_path, stem="patchify", seeds=[1], baselines=[theirs.folder.parent])[0]
    assert [note for note in run.record.notes if "baselines" in note] == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"device_type": None}, "device_type cpu there, cuda here"),
        ({"eval_precision": "bf16"}, "eval_precision fp32 there, bf16 here"),
        ({"task_version": 0}, "task_version {task_version} there, 0 here"),
        ({"dataset": {"digest": "0"}}, "dataset digest {dataset[digest]} there, 0 here"),
    ],
)
def test_another_device_precision_version_or_data_is_named(theirs: Run, changed: dict[str, Any], named: str) -> None:
    content = dict(theirs.record.run_key_content)
    for name, value in changed.items():
        content[name] = content[name] | value if isinstance(value, dict) else value
    content = {name: value for name, value in content.items() if value is not None or name != "device_type"}
    text = protocol_mismatch([theirs.folder.parent], RunKey(content), "knn")
    assert text.endswith(f"has {named.format(**theirs.record.run_key_content)}")


def test_a_sweep_runs_its_own_variant_alone(theirs: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = theirs.folder.parent
    assert baseline_variants([folder], ["stem"]) == ["stem=conv"]
    (tmp_path / "mine.yaml").write_text(SWEEP)
    words = ["--stem", "patchify", "--against", str(folder), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert transfer_sweep([str(tmp_path / "mine.yaml"), *words]) == 0
    copied = [copied_from(run) for run in sorted((tmp_path / "out" / "runs").iterdir())]
    assert sorted(copied) == ["", str(folder)]
    said = capsys.readouterr().err
    assert f"1 of 2 runs copied from {folder}" in said
    assert said.count("(reused)") == 1
    assert "Where the runs come from" in (tmp_path / "out" / "report.html").read_text()


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of sweeps start no processes."""
    monkeypatch.setattr("transfer.sweep.__main__._launcher", lambda *_: InThisProcess())


@pytest.mark.usefixtures("_in_this_process")
def test_a_sweep_says_first_why_nothing_is_copied(
    theirs: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = theirs.folder.parent
    (tmp_path / "mine.yaml").write_text(SWEEP.replace("[5]", "[7]"))
    words = ["--stem", "patchify", "--against", "conv", str(folder), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert transfer_sweep([str(tmp_path / "mine.yaml"), *words]) == 0
    lines = capsys.readouterr().err.splitlines()
    place = lines.index(f"0 of 2 runs copied from {folder}")
    assert lines[place + 1].endswith("has options k 5 there, 7 here")
    assert place < min(number for number, line in enumerate(lines) if line.endswith("started"))
    assert "options k 5 there, 7 here" in (tmp_path / "out" / "report.html").read_text().partition("<script")[0]


@pytest.mark.usefixtures("_in_this_process")
def test_a_bundle_is_imported_and_its_other_variants_are_compared_with(
    theirs: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probes(tmp_path / "runs", stem="patchify")
    file, out = tmp_path / "peers.zip", tmp_path / "out"
    folders = [str(theirs.folder.parent), str(tmp_path / "runs")]
    assert transfer_report(["bundle", *folders, "--smoke", "--dirty", "--output", str(file)]) == 0
    (tmp_path / "mine.yaml").write_text(SWEEP)
    words = ["--stem", "conv", "--against", str(file), "--out", str(out), "--workers", "1"]
    assert transfer_sweep([str(tmp_path / "mine.yaml"), *words, "--dry-run"]) == 0
    assert f"2 of 2 runs copied from {out / 'baselines' / 'peers'}" in capsys.readouterr().out
    assert transfer_sweep([str(tmp_path / "mine.yaml"), *words]) == 0
    assert {copied_from(run) for run in (out / "runs").iterdir()} == {str(out / "baselines" / "peers")}
    assert verify([str(out / "runs")]) == 0


def test_a_pretraining_counts_with_its_weights_unless_none_are_saved(tmp_path: Path) -> None:
    options: dict[str, Any] = SMOKE | {"dataset": "toy_digits", "epochs": 1, "export_dir": tmp_path / "weights"}
    del options["k"]
    theirs = tmp_path / "theirs"
    (run,) = transfer.pretrain("cifar_deit", out=theirs, **options, save_weights="none")
    with pytest.raises(UserError, match=r"made with --save-weights none; delete .* to train it again"):
        transfer.pretrain("cifar_deit", out=theirs, **options)
    copied = transfer.pretrain("cifar_deit", out=tmp_path / "none", **options, save_weights="none", baselines=[theirs])
    assert copied_from(copied[0].folder) == str(theirs)
    (ours,) = transfer.pretrain("cifar_deit", out=tmp_path / "ours", **options, baselines=[theirs])
    assert (ours.folder / "export" / "model.safetensors").exists()
    assert [note for note in ours.record.notes if note.startswith("baselines: ")] == [
        f"baselines: {theirs} has this run without its weights; --save-weights none copies it nevertheless"
    ]
    assert ours.record.scores == run.record.scores
