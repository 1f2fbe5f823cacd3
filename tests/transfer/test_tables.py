import pandas as pd
import pytest

from tests.transfer.test_results import CONTENT, record
from transfer.html import page
from transfer.results import Identity, Record
from transfer.tables import frame, markdown, run_table, summary


def runs() -> list[Record]:
    rows = []
    for lr, scores in ((0.05, (0.5, 0.6, 0.7)), (0.1, (0.2, None))):
        for seed, score in enumerate(scores):
            identity = Identity({**CONTENT, "seed": seed, "options": {"lr": lr}})
            status = "completed" if score is not None else "diverged"
            rows.append(
                record(
                    identity,
                    seed=seed,
                    options={"lr": lr, "epochs": 3, "device": str(seed)},
                    scores={} if score is None else {"mAP": score, "rank1": 0.9},
                    outcome={"status": status, "reason": "", "step": 1},
                )
            )
    return rows


def test_a_row_per_record_in_percent() -> None:
    rows = frame(runs())
    assert rows["mAP"].tolist()[:4] == pytest.approx([50.0, 60.0, 70.0, 20.0])
    assert pd.isna(rows["mAP"].iloc[4])
    assert rows["outcome"].iloc[4] == "diverged"


def test_the_summary_averages_seeds_and_names_what_differs() -> None:
    rows = summary(runs())
    assert rows["options"].tolist() == ["lr=0.05", "lr=0.1"]
    assert rows["seeds"].tolist() == [3, 2]
    assert rows["mAP"].tolist() == pytest.approx([60.0, 20.0])
    assert rows["mAP sd"].iloc[0] == pytest.approx(10.0)
    assert pd.isna(rows["mAP sd"].iloc[1])
    assert rows["outcomes"].iloc[1] == "1 completed, 1 diverged"


def test_marks_stay_visible() -> None:
    marked = [record(Identity(CONTENT), smoke=True), record(Identity(CONTENT), subset=8)]
    assert frame(marked)["dataset"].tolist() == ["toy_market (smoke)", "toy_market (subset 8)"]


def test_the_printed_table_has_means_only_over_several_seeds() -> None:
    assert "mAP sd" not in run_table(runs()[:1])
    assert "mAP sd" in run_table(runs())
    assert "| 50.00 " in markdown(frame(runs()))


def test_the_page_is_whole_and_escapes_text() -> None:
    text = page({"<reid>": pd.DataFrame({"backbone": ["<script>alert(1)</script>"], "mAP": [12.345]})})
    assert "<script>" not in text
    assert "&lt;reid&gt;" in text
    assert "12.35" in text or "12.34" in text
    assert "http" not in text
