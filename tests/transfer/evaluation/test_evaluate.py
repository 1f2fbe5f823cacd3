"""`--test-dataset`: trained on one set, scored on others."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import transfer
from transfer.data.toy import bundled_folder
from transfer.records.store import Store
from transfer.run import main as transfer_run

SMOKE: dict[str, Any] = {"smoke": True, "threads": 1, "progress": False, "backbone": "tiny"}
SHORT: dict[str, Any] = {"epochs": 1, "warmup_epochs": 0}


def test_a_training_is_scored_on_each_set_once(tmp_path: Path) -> None:
    options = {**SMOKE, **SHORT, "seeds": [0, 1], "out": tmp_path}
    runs = transfer.evaluate("reid", test_dataset="toy_msmt17", **options)
    assert [run.record.dataset["name"] for run in runs] == 2 * ["toy_market"] + 2 * ["toy_msmt17"]
    assert [run.seed for run in runs] == [0, 1, 0, 1]
    for trained, tested in zip(runs[:2], runs[2:], strict=True):
        assert tested.record.weights_id == trained.record.export
        assert tested.record.details["trained_on"] == "toy_market"
    again = transfer.evaluate(
        "reid", dataset="toy_msmt17", weights=runs[1].run_id, epochs=0, **{**SMOKE, "seeds": [1], "out": tmp_path}
    )
    assert again[0].run_id == runs[3].run_id
    assert again[0].record.options["weights"] == str(runs[1].folder / "export"), "wherever it is repeated"
    alone = transfer.evaluate("reid", **options)
    assert [run.run_id for run in alone] == [run.run_id for run in runs[:2]]


def test_sets_that_are_trained_together_are_each_evaluated(tmp_path: Path) -> None:
    sets, options = ["toy_market", "toy_msmt17"], {**SMOKE, **SHORT, "subset": 16, "out": tmp_path}
    runs = transfer.evaluate("reid", dataset=sets, joint=True, **options)
    assert [run.record.dataset["name"] for run in runs] == ["+".join(sets), *sets]
    assert [bool(run.scores) for run in runs] == [False, True, True]
    digests = [[name, run.record.dataset["digest"]] for name, run in zip(sets, runs[1:], strict=True)]
    assert runs[0].record.run_key_content["content"] == {"joint": digests}
    assert {run.record.details["trained_on"] for run in runs[1:]} == {"+".join(sets)}
    again = transfer.evaluate("reid", dataset=sets[::-1], joint=True, **options)
    assert {run.run_id for run in again} == {run.run_id for run in runs}
    config = runs[0].folder / "options.yaml"
    repeated = transfer.evaluate("reid", backbone="tiny", config=config, out=tmp_path, progress=False)
    assert repeated[0].run_id == runs[0].run_id


def copied(name: str, form: str, tmp_path: Path) -> Path:
    """The folder of a copy of a toy set, which `copy.yaml` names."""
    folder = tmp_path / "copy"
    (tmp_path / "copy.yaml").write_text(f"format: {form}\nroot: {folder}\n")
    return Path(shutil.copytree(bundled_folder(name), folder))


def test_a_test_set_with_training_images_is_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = copied("toy_market", "market1501", tmp_path)
    train = sorted((folder / "bounding_box_train").iterdir())
    query = sorted((folder / "query").iterdir())
    train[0].rename(query[0])
    out = tmp_path / "runs"
    with pytest.raises(transfer.UserError, match=r"1 of .* query images are also training images of toy_market"):
        transfer.evaluate("reid", test_dataset=tmp_path / "copy.yaml", out=out, **SMOKE, **SHORT)
    with pytest.raises(transfer.UserError, match=r"--joint copy: 1 of .* are also training images of toy_market"):
        transfer.evaluate("reid", dataset=["toy_market", tmp_path / "copy.yaml"], joint=True, out=out, **SMOKE, **SHORT)
    assert not out.exists()


def test_a_test_set_with_other_classes_is_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = copied("toy_coco", "coco", tmp_path)
    for file in (folder / "annotations").iterdir():
        file.write_text(re.sub(r'"name": "[^"]+"', '"name": "hexagon"', file.read_text(), count=1))
    out = tmp_path / "runs"
    with pytest.raises(transfer.UserError, match=r"copy: toy_coco has no class hexagon; remove"):
        transfer.evaluate("detect", test_dataset=tmp_path / "copy.yaml", out=out, **SMOKE, **SHORT)
    assert not out.exists()


def test_a_failed_training_shows_its_scores_and_counts_in_no_mean(tmp_path: Path, capsys: Any) -> None:
    words = ["reid", "--backbone", "tiny", "--smoke", "--threads", "1", "--epochs", "6", "--lr", "1e-7"]
    words += ["--device", "cpu", "--out", str(tmp_path)]
    assert [transfer_run(words) for _ in range(2)] == [3, 3]
    (record,) = (run.record for run in Store(tmp_path).runs()[0])
    assert (record.status, record.scores) == ("at_chance", {})
    assert {"mAP", "rank1"} <= record.details["failed_scores"].keys()
    assert not (tmp_path / record.run_id / "export").exists()
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        f"at chance; its scores are excluded from means: mAP {100 * record.details['failed_scores']['mAP']:.1f}, rank1"
        in shown
    )
