"""Published numbers of the way there, beside those in the histories of one's own runs."""

import json
from pathlib import Path

import pytest

from tests.transfer.report.published.runs import cell_of, lines_of, run_of, shown_table
from transfer.records.store import Run

MEASURED = {5: 0.1841, 20: 0.5362, 50: 0.6379, 300: 0.816}


def trained(tmp_path: Path) -> Run:
    run = run_of(cell_of("convergence", "ViT_c", "deit", lr=1e-3), tmp_path, 816)
    lines = [{"step": 100, "epoch": 5, "loss": 5.0}, {"step": 9, "epoch": 5.0, "loss": 4.0}]
    lines += [{"step": 1251 * epoch, "epoch": epoch, "top1": score, "top5": 1.0} for epoch, score in MEASURED.items()]
    (run.folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_scores_on_the_way_stand_beside_the_published_ones(tmp_path: Path) -> None:
    lines = lines_of([trained(tmp_path)], "convergence", "ViT_c")
    assert [(line["metric"], line["published"], line["own"], line["difference"]) for line in lines] == [
        ("top1 at epoch 5", "18.1", "18.4", "+0.3"),
        ("top1 at epoch 20", "53.6", "53.6", "+0.0"),
        ("top1 at epoch 50", "63.8", "63.8", "-0.0"),
    ]
    assert {line["verdict"] for line in lines} == {"agrees within 1, of these models (1 seed)"}
    assert {(line["not comparable because"], line["reading"]) for line in lines} == {
        ("", "lr 0.001, printed not stated")
    }
    low, high = map(float, lines[1]["interval"].removesuffix(" (1 seed)").split(" to "))
    assert high - low == pytest.approx(2 * 1.96 * 100 * (0.5362 * 0.4638 / 50000) ** 0.5, abs=0.15), "of 50,000 images"


@pytest.mark.parametrize("content", [None, '{"broken "top1"', json.dumps({"step": 1, "epoch": 7, "top1": 0.1})])
def test_a_history_without_the_epoch_is_said(tmp_path: Path, content: str | None) -> None:
    run = trained(tmp_path)
    path = run.folder / "history.jsonl"
    path.unlink()
    if content is not None:
        path.write_text(content)
    lines, notes = shown_table([run], "scaled_relu", "convergence")
    assert {line["verdict"] for line in lines if line["row"] == "ViT_c"} == {"no interval"}
    (note,) = [note for note in notes if note.startswith("ViT_c, imagenet1k, top1 at epoch 20: no interval, since ")]
    assert str(path) in note
    assert "--validate-at 20" in note
