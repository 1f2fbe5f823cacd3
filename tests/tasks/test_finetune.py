from pathlib import Path

import pytest

from backbones.backbone import create
from backbones.data.spec import resolve_dataset
from backbones.spec import resolve
from backbones.weights import find_weights
from tasks.finetune import TASK
from tests.tasks.support import digits, run_task, smoke_options
from transfer.records.store import Record
from transfer.run import main

WORDS = ["--backbone", "tiny", "--smoke", "--threads", "1", "--workers", "0"]


def run(out: Path, task: str, *words: str) -> Path:
    """The folder of a run that must succeed."""
    assert main([task, *WORDS, "--out", str(out), *words]) == 0
    (folder,) = out.glob(f"{task}-*")
    return folder


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fine-tuned `tiny`."""
    words = ["--subset", "60", "--epochs", "8", "--lr", "2e-3", "--sam", "sam"]
    return run(tmp_path_factory.mktemp("runs"), "finetune", *words)


def test_it_learns_and_its_classifier_scores_the_same_elsewhere(finetuned: Path) -> None:
    record = Record.read(finetuned / "record.json")
    assert record.scores["top1"] > 0.5
    assert record.scores["top1"] < record.scores["top5"]
    assert any("starts from random weights" in note for note in record.notes)
    weights = ["--weights", str(finetuned / "export"), "--subset", "60", "--size", "32", "--resize", "32"]
    classified = Record.read(run(finetuned.parent, "classify", *weights) / "record.json")
    assert classified.scores == record.scores


def test_other_tasks_start_from_what_it_leaves_and_record_its_hash(finetuned: Path) -> None:
    record = Record.read(finetuned / "record.json")
    words = ["--weights", str(finetuned / "export")]
    again = run(finetuned.parent / "again", "finetune", *words, "--subset", "10", "--epochs", "1")
    reid = run(finetuned.parent, "reid", *words, "--epochs", "1", "--warmup-epochs", "0")
    for folder in (again, reid):
        assert Record.read(folder / "record.json").weights_id == record.export
    assert record.export is not None
    assert record.export.startswith("sha256:")
    notes = Record.read(again / "record.json").notes
    assert not any("random weights" in note for note in notes)


def test_the_given_weights_are_what_training_starts_from(finetuned: Path, tmp_path: Path) -> None:
    spec = resolve("tiny", weights=str(finetuned / "export"))
    still = ["--lr", "0", "--warmup-lr", "0", "--min-lr", "0", "--epochs", "1", "--judge-after", "1000"]
    run_task("finetune", digits(20), *still, spec=spec, folder=tmp_path)

    (before, after) = (
        create("tiny", weights=str(folder / "export"), img_size=32).model.state_dict()
        for folder in (finetuned, tmp_path)
    )
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)
    assert find_weights(spec).weights_id.startswith("sha256:")


def test_a_label_fraction_is_a_share_of_each_class() -> None:
    whole = digits(20)
    options = smoke_options("finetune", "--label-fraction", "0.1")
    tenth = TASK.open(resolve_dataset("toy_digits"), options, root=None, subset=20, skip_unreadable=False)
    assert tenth.counts["train"] == {"images": 20, "classes": 10}
    assert tenth.counts["val"] == whole.counts["val"]
    assert tenth.digest != whole.digest


def test_weights_that_are_not_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["finetune", "--backbone", "dino_s16_convstem", "--dataset", "toy_digits", "--size", "32"]) == 1
    err = capsys.readouterr().err
    assert "there are no weights at weights/dino_s16_convstem" in err
    assert "transfer.pretrain" in err
