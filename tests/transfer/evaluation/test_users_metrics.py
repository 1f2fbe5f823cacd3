"""Metrics of the user's own, by path: those of the guide in real runs, and faults in such files."""

import json
from pathlib import Path

import pytest

import transfer
from tests.documents import files_in
from tests.runs import outcomes, record
from transfer.core.user_code import file_digest
from transfer.records.protocol import protocol
from transfer.report.__main__ import main as report
from transfer.run import main
from transfer.verify.__main__ import main as verify

METRICS = files_in("docs/adding-a-part.md")["my_metric.py"]
SMOKE = ["--backbone", "tiny", "--smoke", "--threads", "1"]
REID = ["reid", *SMOKE, "--epochs", "1", "--warmup-epochs", "0"]
UP = "from transfer.api import metric\n@metric(direction='up')\ndef wrong(a): 0"
KNN = ["knn", *SMOKE, "--weights", "random", "--k", "5", "--other-k"]


@pytest.fixture
def folder(here: Path) -> Path:
    """A folder of the user's with the metrics of the guide, in which commands start."""
    (here / "my_metric.py").write_text(METRICS)
    return here


def test_the_metrics_of_the_guide(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Recorded beside the task's scores, which stay as they are; verified; compared with intervals."""
    flags = ["--metric", "my_metric.py:mrr", "my_metric.py:first_match"]
    assert main([*REID, *flags, "--stem", "conv"]) == 0
    assert main([*REID, *flags, "--stem", "patchify"]) == 0
    assert main([*REID, "--out", "without", "--stem", "conv"]) == 0
    assert verify(["runs"]) == 0
    assert "2 of 2 runs are right" in capsys.readouterr().out
    runs = {run.record.backbone["stem"]: run.record for run in transfer.load("runs")}
    made, plain = runs["conv"], record(folder / "without")
    assert {name: made.scores[name] for name in plain.scores} == plain.scores
    assert made.metrics["mrr"]["direction"] == "higher"
    assert made.metrics["first_match"] == {"unit": "places", "direction": "lower", "bounds": None, "averaged": False}
    arrays = outcomes(folder / "without")
    ranks = arrays["before"] + (arrays["tied"] + 1) / (arrays["hits"] + 1)
    assert made.scores["first_match"] == pytest.approx(ranks[arrays["hits"] > 0].mean())
    assert made.scores["mrr"] == pytest.approx((1 / ranks[arrays["hits"] > 0]).mean())
    assert made.user_code["metric mrr"]["file"] == f"{folder}/my_metric.py:mrr"
    assert protocol(made) != protocol(plain)
    words = ["--compare", "stem=conv", "stem=patchify", "--format", "markdown"]
    assert report(["runs", "--smoke", "--dirty", *words]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "| mrr " in line or "| first_match" in line]
    assert len(rows) == 2
    for row in rows:
        difference, low, high = (float(cell) for cell in row.split("|")[6:9])  # an interval: its samples are paired
        assert low < difference < high


def test_a_changed_metric_makes_another_run_and_verify_knows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "my_metric.py"
    file.write_text("def wrong(per_sample):\n    return per_sample['rank'] > 0\n")
    flags = [*KNN, "--metric", "my_metric.py:wrong"]
    assert main(flags) == 0
    assert main(flags) == 0
    assert "has a record, reused" in capsys.readouterr().err
    made = record(folder / "runs")
    assert made.scores["wrong"] == pytest.approx(1 - made.scores["top1"])
    options = folder / "runs" / made.run_id / "options.yaml"
    assert main(["knn", "--config", str(options)]) == 0
    assert verify(["runs"]) == 0
    file.write_text(file.read_text().replace("> 0", "> 1"))
    verify(["runs"])
    assert f"the metric wrong of the run, {file}:wrong: the file has changed since" in capsys.readouterr().out
    assert main([*flags, "--out", "again"]) == 0
    assert record(folder / "again").run_key != made.run_key


@pytest.mark.parametrize("listed", [True, False])
def test_verify_runs_no_file_that_only_a_record_names(listed: bool, folder: Path, capsys) -> None:
    (folder / "my_metric.py").write_text("def wrong(per_sample):\n    return per_sample['rank'] > 0\n")
    assert main([*KNN, "--metric", "my_metric.py:wrong"]) == 0
    (path,) = (folder / "runs").glob("*/record.json")
    others = path.with_name("m.py")
    others.write_text(f"# {folder}\n" + (folder / "my_metric.py").read_text())
    content = json.loads(path.read_text())
    if listed:
        content["user_code"]["metric wrong"] = {"file": f"{others}:wrong", "sha256": file_digest(others)}
    else:
        others.write_text("raise SystemExit('it ran')")
        content["task"] = f"{others}:wrong"
    path.write_text(json.dumps(content))
    verify(["runs"])
    said = capsys.readouterr().out
    if not listed:
        assert f"task {others}:wrong is not available" in said
        return
    assert f"scores not recomputed: {others}:wrong: only the record names this file" in said
    verify(["runs", "--trust-code", f"{others}:wrong"])
    assert "only the record names" not in capsys.readouterr().out
    verify(["runs"])  # known from then on
    assert "only the record names" not in capsys.readouterr().out
    assert verify(["runs", "--trust-code", "m"]) == 2
    assert "--trust-code m: name a file and what is in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "text", "message"),
    [
        ("my_metric.py:wrong", "wrong = 3", "a metric is a function of the arrays of a run, and this is 3"),
        ("my_metric.py:top1", "def top1(per_sample): return 0", "the score name top1 is taken"),
        ("my_metric.py:rank", "def rank(per_sample): return 0", "the task has a score or an array called rank"),
        ("my_metric.py:wrong", "def wrong(per_sample):\n    return per_sample['rnk']", "at line 2: KeyError: 'rnk'"),
        ("my_metric.py:wrong", "def wrong(per_sample): return per_sample['rank'][1:]", "wanted: a number, or one for"),
        ("my_metric.py:wrong", "def wrong(per_sample): return 7", "gives 7.0, which is outside [0, 1]"),
        ("my_metric.py:wrong", "def wrong(per_sample): return float('nan')", "gives no finite score: nan"),
        ("my_metric.py:wrong", "def wrong(arrays): arrays['rank'][0] = 0", "ValueError: assignment destination is"),
        ("my_metric.py:wrong", UP, "'up': "),
    ],
)
def test_a_mistake_is_one_line(flag: str, text: str, message: str, folder: Path, refused) -> None:
    (folder / "my_metric.py").write_text(text)
    assert message in refused(main, [*KNN, "--metric", flag])


def test_what_was_trained_is_kept_when_a_metric_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "my_metric.py"
    file.write_text("def wrong(per_sample):\n    return per_sample['app']\n")
    assert main([*REID, "--metric", "my_metric.py:wrong"]) == 1
    assert f"{file} at line 2: KeyError: 'app'" in capsys.readouterr().err
    (export,) = (folder / "runs").glob("*/export")
    file.write_text("def wrong(per_sample):\n    return per_sample['ap']\n")
    flags = ["reid", *SMOKE, "--epochs", "0", "--weights", str(export), "--metric", "my_metric.py:wrong"]
    assert main([*flags, "--out", "scored"]) == 0
    scores = record(folder / "scored").scores
    assert scores["wrong"] == scores["mAP"]
