"""A search as jobs of a sweep."""

from pathlib import Path
from typing import Any

import pytest

from tests.runs import ended
from tests.transfer.records.recorded import broken, made
from tests.transfer.sweep.test_runner import PRETRAIN, QUICK
from transfer.core.errors import UsageError
from transfer.core.settings import write_yaml
from transfer.experiments.sweep_file import read_sweep
from transfer.records.record import Record
from transfer.sweep.lr_search import Searches
from transfer.sweep.runner import Progress

SEARCH = {"step": "pretrain", "option": "lr", "low": 1e-4, "high": 1e6, "budget": 6, "ratio": 10, "seeds": [0]}


def searches(folder: Path, **given: Any) -> Searches:
    path = folder / "mine.yaml"
    step = PRETRAIN | {"options": {**QUICK, "epochs": 1}}
    path.write_text(write_yaml({"steps": {"pretrain": step}, "search": SEARCH | given}))
    return Searches(read_sweep(str(path), "full"))


def test_every_combination_of_the_grid_has_a_search(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    step = PRETRAIN | {"grid": {"stem": ["patchify", "conv"], "lr": [1, 2, 3]}, "seeds": [0, 1]}
    path.write_text(write_yaml({"steps": {"pretrain": step}, "search": SEARCH}))
    found = Searches(read_sweep(str(path), "full"))
    assert [group.job.options["stem"] for group in found.groups] == ["patchify", "conv"]
    assert len(found.start()) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"low": 1, "high": 0.1}, "0 < low < high"),
        ({"option": "optimizer"}, "`optimizer` is not a number"),
        ({"low": "small"}, "got low small"),
        ({"step": "reid"}, "unknown key 'reid'"),
        ({"seeds": [0, 1, 2], "budget": 4}, "budget >= 5"),
    ],
)
def test_a_search_without_sense_is_named(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        searches(tmp_path, **given)


def test_a_rate_that_trains_between_rates_at_chance_and_rates_that_diverge_is_found(tmp_path: Path) -> None:
    found = searches(tmp_path, low=1e-4, high=1, ratio=1.5, budget=12)
    asked = found.start()
    while asked:
        rate = asked[0].options["lr"]
        record = made(lr=rate) if 0.02 < rate < 0.09 else broken("at_chance" if rate < 0.05 else "diverged", lr=rate)
        status = record.outcome["status"]
        asked = [*found.next_jobs(Progress(asked[0], status=status, record=record))]
    (row,) = found.table().to_frame().to_dict("records")
    assert 0.06 <= float(row["largest stable lr"]) <= 0.11
    assert row["runs"] <= 12


def classifier(rate: float, hits: int, **given: Any) -> Record:
    """A training at ten classes whose statistics are healthy, with so many of 1,000 test images right."""
    data = {"counts": {"val": {"classes": 10, "images": 1000}}}
    return made(lr=rate, primary="top1", scores={"top1": hits / 1000}, metrics={"top1": {}}, dataset=data, **given)


def test_a_rate_whose_score_is_at_chance_is_not_stable(tmp_path: Path) -> None:
    found = searches(tmp_path, low=1e-3, high=1, ratio=1.5, budget=12)
    asked = found.start()
    while asked:
        record = classifier(rate := asked[0].options["lr"], 300 if rate < 0.05 else 100)
        asked = [*found.next_jobs(Progress(asked[0], status="completed", record=record))]
    (row,) = found.table().to_frame().to_dict("records")
    assert 0.03 <= float(row["largest stable lr"]) <= 0.07
    assert "ended at chance level" in row["note"]


def test_the_command_sets_budget_range_and_seeds_of_a_search() -> None:
    sweep = read_sweep("stability", "smoke", ("search.budget=4", "search.high=0.5"), seeds=[3])
    (search, *_) = (group.search for group in Searches(sweep).groups)
    assert (search.budget, search.high, search.seeds) == (4, 0.5, (3,))
    with pytest.raises(UsageError, match=r"unknown key 'budge'; did you mean 'budget'\? \(known: step, option, low"):
        read_sweep("stability", "smoke", ("search.budge=4",))


def test_a_training_that_was_not_judged_leaves_a_search_undecided(tmp_path: Path) -> None:
    found = searches(tmp_path)
    (asked,) = found.start()
    outcome = ended("not_judged", 12, "12 steps, and fewer than 20 are not judged")
    progress = Progress(asked, status="not_judged", record=classifier(1.0, 900, outcome=outcome))
    assert found.next_jobs(progress) == ()
    (row,) = found.table().to_frame().to_dict("records")
    assert "cannot be decided: 12 steps, and fewer than 20 are not judged" in row["note"]
