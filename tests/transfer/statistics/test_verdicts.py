import csv
import itertools
from dataclasses import replace

import pytest
from scipy import stats

from tests.documents import ROOT
from transfer.report.tables.comparison import verdict_text
from transfer.statistics.intervals import Estimate
from transfer.statistics.verdicts import FEW_DIFFER, Kind, Verdict, conclusion, verdict_of

UNSURE = Estimate(0.01, -0.02, 0.04, p=0.4, errors=((0.012, 4),), discordant=355, inner=(-0.015, 0.035))


def test_the_smallest_detectable_difference_is_that_of_the_corrected_level() -> None:
    quantiles = stats.t.ppf(1 - 0.05 / 5 / 2, 4) + stats.t.ppf(0.8, 4)
    assert UNSURE.smallest_difference(tests=5) == pytest.approx(quantiles * 0.012)
    assert verdict_of(UNSURE, tests=5).smallest == UNSURE.smallest_difference(tests=5)


SENTENCES = [
    (Verdict(Kind.BELOW, margin=0.01), "below 0"),
    (Verdict(Kind.EQUIVALENT, margin=0.01, within=True), "equivalent within 1.0"),
    (Verdict(Kind.INCONCLUSIVE, smallest=0.031), "inconclusive; minimum detectable difference 3.1"),
    (Verdict(Kind.INCONCLUSIVE, smallest=2), "inconclusive; no difference up to 100 points is detectable; add seeds"),
    (Verdict(Kind.INCONCLUSIVE, why=FEW_DIFFER), "inconclusive; too few clusters differ"),
    (Verdict(Kind.INCONCLUSIVE, percent=False, smallest=0.03), "inconclusive; minimum detectable difference 0.03"),
    (Verdict(Kind.A_FAILED), "not compared: a failed"),
]


@pytest.mark.parametrize(("verdict", "said"), SENTENCES)
def test_every_kind_has_its_sentence(verdict: Verdict, said: str) -> None:
    assert verdict_text(verdict) == said


def test_equivalence_is_of_two_one_sided_tests_and_needs_a_margin() -> None:
    assert verdict_of(UNSURE).kind is Kind.INCONCLUSIVE
    assert verdict_of(UNSURE, margin=0.034).kind is Kind.INCONCLUSIVE
    assert verdict_of(UNSURE, margin=0.036).kind is Kind.EQUIVALENT
    few = Estimate(0.0, -0.01, 0.01, inner=(-0.008, 0.008), discordant=9)
    assert verdict_of(few, margin=0.02).why == FEW_DIFFER
    better = Estimate(0.01, 0.005, 0.015, p=0.001, inner=(0.006, 0.014), discordant=355)
    assert verdict_of(better, margin=0.02) == Verdict(Kind.A_BETTER, margin=0.02, within=True)
    assert verdict_text(verdict_of(better, margin=0.02)) == "a better, by less than 2.0"
    assert verdict_of(better, higher=False).kind is Kind.B_BETTER
    assert verdict_of(better, higher=False, effect=True).kind is Kind.ABOVE
    corrected = verdict_of(replace(better, errors=((0.005, 1e6),)), p=0.2)
    assert corrected.smallest == pytest.approx(2.8 * 0.005, rel=0.01)
    assert verdict_text(corrected) == "inconclusive; not significant after correction for several tests"


def test_the_recorded_study_keeps_five_percent_within_seven_in_every_cell() -> None:
    cells = list(csv.DictReader((ROOT / "tests/benchmarks/evidence.csv").read_text().splitlines()))
    rejected = [float(cell["rejected"]) for cell in cells if cell["rejected"]]
    assert (len(cells), len(rejected) > 250, max(rejected) <= 7) == (459, True, True)


def plain(expect: str, low: float, high: float, margin: float) -> str:
    """The table of docs/guide/claims.md, a line each."""
    within = -margin < low and high < margin
    support, contradiction = {
        ">": (low > 0 and not within, high <= -margin),
        "<": (high < 0 and not within, low >= margin),
        "=": (within, low >= margin or high <= -margin),
        ">=": (low > -margin, high <= -margin),
        "<=": (high < margin, low >= margin),
    }[expect]
    other = "no relevant effect" if within and "=" not in expect else "undecided"
    return "support" if support else "contradiction" if contradiction else other


def test_a_conclusion_is_that_of_the_documented_table() -> None:
    ends = (-3.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 3.0)
    for (low, high), margin, sign in itertools.product(
        itertools.combinations(ends, 2), (None, 1.0), ("> 0", "a < b", "a > b", "a = b", "a >= b", "a <= b")
    ):
        if margin or "=" not in sign:
            wanted = plain(sign.strip("ab0 "), low, high, margin or 0.0)
            assert conclusion(sign, low, high, margin) == wanted, (sign, low, high, margin)


def test_too_few_samples_that_differ_call_nothing_smaller_than_the_margin() -> None:
    for expect in ("a = b", "a >= b", "a <= b", "a > b"):
        assert conclusion(expect, -0.5, 0.4, 1.0, enough=False) == "undecided"
    assert conclusion("a > b", 0.1, 0.4, 1.0, enough=False) == "support"
