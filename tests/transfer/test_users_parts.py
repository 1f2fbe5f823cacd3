"""Tasks and pretraining methods of the user's own, by path: those of the guide, and faults in them."""

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
from transfer.pretrain import main as pretrain
from transfer.report.__main__ import main as report
from transfer.report.published import table
from transfer.run import main
from transfer.verify.__main__ import main as verify

Captured = pytest.CaptureFixture[str]

FILES = files_in("docs/adding-a-part.md")
TASK = FILES["my_task.py"]
NAME = "my_task.py:TASK"
FLAGS = ["--backbone", "tiny", "--weights", "random", "--dataset", "toy_digits", "--size", "32", "--threads", "1"]


@pytest.fixture
def folder(here: Path) -> Path:
    """A folder of the user's with the task and the method of the guide, in which commands start."""
    for name in ("my_task.py", "my_method.py", "my_method.yaml"):
        (here / name).write_text(FILES[name])
    return here


def run_alone(folder: Path, *words: str) -> None:
    """Run a command from there, in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *words]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.nightly
def test_the_task_of_the_guide_beside_folders_of_the_same_names_as_ours(folder: Path) -> None:
    for name in ("tasks", "configs", "tests"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ValueError('not the suite')")
    run_alone(folder, "transfer.run", NAME, *FLAGS)
    made = record(folder / "runs")
    assert made.scores["accuracy"] > 0.3  # chance is 0.1
    assert made.metrics["accuracy"] == {"unit": "fraction", "direction": "higher", "bounds": [0, 1], "averaged": False}
    digest = hashlib.sha256(TASK.encode()).hexdigest()
    assert made.user_code == {"task": {"file": f"{folder}/{NAME}", "sha256": digest}}
    assert made.run_key_content["user_code"] == {"task": digest}


@pytest.mark.nightly
def test_it_is_verified_and_found_like_any_other(folder: Path, capsys: Captured) -> None:
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
    "runs": "task=nearest_mean", "a": "stem=MyStem", "b": "stem=patchify", "metric": "missed", "seeds": 2, "needs": 2,
}  # fmt: skip
SWEEP = """
about: mine
steps:
  probe: {run: "my_task.py:TASK", backbone: tiny, dataset: toy_digits, seeds: [0, 1], options: {size: 32}}
tiers: {full: {}}
"""


@pytest.mark.nightly
def test_parts_of_the_user_have_one_name(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"my_stem.py": files_in("docs/adding-a-part.md")["my_stem.py"], "my_metric.py": METRIC, "mine.yaml": SWEEP}
    files |= {"claims.yaml": write_yaml({"title": "Mine", "about": "Of my own.", "claims": [CLAIM]})}
    for name, text in files.items():
        (folder / name).write_text(text)
    for stem in ("patchify", "my_stem.py:MyStem"):
        assert main([NAME, *FLAGS, "--stem", stem, "--seeds", "0", "1", "--metric", "my_metric.py:missed"]) == 0
    capsys.readouterr()

    def shown(*words: str) -> str:
        assert report([words[0], "runs", "--dirty", *words[1:]]) == 0
        return " ".join(capsys.readouterr().out.split())

    both = [f"nearest_mean {name} on toy_digits" for name in ("accuracy", "missed")]
    assert "| tiny, MyStem |" in shown("table", "--format", "markdown")
    pivot = shown("table", "--pivot", "--scores", "accuracy", "missed", "--format", "markdown")
    assert "| MyStem |" in pivot
    assert all(name in pivot for name in both)
    assert "nearest_mean accuracy on `toy_digits`" in shown("compare", "--compare", "stem=MyStem", "stem=patchify")
    page = shown("page")
    assert both[0] in page
    assert "MyStem vs. patchify" in page
    claim = shown("claims", "--claims", "claims.yaml", "--format", "markdown")
    assert "stem=MyStem vs. stem=patchify" in claim
    cells = tuple(Value("probe", "toy_digits", *of) for of in (("accuracy", "68"), ("missed", "32")))
    published = PublishedTable("mine", "1", "Probes", rows=[Row("patches", {"probe": {"stem": "patchify"}}, cells)])
    paper = Paper("mine", "Mine", "here", {"1": published})
    sweep = read_sweep("mine.yaml", "full")
    for name, value in {"table_of": published, "read_paper": paper, "_read_sweep": sweep}.items():
        monkeypatch.setattr(table, name, lambda *_, value=value: value)
    lines = table.paper_table(transfer.load("runs"), "mine", "1").rows
    assert [(line["metric"], line["own"]) for line in lines] == [("accuracy", "68"), ("missed", "32")]
    assert {*lines[0]["not comparable because"]} <= {"dirty"}  # where the suite's files are changed


def test_values_of_the_yaml_beside_it_and_its_sizes_of_smoke(folder: Path, capsys: Captured) -> None:
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


MISTAKES = [
    ('float(outcomes["accuracy"].mean())', "7.0", "returned accuracy = 7.0, which is outside [0, 1]"),
    ('"nearest_mean"', '"knn"', "which is a name of the suite; choose another"),
    ("rows.double()", "rows.duble()", "at line {line}: AttributeError: 'Tensor' object has no attribute"),
    ("api.image_outcomes(dataset.val) | ", "", "wanted among them: `sample` [M]"),
]


@pytest.mark.parametrize(("before", "after", "message"), MISTAKES)
def test_a_mistake_in_it_is_one_line(before: str, after: str, message: str, folder: Path, refused) -> None:
    file = folder / "my_task.py"
    assert before in TASK
    text = TASK.replace(before, after)
    file.write_text(text)
    line = next((n for n, content in enumerate(text.splitlines(), 1) if after and after in content), 0)
    assert message.replace("{line}", str(line)) in refused(main, [NAME, *FLAGS])


METHOD = "my_method.py:METHOD"
SMOKE = ["--backbone", "tiny", "--smoke", "--threads", "1"]
QUICK = [*SMOKE, "--epochs", "1", "--warmup-epochs", "0"]


@pytest.mark.nightly
def test_the_method_of_the_guide(folder: Path, capsys: Captured) -> None:
    """It learns, in a process of its own beside the user's folders; what it exports is what tasks load."""
    for name in ("tasks", "configs", "backbones"):
        (folder / name).mkdir()
    run_alone(folder, "transfer.pretrain", METHOD, *SMOKE, "--tokens-at", "-1")
    made = record(folder / "runs")
    assert made.details["tokens_at"] == [4]
    assert made.task == "pretrain-rotation"
    assert made.scores["rotation_accuracy"] > 0.5  # chance is 0.25
    assert made.user_code["method"]["file"] == f"{folder}/{METHOD}"
    assert made.run_key_content["user_code"] == {"method": made.user_code["method"]["sha256"]}
    assert (made.options["epochs"], made.options["lr"]) == (4, 2e-3)  # of --smoke, and of the user's YAML
    assert verify(["runs"]) == 0
    assert main(["knn", *SMOKE, "--weights", "weights/tiny", "--out", "probes"]) == 0
    assert record(folder / "probes").weights_id == made.export
    assert record(folder / "probes").backbone["weights"] == f"{folder}/weights/tiny", "for other working directories"


@pytest.mark.nightly
def test_a_recipe_of_it_in_another_folder_and_python_make_the_same_run(folder: Path, tmp_path_factory, monkeypatch):
    short = {"backbone": "tiny", "smoke": True, "threads": 1, "epochs": 1, "warmup_epochs": 0, "progress": False}
    (made,) = transfer.pretrain(METHOD, **short)
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"method: {METHOD}\nrecipe: cifar_deit\nlr: 2.0e-3\nepochs: 8\n")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))  # the file is found beside the YAML
    assert pretrain([str(recipe), *QUICK, "--out", "by_recipe"]) == 0
    assert record(Path("by_recipe")).run_key == made.record.run_key
    assert record(Path("by_recipe")).scores == made.scores


def test_a_method_without_rescore_is_refused(folder: Path, refused) -> None:
    (folder / "my_method.py").write_text(FILES["my_method.py"].replace("def rescore", "def score"))
    assert "the task lacks `rescore`" in refused(pretrain, [METHOD, *QUICK])
