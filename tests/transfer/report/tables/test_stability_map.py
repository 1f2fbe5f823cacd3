from pathlib import Path

import numpy as np
import pytest

from backbones.errors import UsageError
from tests.transfer.records.recorded import broken, made, trained
from tests.transfer.report.tables.of_records import map_of, said
from transfer.records.record import STATUSES, Record
from transfer.report.tables.cell_text import cell_text
from transfer.report.tables.cell_values import Violation
from transfer.report.tables.largest_stable import largest_stable
from transfer.report.tables.stability_map import last_statistics
from transfer.statistics.intervals import wilson


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
    (row,) = map_of(runs).rows
    assert [row[status] for status in STATUSES] == [2, 1, 0, 0, 2]
    assert (row["seeds"], row["first_bad_step"], row["outcome"]) == (5, 4, "at_chance")
    interval = wilson(3, 5)
    assert row["breakdown_rate"] == pytest.approx(0.6)
    assert (row["breakdown_low"], row["breakdown_high"]) == (interval.low, interval.high)
    assert (row["metric"], row["score"]) == ("mAP", pytest.approx(30.0))
    assert row["score_sd"] == pytest.approx(np.std([20, 40], ddof=1))
    assert row["run"] == tuple(run.run_id for run in runs)


@pytest.mark.parametrize(
    ("endings", "outcome"),
    [
        (["completed", "completed", "diverged", "at_chance"], "diverged"),
        (["completed", "at_chance", "at_chance", "completed", "diverged", "completed"], "at_chance"),
        (["completed", "diverged", "completed"], "completed"),
        (["nonfinite", "diverged"], "nonfinite"),
    ],
)
def test_a_cell_of_which_half_broke_down_is_not_called_completed(endings: list[str], outcome: str) -> None:
    runs = [
        made(seed=seed, scores={"mAP": 0.5}) if status == "completed" else broken(status, seed=seed)
        for seed, status in enumerate(endings)
    ]
    (row,) = map_of(runs).rows
    assert row["outcome"] == outcome
    assert row["completed"] == endings.count("completed")


def test_seeds_of_a_map_are_those_of_pretraining() -> None:
    """Two pretrainings, fine-tuned four times and once; three more of them broke down."""
    data = {"name": "toy_digits"}
    parents = [trained(f"sha256:{seed}", seed=seed) for seed in (0, 1)]
    lost = [broken("nonfinite", task="pretrain-dino", dataset=data, seed=seed) for seed in (2, 3, 4)]
    runs = [made(weights_id="sha256:0", seed=seed, scores={"mAP": 0.3}) for seed in range(4)]
    runs.append(made(weights_id="sha256:1", scores={"mAP": 0.6}))
    table = map_of(runs, known=[*runs, *parents, *lost])
    (row,) = table.rows
    assert (row["seeds"], row["completed"], row["lost"], row["outcome"]) == (2, 2, 3, "completed")
    assert row["score"] == pytest.approx(45.0)
    assert any(note.startswith("lost: seeds whose training before broke down") for note in said(table))
    over = map_of(runs, "pretraining.lr", "lr", known=[*runs, *parents, *lost])
    (row,) = over.rows
    assert (row["seeds"], row["nonfinite"], row["lost"], row["outcome"]) == (5, 3, 0, "nonfinite")
    assert row["breakdown_rate"] == pytest.approx(0.6)


def test_panels_are_apart_by_parts_protocol_and_the_fields_asked_for() -> None:
    runs = [made(stem=stem, optimizer=optimizer) for stem in ("conv", "patchify") for optimizer in ("sgd", "adamw")]
    rows = map_of(runs, by=["stem", "optimizer"])
    assert sorted((row["stem"], row["optimizer"]) for row in rows.rows) == [
        ("conv", "adamw"), ("conv", "sgd"), ("patchify", "adamw"), ("patchify", "sgd"),
    ]  # fmt: skip
    assert {*rows["backbone"]} == {"tiny"}
    other = map_of([*runs, made(stem="conv", epochs=5)], by=["stem", "optimizer"])
    assert said(other) == ["protocol a: epochs 20", "protocol b: epochs 5"]
    assert len(other) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [(("lrr", "epochs"), "did you mean 'lr'"), (("lr", "lr"), "different fields"), (("lr", "out"), "no run has")],
)
def test_wrong_axes_are_said(words: tuple[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        map_of([made()], *words)


def test_the_history_gives_the_last_finite_statistics(tmp_path: Path) -> None:
    run = made()
    lines = ['{"step": 1, "loss": 2.0, "grad_norm": 3.0}', '{"step": 2, "loss": 1.5, "grad_norm": null}']
    lines += ['{"step": 2, "epoch": 1, "mAP": 0.5}', '{"step": 3, "loss": null, "grad']
    (tmp_path / "history.jsonl").write_text("\n".join(lines))
    assert last_statistics(tmp_path) == {"loss": 1.5, "grad_norm": 3.0}
    (row,) = map_of([run], folders={run.run_id: tmp_path}).rows
    assert (row["last_loss"], row["last_grad_norm"]) == (1.5, 3.0)
    assert last_statistics(tmp_path / "nothing") == {}
    (row,) = map_of([run], folders={}).rows
    assert np.isnan(row["last_loss"])


def edges(trains: dict[float, list[bool]]) -> dict[str, object]:
    (row,) = largest_stable(map_of(grid(trains))).rows
    return row


def test_the_largest_stable_rate_is_the_one_below_the_first_break_down() -> None:
    row = edges({0.01: [True, True], 0.1: [True, True], 0.05: [True, True], 1.0: [False, False]})
    assert (row["largest"], row["broken"], row["cells"], row["seeds"], row["violations"]) == (0.1, 1.0, 4, 2, ())
    assert edges({0.1: [True, False, True], 1.0: [False] * 3})["largest"] == 0.1


def test_each_seed_has_its_own_largest_rate_and_the_median_is_given() -> None:
    (row,) = largest_stable(map_of(grid({0.01: [True] * 3, 0.1: [True, False, True], 1.0: [False, False, True]}))).rows
    assert (row["largest"], row["broken"], row["seeds"]) == (0.1, 1.0, 3)
    assert (row["largest_low"], row["largest_high"]) == (0.01, 1.0)
    two = map_of(grid({0.01: [True] * 2, 1.0: [True, False], 2.0: [False, True]}))
    (row,) = largest_stable(two).rows
    assert row["largest"] == pytest.approx(0.1)
    assert row["violations"] == (Violation(("seed", 1), (2.0,), 1.0),)
    assert cell_text(row["violations"]) == "seed 1: 2 trained above 1, which did not"


def test_the_ends_of_a_map_are_said() -> None:
    assert np.isnan(edges({0.1: [False], 1.0: [False]})["largest"])
    row = edges({0.1: [True], 1.0: [True]})
    assert row["largest"] == 1.0
    assert np.isnan(row["broken"])
