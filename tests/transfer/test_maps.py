from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from backbones.errors import WrongWords
from tests.transfer.recorded import broken, made, trained
from transfer.maps import PANEL, largest_stable, last_statistics, stability_map
from transfer.records import STATUSES, Record
from transfer.statistics import wilson
from transfer.tables import markdown


def grid(trains: dict[float, list[bool]], **given: object) -> list[Record]:
    """Runs of several rates, a seed for each entry."""
    return [
        made(lr=lr, seed=seed, scores={"mAP": 0.5}, **given) if well else broken(lr=lr, seed=seed, **given)
        for lr, seeds in trains.items()
        for seed, well in enumerate(seeds)
    ]


def test_a_cell_counts_each_way_of_ending() -> None:
    runs = [made(scores={"mAP": 0.2}), made(seed=1, scores={"mAP": 0.4})]
    runs += [broken("nonfinite", 9, seed=2), broken("at_chance", 4, seed=3), broken("at_chance", 7, seed=4)]
    (row,) = stability_map(runs).to_dict("records")
    assert [row[status] for status in STATUSES] == [2, 1, 0, 0, 2]
    assert (row["seeds"], row["first_bad_step"], row["outcome"]) == (5, 4, "at_chance")
    interval = wilson(3, 5)
    assert row["breakdown_rate"] == pytest.approx(0.6)
    assert (row["breakdown_low"], row["breakdown_high"]) == (interval.low, interval.high)
    assert (row["metric"], row["score"]) == ("mAP", pytest.approx(30.0))
    assert row["score_sd"] == pytest.approx(np.std([20, 40], ddof=1))
    assert row["run"].split() == [run.run_id for run in runs]


def test_there_is_a_row_for_each_cell_in_order() -> None:
    runs = [made(lr=lr, warmup_epochs=warm) for warm in (5.0, 0.0) for lr in (0.1, 0.002, 0.01)]
    rows = stability_map(runs)
    assert rows[["warmup_epochs", "lr"]].values.tolist() == [
        [warm, lr] for warm in (0.0, 5.0) for lr in (0.002, 0.01, 0.1)
    ]
    assert rows["outcome"].tolist() == ["completed"] * 6
    assert rows["first_bad_step"].isna().all()
    assert not rows[list(PANEL)].drop_duplicates().shape[0] > 1


def test_options_that_an_axis_makes_idle_do_not_tear_a_map() -> None:
    runs = [made(warmup_epochs=0.0, idle=("sam_rho", "size")), made(warmup_epochs=5.0)]
    assert stability_map(runs)["protocol"].tolist() == ["", ""]


def test_panels_are_apart_by_parts_protocol_and_the_fields_asked_for() -> None:
    runs = [made(stem=stem, optimizer=optimizer) for stem in ("conv", "patchify") for optimizer in ("sgd", "adamw")]
    rows = stability_map(runs, by=["stem", "optimizer"])
    assert sorted(map(tuple, rows[["stem", "optimizer"]].values)) == [
        ("conv", "adamw"), ("conv", "sgd"), ("patchify", "adamw"), ("patchify", "sgd"),
    ]  # fmt: skip
    assert rows["backbone"].unique().tolist() == ["tiny"]
    other = stability_map([*runs, made(stem="conv", epochs=5)], by=["stem", "optimizer"])
    assert other.attrs["notes"] == ["protocol a: epochs 20", "protocol b: epochs 5"]
    assert len(other) == 5


def test_a_map_over_the_pretrainings_own_fields() -> None:
    parents = [trained(f"sha256:{name}", lr=lr) for name, lr in (("a", 0.1), ("b", 0.2))]
    runs = [made(weights_id=parent.export) for parent in parents]
    rows = stability_map(runs, "pretraining.lr", "lr", known=[*runs, *parents])
    assert rows["pretraining.lr"].tolist() == [0.1, 0.2]
    assert rows["pretraining"].nunique() == 1
    assert stability_map(parents)["task"].tolist() == ["pretrain-dino"] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [(("lrr", "epochs"), "did you mean 'lr'"), (("lr", "lr"), "different fields"), (("lr", "out"), "no run has")],
)
def test_wrong_axes_are_said(words: tuple[str, str], message: str) -> None:
    with pytest.raises(WrongWords, match=message):
        stability_map([made()], *words)


def test_runs_without_an_axis_are_counted_and_left_out() -> None:
    probe = made("fewshot")
    del probe.options["lr"]
    rows = stability_map([made(), probe])
    assert rows["task"].tolist() == ["reid"]
    assert rows.attrs["notes"] == ["runs without lr or warmup_epochs, left out: 1"]
    with pytest.raises(WrongWords, match=r"no run has both 'lr' and 'pretraining\.lr'"):
        stability_map(
            [made(), trained("sha256:a"), made("fewshot", weights_id="sha256:a", lr=None)], y="pretraining.lr"
        )


def test_small_rates_are_printed() -> None:
    rows = stability_map([made(lr=1.6e-4), broken(lr=0.5, step=7)])
    assert "| 0.00016 " in markdown(rows)
    assert "| 7 " in markdown(rows)
    assert "| 0.00016 " in markdown(largest_stable(rows))


def test_the_history_gives_the_last_finite_statistics(tmp_path: Path) -> None:
    run = made()
    lines = ['{"step": 1, "loss": 2.0, "grad_norm": 3.0}', '{"step": 2, "loss": 1.5, "grad_norm": null}']
    lines += ['{"step": 2, "epoch": 1, "mAP": 0.5}', '{"step": 3, "loss": null, "grad']
    (tmp_path / "history.jsonl").write_text("\n".join(lines))
    assert last_statistics(tmp_path) == {"loss": 1.5, "grad_norm": 3.0}
    (row,) = stability_map([run], folders={run.run_id: tmp_path}).to_dict("records")
    assert (row["last_loss"], row["last_grad_norm"]) == (1.5, 3.0)
    assert last_statistics(tmp_path / "nothing") == {}
    (row,) = stability_map([run], folders={}).to_dict("records")
    assert pd.isna(row["last_loss"])


def edges(trains: dict[float, list[bool]], tolerated: float = 0.0) -> dict[str, object]:
    (row,) = largest_stable(stability_map(grid(trains)), tolerated).to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_the_largest_stable_rate_is_the_one_below_the_first_break_down() -> None:
    row = edges({0.01: [True, True], 0.1: [True, True], 0.05: [True, True], 1.0: [False, True]})
    assert (row["largest"], row["broken"], row["cells"], row["seeds"], row["violations"]) == (0.1, 1.0, 4, 2, "")
    assert edges({0.1: [True, False, True], 1.0: [False] * 3}, tolerated=0.5)["largest"] == 0.1


def test_rates_that_train_above_a_break_down_are_named() -> None:
    row = edges({0.01: [True], 0.05: [False], 0.1: [True], 0.5: [True], 1.0: [False]})
    assert (row["largest"], row["broken"]) == (0.01, 0.05)
    assert row["violations"] == "0.1, 0.5 trained above 0.05, which did not"


def test_the_ends_of_a_map_are_said() -> None:
    assert np.isnan(edges({0.1: [False], 1.0: [False]})["largest"])
    row = edges({0.1: [True], 1.0: [True]})
    assert row["largest"] == 1.0
    assert np.isnan(row["broken"])


def test_each_panel_and_warm_up_has_its_own_largest_rate() -> None:
    runs = grid({0.1: [True], 1.0: [False]}, stem="conv") + grid({0.1: [False], 1.0: [False]}, warmup_epochs=0.0)
    rows = largest_stable(stability_map(runs, by=["stem"]))
    assert rows["stem"].tolist() == ["conv", "patchify"]
    assert rows["warmup_epochs"].tolist() == [7.0, 0.0]
    assert rows["largest"].isna().tolist() == [False, True]


def test_a_largest_value_needs_numbers() -> None:
    with pytest.raises(WrongWords, match="not a number"):
        largest_stable(stability_map([made(), made(optimizer="adamw")], "optimizer", "lr"))


def test_one_stem_under_two_names_is_one_cell() -> None:
    runs = [made(stem=stem, seed=seed) for seed, stem in enumerate(("conv", "3Conv+3BN+3ReLU+1Proj@2,1,1,8"))]
    (row,) = stability_map(runs, "lr", "stem").to_dict("records")
    assert (row["stem"], row["seeds"]) == ("conv", 2)


def test_lines_of_a_history_that_no_run_writes_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"loss": 2.0, "grad_norm": 1.0}\n{"loss": "abc", "grad_norm": null}\n[]\n')
    assert last_statistics(tmp_path) == {"loss": 2.0, "grad_norm": 1.0}
