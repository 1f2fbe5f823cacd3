import io
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.transfer.records.recorded import made, trained
from tests.transfer.records.test_store import CONTENT, record
from transfer.records.store import Identity, Record
from transfer.report.page.section import Section
from transfer.report.page.sections import as_csv
from transfer.report.tables.render import IN_FULL, csv, markdown
from transfer.report.tables.scores import frame, over_datasets, run_table, summary
from transfer.statistics.intervals import breakdown_rate, mean_and_deviation, wilson

BROKEN = "with breakdowns: with trainings that broke down at chance, or at 0 where chance is not known"


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
    assert rows["protocol"].tolist() == ["a", "b"]
    assert rows.attrs["notes"] == ["protocol a: lr 0.05", "protocol b: lr 0.1", BROKEN]
    assert rows["mAP with breakdowns"].tolist() == pytest.approx([60.0, 10.0])
    assert rows["seeds"].tolist() == [3, 2]
    assert rows["mAP"].tolist() == pytest.approx([60.0, 20.0])
    assert rows["mAP sd"].iloc[0] == pytest.approx(10.0)
    assert pd.isna(rows["mAP sd"].iloc[1])
    assert rows["outcomes"].iloc[1] == "1 completed, 1 diverged"


def test_rows_of_one_protocol_have_no_column_for_it() -> None:
    rows = summary(runs()[:3])
    assert not {"protocol", "pretraining", "broke down"} & {*rows}
    assert rows.attrs["notes"] == []
    assert not [name for name in summary(runs()[:1]) if name.endswith(" sd")]


def test_break_downs_are_rates_with_their_interval() -> None:
    rows = summary(runs())
    interval = wilson(1, 2)
    assert rows["broke down"].iloc[1] == f"1 of 2 ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"
    assert rows["broke down"].iloc[0] == "0 of 3 (0 to 56 %)"
    assert breakdown_rate(1, 1) == "1 of 1"


def test_seeds_of_pretraining_are_averaged_over() -> None:
    parents = [trained("sha256:a"), trained("sha256:b", seed=1)]
    records = [made(weights_id=f"sha256:{name}", scores={"mAP": score}) for name, score in (("a", 0.4), ("b", 0.6))]
    rows = summary(records, [*records, *parents])
    assert rows["seeds"].tolist() == [2]
    assert rows["mAP"].tolist() == pytest.approx([50.0])
    assert len(summary(records)) == 2


@pytest.mark.parametrize("values", [[], [3.0], [1.0, 4.0], [0.1] * 5, [1e9, 1e9 + 1, 1e9 + 5]])
def test_mean_and_deviation_are_those_of_a_sample(values: list[float]) -> None:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.mean(values), np.std(values, ddof=1)
    assert mean_and_deviation(values) == pytest.approx(expected, nan_ok=True, abs=1e-9)


def test_marks_stay_visible() -> None:
    marked = [record(Identity(CONTENT), smoke=True), record(Identity(CONTENT), subset=8)]
    assert frame(marked)["dataset"].tolist() == ["toy_market (smoke)", "toy_market (subset 8)"]


def test_rows_of_single_runs_inherit_marks_too() -> None:
    rows = frame([made(weights_id="sha256:a")], [trained("sha256:a", smoke=True)])
    assert rows["dataset"].tolist() == ["toy_market (pretraining smoke, version 1)"]


def test_the_printed_table_has_means_only_over_several_seeds() -> None:
    assert "mAP sd" not in run_table(runs()[:1])
    assert "mAP sd" in run_table(runs())
    assert "| 50.00 " in markdown(frame(runs()))


def test_markdown_has_the_form_of_tabulate_and_nothing_leaves_its_cell() -> None:
    rows = pd.DataFrame({"a": ["x", "longer text"], "number": [1.0, np.nan], "n": [1, 2], "none": [None, "y"]})
    texts = rows.assign(number=["1.00", ""], none=["", "y"])
    assert markdown(rows) == texts.to_markdown(index=False, disable_numparse=True)
    hostile = markdown(pd.DataFrame({"a": ["x | y\nz"]}))
    assert len(hostile.splitlines()) == 3
    assert "x \\| y z" in hostile


def test_notes_follow_the_table() -> None:
    assert markdown(summary(runs())).endswith(f"|\n\n- protocol a: lr 0.05\n- protocol b: lr 0.1\n- {BROKEN}")
    assert "- protocol" not in run_table(runs()[:3])


def test_csv_says_the_protocol_itself_and_all_digits() -> None:
    rows = pd.read_csv(io.StringIO(csv(summary(runs()))))
    assert rows["protocol"].tolist() == ["lr 0.05", "lr 0.1"]
    assert rows["mAP"].iloc[0] == pytest.approx(60.0)


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


def test_means_over_data_sets_tell_options_and_pretraining_apart() -> None:
    parents = [trained("sha256:a"), trained("sha256:b", seed=1), trained("sha256:c", epochs=5, smoke=True)]
    given = {"primary": "accuracy", "metrics": {"accuracy": {"averaged": True}}}
    records = [
        made(
            "fewshot",
            weights_id=parent.export,
            dataset={"name": name, "digest": name * 20},
            identity_content={"content": {"images": name}},  # as few-shot probes count their images
            scores={"accuracy": 0.5},
            lr=lr,
            **given,
        )
        for parent in parents
        for lr in (1.0, 2.0)
        for name in ("one", "two")
    ]
    rows = over_datasets(records, [*records, *parents])
    assert len(rows) == 6
    assert not rows[["pretraining", "pretraining seed", "protocol"]].duplicated().any()
    assert rows.attrs["notes"] == ["protocol a: lr 1", "protocol b: lr 2", "means are over one, two"]
    assert rows["data sets"].tolist().count("mean of 2 (pretraining smoke)") == 2


def test_rows_of_single_runs_say_what_tells_them_apart() -> None:
    rows = frame([*runs(), *runs()[:1]])
    assert rows["protocol"].tolist() == ["a", "a", "a", "b", "b", "a"]
    assert rows.attrs["notes"] == ["protocol a: lr 0.05", "protocol b: lr 0.1"]
    assert frame([made(stem="conv"), made(stem="patchify")])["backbone"].tolist() == [
        "tiny, stem conv", "tiny, stem patchify",
    ]  # fmt: skip
    parents = [trained("sha256:a"), trained("sha256:b", epochs=5)]
    rows = frame([made(weights_id=parent.export) for parent in parents], parents)
    assert rows["pretraining"].nunique() == 2
    alike = frame([made(), made(seed=1)])
    assert list(alike)[:5] == ["task", "dataset", "backbone", "seed", "outcome"]
    assert not {"protocol", "pretraining"} & {*alike}
    assert list(frame(runs()[::-1]))[-2:] == ["train_seconds", "run"], "also where the first run broke down"


def test_csv_has_title_and_notes_as_comments_and_texts_in_full() -> None:
    rows = pd.DataFrame({"name": ["data #1", "2 options: a"], "score": [1.5, 2.5]})
    rows.attrs |= {"notes": ["one seed\nonly"], IN_FULL: {"name": {"2 options: a": "lr 1 (2), epochs 5 (9)"}}}
    text = as_csv([Section(title="The # first", table=rows, note="more\n\nand more"), Section(title="none")])
    assert text.splitlines()[:4] == ["# The # first", "# one seed only", "# more", "# and more"]
    back = pd.read_csv(io.StringIO(text), comment="#")
    assert back["name"].tolist() == ["data #1", "lr 1 (2), epochs 5 (9)"]
    assert back["score"].tolist() == [1.5, 2.5]
    two = as_csv([Section(title=name, table=summary(runs())) for name in ("one", "two")]).split("\n\n")
    assert [part.splitlines()[0] for part in two] == ["# one", "# two"]
    assert pd.read_csv(io.StringIO(two[1]), comment="#")["protocol"].tolist() == ["lr 0.05", "lr 0.1"]
    assert "protocol a" not in two[1]
