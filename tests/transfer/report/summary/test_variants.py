"""Which variants a page compares by itself."""

from typing import Any

import pytest

from tests.transfer.records.recorded import made, run_set
from transfer.records.run_set import RunSet
from transfer.report.summary.sentences import MOST_RUNS, arms_to_compare, why_no_arms


def runs(*given: dict[str, Any]) -> RunSet:
    return run_set([made(**one) for one in given])


@pytest.mark.parametrize(
    ("given", "pairs"),
    [
        ([{"stem": "conv"}, {}], [("stem=conv", "stem=patchify")]),
        ([{}, {"stem": "conv"}, {"stem": "sconv"}], [("stem=conv", "stem=patchify"), ("stem=sconv", "stem=patchify")]),
        ([{"attention": "relu"}, {}], [("attention=relu", "attention=softmax")]),
        ([{"stem": "conv"}, {"stem": "sconv"}], [("stem=sconv", "stem=conv")]),
        ([{}, {"stem": "conv"}, {"stem": "conv", "attention": "relu"}],
         [(f"stem=conv,attention={name}", "stem=patchify,attention=softmax") for name in ("softmax", "relu")]),
        ([{"name": "mine"}, {"name": "tiny"}], [("tiny", "mine")]),
        ([{}, {"seed": 1}, {"lr": 0.1}], []),
    ],
)  # fmt: skip
def test_new_parts_are_held_against_the_usual_one(given: list[dict[str, Any]], pairs: list[tuple[str, str]]) -> None:
    assert arms_to_compare(runs(*given)) == pairs


def test_at_most_five_pairs_and_not_among_very_many_runs() -> None:
    names = [{"name": f"net{number}"} for number in range(9)]
    assert len(arms_to_compare(runs(*names))) == 5
    many = run_set([made(stem=("conv", "patchify")[seed % 2], seed=seed) for seed in range(MOST_RUNS + 1)])
    assert arms_to_compare(many) == []
    assert "too many to be compared unasked" in why_no_arms(many)
    assert "--compare stem=conv stem=patchify" in why_no_arms(many)


def test_one_arm_is_told_what_to_add() -> None:
    assert "Add runs with another --stem, --attention or --backbone" in why_no_arms(runs({}, {"seed": 1}))
