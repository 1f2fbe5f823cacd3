"""The search of the largest stable rate, on problems whose limit is known and as jobs of a sweep."""

import contextlib
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.transfer.records.recorded import broken, classifier
from tests.transfer.sweep.test_runner import PRETRAIN
from transfer.core.errors import UsageError
from transfer.core.settings import write_yaml
from transfer.experiments.sweep_file import read_sweep
from transfer.sweep.lr_search import Probe, Search, Searches, _limits
from transfer.sweep.runner import Progress

SEARCH = {"step": "pretrain", "option": "lr", "low": 1e-4, "high": 1e6, "budget": 6, "ratio": 10, "seeds": [0]}


def search_largest_stable(search: Search, is_stable: Callable[[float, int], bool]) -> Search:
    """Run a whole search; `is_stable` returns whether training is stable at a rate with a seed."""
    plan = search.plan()
    asked = next(plan)
    with contextlib.suppress(StopIteration):
        while True:
            asked = plan.send(is_stable(*asked))
    return search


def test_the_limit_is_found_within_the_ratio_and_the_budget() -> None:
    for problem in range(300):
        limit = 10 ** random.Random(problem).uniform(-5, 1)
        search = Search(1e-5, 10, seeds=(0, 1, 2), budget=12, ratio=1.5)
        found = search_largest_stable(search, lambda rate, seed, limit=limit: rate < limit)
        assert len(found.probes) <= 12, limit
        assert len(found.brackets) == 3, limit
        for bracket in found.brackets:
            assert bracket.low < limit <= bracket.high
            assert bracket.high / bracket.low <= 1.5, limit
        assert 1 / 1.5 <= found.estimate / limit <= 1.5
        assert found.violations == [], limit


def test_a_range_without_a_limit_in_it_is_said_so() -> None:
    always = search_largest_stable(Search(1e-3, 1, seeds=(0,), budget=12), lambda rate, seed: True)
    assert always.brackets[0].low == 1
    assert always.brackets[0].high == math.inf
    never = search_largest_stable(Search(1e-3, 1, seeds=(0,), budget=12), lambda rate, seed: False)
    assert (never.brackets[0].low, never.brackets[0].high) == (0, 1e-3)
    assert math.isnan(never.estimate)
    assert math.isnan(always.estimate)


def test_what_contradicts_a_single_limit_is_reported() -> None:
    search = Search(0.01, 100, seeds=(0, 1), budget=12)
    # training with seed 1 fails at the rate that is stable with seed 0, and is stable at the larger one
    found = search_largest_stable(search, lambda rate, seed: rate < 1 if seed == 0 else rate >= 1)
    assert any("seed 1" in text and "is stable" in text for text in found.violations), found.probes
    assert _limits([Probe(rate, 0, rate != 2.0) for rate in (4.0, 2.0, 1.0)]) == (1.0, 2.0), "as in a stability map"


@pytest.mark.parametrize("width", [4, 10])
@pytest.mark.parametrize("place", range(0, 9, 2))
def test_a_stable_region_between_rates_that_break_is_found_to_its_upper_edge(place: int, width: float) -> None:
    """As where too small a rate ends at chance, and too large a one does not train either."""
    lowest = 1e-4 * (1e4 / width) ** (place / 8)
    search = Search(1e-4, 1, seeds=(0, 1, 2), budget=12)
    found = search_largest_stable(search, lambda rate, seed: lowest <= rate < width * lowest)
    assert len(found.probes) <= 12
    bracket = found.brackets[0]
    assert lowest <= bracket.low < width * lowest <= bracket.high
    assert bracket.high / bracket.low <= 2


def searches(folder: Path, pretraining: dict[str, Any] = PRETRAIN, **given: Any) -> Searches:
    path = folder / "mine.yaml"
    path.write_text(write_yaml({"steps": {"pretrain": pretraining}, "search": SEARCH | given}))
    return Searches(read_sweep(str(path), "full"))


def test_every_combination_of_the_grid_has_a_search(tmp_path: Path) -> None:
    found = searches(tmp_path, PRETRAIN | {"grid": {"stem": ["patchify", "conv"], "lr": [1, 2, 3]}, "seeds": [0, 1]})
    assert [group.job.options["stem"] for group in found.groups] == ["patchify", "conv"]
    assert len(found.start()) == 2


SENSELESS = [
    ({"low": 1, "high": 0.1}, "0 < low < high"),
    ({"option": "optimizer"}, "`optimizer` is not a number"),
    ({"low": "small"}, "got low small"),
    ({"step": "reid"}, "unknown key 'reid'"),
    ({"seeds": [0, 1, 2], "budget": 4}, "budget >= 5"),
]


@pytest.mark.parametrize(("given", "says"), SENSELESS)
def test_a_search_without_sense_is_named(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        searches(tmp_path, **given)


def test_the_largest_rate_whose_score_is_above_chance_is_found(tmp_path: Path) -> None:
    found = searches(tmp_path, low=1e-3, high=1, ratio=1.5, budget=12)
    asked = found.start()
    while asked:
        rate = asked[0].options["lr"]
        record = broken("diverged", lr=rate) if rate > 0.3 else classifier("conv", rate, 300 if rate < 0.05 else 100)
        asked = [*found.next_jobs(Progress(asked[0], status=record.outcome["status"], record=record))]
    (row,) = found.table().to_frame().to_dict("records")
    assert 0.03 <= float(row["largest stable lr"]) <= 0.07
    assert row["runs"] <= 12
    assert "ended at chance level" in row["note"]
    # from 30 % to chance, 10 %, between two rates of which 0.05 is in the middle of neither
    assert 0.03 <= float(row["half-score lr"]) <= 0.07


def test_the_command_sets_budget_range_and_seeds_of_a_search() -> None:
    sweep = read_sweep("stability", "smoke", ("search.budget=4", "search.high=0.5"), seeds=[3])
    (search, *_) = (group.search for group in Searches(sweep).groups)
    assert (search.budget, search.high, search.seeds) == (4, 0.5, (3,))
    with pytest.raises(UsageError, match=r"unknown key 'budge'; did you mean 'budget'\? \(known: step, option, low"):
        read_sweep("stability", "smoke", ("search.budge=4",))


def test_a_training_that_was_not_judged_leaves_a_search_undecided(tmp_path: Path) -> None:
    found = searches(tmp_path)
    (asked,) = found.start()
    progress = Progress(asked, status="not_judged", record=classifier("conv", 1.0, 900, "not_judged"))
    assert found.next_jobs(progress) == ()
    (row,) = found.table().to_frame().to_dict("records")
    assert "cannot be decided: 12 steps, and fewer than 20 are not judged" in row["note"]
