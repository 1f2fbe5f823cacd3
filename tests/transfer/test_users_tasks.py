"""Tasks of the user's own, by path: the task of the guide from a folder of the user's, and faults in such files."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import transfer
from tests.documents import ROOT, files_in
from tests.runs import record
from transfer.core.settings import write_yaml
from transfer.experiments.published_rows import Paper, PublishedTable, Row, Value
from transfer.experiments.sweep_file import read_sweep
from transfer.report.__main__ import main as report
from transfer.report.published import table
from transfer.run import main
from transfer.verify.__main__ import main as verify

TASK = files_in("docs/adding-a-part.md")["my_task.py"]
NAME = "my_task.py:TASK"
FLAGS = ["--backbone", "tiny", "--weights", "random", "--dataset", "toy_digits", "--size", "32", "--threads", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's with the task of the guide, in which commands start."""
    (tmp_path / "my_task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly
def test_the_task_of_the_guide_beside_folders_of_the_same_names_as_ours(folder: Path) -> None:
    for name in ("tasks", "configs", "tests"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ValueError('not the suite')")
    command = [sys.executable, "-m", "transfer.run", NAME, *FLAGS]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    made = record(folder / "runs")
    assert made.scores["accuracy"] > 0.3  # chance is 0.1
    assert made.metrics["accuracy"] == {"unit": "fraction", "direction": "higher", "bounds": [0, 1], "averaged": False}
    digest = hashlib.sha256(TASK.encode()).hexdigest()
    assert made.user_code == {"task": {"file": f"{folder}/{NAME}", "sha256": digest}}
    assert made.run_key_content["user_code"] == {"task": digest}


@pytest.mark.nightly
def test_it_is_verified_and_found_like_any_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"backbone": "tiny", "weights": "random", "dataset": "toy_digits", "size": 32, "threads": 1}
    (run,) = transfer.evaluate(NAME, **given, progress=False)
    assert verify(["runs"]) == 0
    assert "1 of 1 runs are right" in capsys.readouterr().out
    assert main([str(folder / NAME), "--config", str(run.folder / "options.yaml")]) == 0  # the same run, which is found
    assert len(list(Path("runs").iterdir())) == 1


METRIC = """
from transfer.api import metric
@metric(direction="lower")
def missed(per_sample):
    return 1 - per_sample["accuracy"]
"""
CLAIM = {
    "id": "M1", "claim": "My stem is better", "where": "here", "kind": "difference", "expect": "a < b", "margin": 1,
    "runs": "task=nearest_mean", "a": "stem=Stem", "b": "stem=patchify", "metric": "missed", "seeds": 2, "needs": 2,
}  # fmt: skip
SWEEP = """
about: mine
steps:
  probe: {run: "my_task.py:TASK", backbone: tiny, dataset: toy_digits, seeds: [0, 1], options: {size: 32}}
tiers: {full: {}}
"""


@pytest.mark.nightly
def test_a_task_a_metric_and_a_claim_of_the_user_have_one_name_wherever_they_are_shown(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"my_stem.py": files_in("docs/adding-a-part.md")["my_stem.py"], "my_metric.py": METRIC, "mine.yaml": SWEEP}
    files |= {"claims.yaml": write_yaml({"title": "Mine", "about": "Of my own.", "claims": [CLAIM]})}
    for name, text in files.items():
        (folder / name).write_text(text)
    for stem in ("patchify", "my_stem.py:Stem"):
        assert main([NAME, *FLAGS, "--stem", stem, "--seeds", "0", "1", "--metric", "my_metric.py:missed"]) == 0
    capsys.readouterr()

    def shown(*words: str) -> str:
        assert report([words[0], "runs", "--dirty", *words[1:]]) == 0
        return " ".join(capsys.readouterr().out.split())

    both = [f"nearest_mean {name} on toy_digits" for name in ("accuracy", "missed")]
    assert "| tiny, Stem |" in shown("table", "--format", "markdown")
    pivot = shown("table", "--pivot", "--scores", "accuracy", "missed", "--format", "markdown")
    assert "| Stem |" in pivot
    assert all(name in pivot for name in both)
    assert "nearest_mean accuracy on `toy_digits`" in shown("compare", "--compare", "stem=Stem", "stem=patchify")
    page = shown("page")
    assert both[0] in page
    assert "Stem vs. patchify" in page
    claim = shown("claims", "--claims", "claims.yaml", "--format", "markdown")
    assert "stem=Stem vs. stem=patchify" in claim
    cells = tuple(Value("probe", "toy_digits", *of) for of in (("accuracy", "68"), ("missed", "32")))
    published = PublishedTable("mine", "1", "Probes", rows=[Row("patches", {"probe": {"stem": "patchify"}}, cells)])
    paper = Paper("mine", "Mine", "here", {"1": published})
    sweep = read_sweep("mine.yaml", "full")
    for name, value in {"table_of": published, "read_paper": paper, "_read_sweep": sweep}.items():
        monkeypatch.setattr(table, name, lambda *_, value=value: value)
    lines = table.paper_table(transfer.load("runs"), "mine", "1").rows
    assert [(line["metric"], line["own"]) for line in lines] == [("accuracy", "68"), ("missed", "32")]
    assert {*lines[0]["not comparable because"]} <= {"dirty"}  # where the suite's files are changed


def test_values_of_the_yaml_beside_it_and_its_sizes_of_smoke(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "my_task.yaml").write_text("dataset: [toy_digits]\npower: 0.5\n")
    assert main([NAME, "--backbone", "tiny", "--dry-run"]) == 0
    assert "power" not in capsys.readouterr().out  # only differences from the recipe are shown
    assert main([NAME, "--backbone", "tiny", "--smoke", "--dry-run"]) == 2
    (folder / "my_task.smoke.yaml").write_text("size: 32\n")
    assert main([NAME, "--backbone", "tiny", "--smoke", "--power", "2", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "power: 2.0" in printed
    assert "size: 32" in printed
    (folder / "my_task.yaml").write_text("powr: 0.5\n")
    assert main([NAME, "--backbone", "tiny"]) == 2
    assert f"{folder}/my_task.yaml: unknown option `powr`; did you mean 'power'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('float(outcomes["accuracy"].mean())', "7.0", "returned accuracy = 7.0, which is outside [0, 1]"),
        ('"nearest_mean"', '"knn"', "which is one of the suite; give yours a name of its own"),
        ("rows.double()", "rows.duble()", "at line {line}: AttributeError: 'Tensor' object has no attribute"),
        ("api.image_outcomes(dataset.val) | ", "", "wanted among them: `sample` [M]"),
    ],
)
def test_a_mistake_in_it_is_one_line(before: str, after: str, message: str, folder: Path, capsys) -> None:
    file = folder / "my_task.py"
    assert before in TASK
    text = TASK.replace(before, after)
    file.write_text(text)
    assert main([NAME, *FLAGS]) in (1, 2)
    error = capsys.readouterr().err
    line = next((n for n, content in enumerate(text.splitlines(), 1) if after and after in content), 0)
    assert message.replace("{line}", str(line)) in error
    assert "Traceback" not in error
    assert not list(folder.glob("runs/*/record.json"))
