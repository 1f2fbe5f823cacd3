"""The sweep command: its arguments, and small sweeps from end to end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.transfer.data.layouts import write_folders
from tests.transfer.sweep.test_runner import CLASSIFY, PRETRAIN, QUICK, InThisProcess
from transfer.core.settings import write_yaml
from transfer.records.store import Store
from transfer.sweep.__main__ import main

Captured = pytest.CaptureFixture[str]

MISTAKES = {
    "bench --tier smok --stem my.py:LapStm --against convv --tasks reidd --set reid.lrr=1 pretrain.epoch=1": [
        "did you mean 'LapStem'",
        "unknown stem 'convv'; did you mean 'conv'",
        "unknown tier 'smok'; did you mean 'smoke'",
        "unknown task 'reidd'; did you mean 'reid'",
        "--set reid.lrr=1: unknown option 'lrr'; did you mean 'lr'",
        "--set pretrain.epoch=1: unknown option 'epoch'; did you mean 'epochs'",
    ],
    "demmo": ["did you mean 'demo'"],
    "--tier smoke": ["the sweep comes first"],
    "bench --tier smoke --against conv": ["use --stem, --attention or --ffn"],
    "bench --tier smoke --stem conv --attention relu --against reluu": ["did you mean 'relu'"],
    "bench --stem conv": ["add --tier smoke (bundled data, in minutes), or"],
    "demo --stem conv": ["--stem: sweep demo has no variants to compare; use bench"],
    "demo --equal flops": ["--equal: sweep demo has no variants to compare; use bench"],
}


def test_the_shipped_sweeps_are_listed(capsys: Captured) -> None:
    assert main(["--list"]) == 0
    assert {"demo", "bench", "scaled_relu_table4"} <= {*capsys.readouterr().out.split()}


def test_all_mistakes_are_reported_once_and_together_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text("class LapStem: pass\n")
    code = f"from transfer.sweep.__main__ import main\nfor line in {[*MISTAKES]}: print(main(line.split()))\n"
    code += "import sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["2"] * len(MISTAKES)), done.stderr
    said = done.stderr.split("error: ")[1:]
    for wanted, text in zip(MISTAKES.values(), said, strict=True):
        assert [text.count(part) for part in wanted] == [1] * len(wanted), text


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> InThisProcess:
    launcher = InThisProcess()
    monkeypatch.setattr("transfer.sweep.__main__._launcher", lambda *_: launcher)
    return launcher


LACKING = [
    ("anchors_classification --tasks classify", "imagenet1k", "hf download timm/deit_small_patch16_224.fb_in1k"),
    ("anchors_classification --tasks fewshot", "dataset timm/oxford-iiit-pet", "timm/vit_small_patch16_224.dino"),
    ("anchors_reid --tasks trained --set trained.weights=market.pth", "Market-1501-v15.09.15.zip", "market.pth"),
    ("anchors_detection --tasks vitdet", "val2017.zip", "hf download timm/vit_base_patch16_224.mae"),
]


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize(("command", "data", "weights"), LACKING)
def test_a_kit_names_missing_inputs_first(here: Path, capsys: Captured, command: str, data: str, weights: str) -> None:
    (here / "empty").mkdir()
    assert main([*command.split(), "--data", "empty"]) == 1
    said = capsys.readouterr().err.partition("error: ")[2]
    assert data in said
    assert weights in said
    assert not (here / "sweeps").exists(), "no job was started"


@pytest.mark.usefixtures("launcher")
def test_a_sweep_runs_what_it_can_and_ends_with_what_is_missing(tmp_path: Path, capsys: Captured) -> None:
    path, out = tmp_path / "mine.yaml", tmp_path / "out"
    knn = CLASSIFY | {"run": "knn", "dataset": ["toy_digits", "cub200"]}
    lost = PRETRAIN | {"dataset": "imagenet1k"}
    path.write_text(write_yaml({"steps": {"pretrain": PRETRAIN, "knn": knn, "lost": lost}}))
    command = [str(path), "--out", str(out), "--data", str(tmp_path / "data")]
    listed = "not run: knn on cub200, seed 0: cub200: the dataset was not found"
    (tmp_path / "data" / "cub200").mkdir(parents=True)  # empty

    for more in (["--on-missing", "stop"], ["--dry-run"]):
        assert main([*command, *more]) == 1
        assert listed in capsys.readouterr().err.partition("error: ")[2]
        assert not out.exists()
    assert main([*command, "--set", "pretrain.epochs=x"]) == 2
    said = capsys.readouterr().err.partition("error: ")[2]
    assert "steps.pretrain: --epochs must be INT|FLOAT, got 'x'" in said
    assert "cub200: the dataset was not found" in said
    assert "imagenet1k: the dataset was not found" in said
    assert main(command) == 1
    said = capsys.readouterr()
    assert re.search(r"^4 jobs: .*\b2 missing", said.out, re.MULTILINE)
    end = said.err.partition("page: ")[2]
    assert listed in end
    assert "hf download --repo-type dataset bentrevett/caltech-ucsd-birds-200-2011" in end


def test_a_dry_run_opens_datasets_and_loads_weights(tmp_path: Path, capsys: Captured) -> None:
    write_folders(tmp_path / "set", train=1, val=1)
    (tmp_path / "mine.yaml").write_text("format: image_folder\nroot: set\ncounts: {train: {images: 7}}\n")
    (tmp_path / "empty.pth").touch()
    words = [f"classify.dataset={tmp_path / 'mine.yaml'}", f"classify.weights={tmp_path / 'empty.pth'}"]
    assert main(["anchors_classification", "--tasks", "classify", "--dry-run", "--set", *words]) == 1
    said = capsys.readouterr().err.partition("error: ")[2]
    assert "mine: the dataset is incomplete:\n  train images: expected 7, found 3" in said
    assert "empty.pth: is empty" in said


def test_a_sweep_ends_in_a_page_and_runs_jobs_once(tmp_path: Path, capsys: Captured, launcher: InThisProcess) -> None:
    path, out = tmp_path / "mine.yaml", tmp_path / "out"
    pretrain = PRETRAIN | {"options": {**QUICK, "epochs": 2}, "grid": {"lr": [1e-3, 1e6]}}
    steps = {"pretrain": pretrain, "classify": CLASSIFY}
    report = {"heatmap": ["lr", "warmup_epochs"], "compare": [["stem=conv", "stem=patchify"]]}
    path.write_text(write_yaml({"about": "two rates", "steps": steps, "report": report}))
    assert main([str(path), "--out", str(out)]) == 3, "a training run failed"
    said = capsys.readouterr()
    ended = "4 jobs: 1 not_judged, 1 nonfinite, 1 completed, 1 blocked"
    assert ended in said.out
    for text in ("[4/4]", "training failed, nonfinite at step", "blocked: pretrain on toy_digits, lr 1000000"):
        assert text in said.err
    records = {run.record.task: run.record for run in Store(out / "runs").runs()[0] if not run.record.training_failed}
    assert records["classify"].weights_id == records["pretrain-supervised"].export
    assert "pretrain-supervised: stability map" in said.out
    assert "not shown: " in said.out, "what cannot be compared is said and stops nothing"
    page = (out / "report.html").read_text()
    assert "two rates" in page
    assert page.count("<svg") >= 2
    assert (main([str(path), "--out", str(out)]), len(launcher.words)) == (3, 3), "reused without a process"
    assert ended in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.usefixtures("launcher")
def test_variants_end_in_a_few_lines_and_the_folder_can_be_moved(tmp_path: Path, capsys: Captured) -> None:
    stem, path, out = tmp_path / "my.py", tmp_path / "mine.yaml", tmp_path / "out"
    stem.write_text("from torch import nn\nLapStem = lambda d, p: nn.Conv2d(3, d, p, p)\n")
    knn = CLASSIFY | {"run": "knn"}
    path.write_text(write_yaml({"vary": "pretrain", "steps": {"pretrain": PRETRAIN, "classify": CLASSIFY, "knn": knn}}))
    command = [str(path), "--stem", f"{stem}:LapStem", "--against", "patchify", "--seeds", "0", "--tasks", "knn"]
    assert main([*command, "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "4 jobs (2 pretraining, 2 on tasks), 0 finished earlier" in said.err
    assert "pretrain: 2 x cifar_deit on toy_digits, seed 0" in said.err
    assert "/4] knn on toy_digits, patchify, seed 0: started" in said.err
    assert said.out.count("\nCost: ") == 1 <= len(said.out.splitlines()) < 18
    assert re.search(r"\n- knn top1 on `toy_digits`: [\d.]+ % vs. [\d.]+ %, [+-][\d.]+ points \[", said.out)
    assert "same images, epochs and learning rates" in said.out.partition("\nCost: 0.")[0]
    page = (out / "report.html").read_text().partition("<main")[2]
    assert page.index(">Scores by variant<") < page.index(">Jobs<") < page.index("all metrics<")
    assert "\n| LapStem " in said.out
    assert "| params (M) |   GFLOPs | core hours |" in said.out
    assert "add --seeds 0 1 2 to the command" in said.out
    moved, other = tmp_path / "moved", tmp_path / "elsewhere" / "my.py"
    other.parent.mkdir()
    stem.rename(other)
    out.rename(moved)
    command[2] = f"{other}:LapStem"
    assert main([*command, "--out", str(moved)]) == 0
    assert capsys.readouterr().err.count("reused") == 4
    assert main([*command, "--out", str(moved), "--equal", "flops"]) == 0
    said = capsys.readouterr()
    assert said.err.count("reused") == 4, "both stems cost the same, so that their epochs are"
    assert f"FLOPs in pretraining, not the same epochs (stem={command[2]} 2, stem=patchify 2):" in said.out
    assert "in pretraining the same FLOPs in place of the same epochs" in (moved / "report.html").read_text()
