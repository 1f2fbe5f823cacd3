from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.transfer.test_results import CONTENT, record
from transfer.html import page
from transfer.results import Identity, Record
from transfer.tables import frame, markdown, over_datasets, run_table, summary


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


def probes(*scores: float | None, **given: Any) -> list[Record]:
    """Few-shot records of several data sets."""
    found = []
    for number, score in enumerate(scores):
        identity = Identity({**CONTENT, "dataset": {"name": f"set{number}"}, **given})
        found.append(
            record(
                identity,
                dataset={"name": f"set{number}"},
                options={"l2": [1024.0], "dataset": [f"set{number}"], **given},
                primary="accuracy_10shot",
                scores={} if score is None else {"accuracy_10shot": score, "accuracy_1shot": score / 2},
                metrics={"accuracy_10shot": {"averaged": True}},
                outcome={"status": "collapsed" if score is None else "completed", "reason": "", "step": 0},
                details={} if score is None else {"accuracy_10shot": {"standard_error": 0.03}},
            )
        )
    return found


def test_the_mean_over_data_sets_is_unweighted_and_has_its_own_error() -> None:
    (row,) = over_datasets(probes(0.2, 0.4, 0.9)).to_dict("records")
    assert row["data sets"] == "mean of 3"
    assert row["accuracy_10shot"] == pytest.approx(50.0)
    assert row["accuracy_1shot"] == pytest.approx(25.0)
    assert row["accuracy_10shot se"] == pytest.approx(100 * np.sqrt(3 * 0.03**2) / 3)
    assert "mean of 3" in run_table(probes(0.2, 0.4, 0.9))


def test_no_mean_over_other_options_over_one_set_or_over_a_break_down() -> None:
    assert over_datasets(probes(0.2)).empty
    assert over_datasets([*probes(0.2), *probes(0.3, l2=[1.0])]).empty
    assert over_datasets(runs()).empty
    (row,) = over_datasets(probes(0.2, None)).to_dict("records")
    assert row["data sets"] == "mean of 2, but 1 broke down"
    assert pd.isna(row.get("accuracy_10shot"))


def test_the_latest_of_several_records_of_a_data_set_counts() -> None:
    old, new, other = probes(0.1)[0], probes(0.2)[0], probes(0.0, 0.4)[1]
    old.environment["started"], new.environment["started"] = "2026-01-01", "2026-01-02"
    (row,) = over_datasets([new, old, other]).to_dict("records")
    assert row["data sets"] == "mean of 2"
    assert row["accuracy_10shot"] == pytest.approx(30.0)


def test_standard_errors_stand_beside_their_scores() -> None:
    rows = frame(probes(0.2))
    assert rows["accuracy_10shot se"].tolist() == pytest.approx([3.0])
    assert "accuracy_1shot se" not in rows
    assert "accuracy_10shot se" in run_table(probes(0.2))
