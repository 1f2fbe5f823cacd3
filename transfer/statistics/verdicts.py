"""What a comparison, and the rule of a claim, conclude. `transfer.report` makes sentences of the values.

`docs/concepts/statistics.md` says how each is reached. Imports no torch.
"""

import math
from dataclasses import dataclass, replace
from enum import Enum

from transfer.statistics.intervals import LEVEL, Estimate

SUPPORT, NO_EFFECT, CONTRADICTION, UNDECIDED = "support", "no relevant effect", "contradiction", "undecided"
VERDICTS = (SUPPORT, NO_EFFECT, CONTRADICTION, UNDECIDED)


class Kind(Enum):
    """Every verdict that there is, in the order in which they are told; `a` and `b` are the variants."""

    A_BETTER = "a better"
    B_BETTER = "b better"
    ABOVE = "above 0"
    """The verdict on an effect, which has no variants."""
    BELOW = "below 0"
    A_FAILED = "a failed"
    B_FAILED = "b failed"
    BOTH_FAILED = "both failed"
    AT_CHANCE = "not above chance"
    """No variant scores above chance on these test samples, so that their difference means nothing."""
    EQUIVALENT = "equivalent"
    """Two one-sided tests show a difference smaller than the margin either way."""
    INCONCLUSIVE = "inconclusive"
    NO_INTERVAL = "no interval"
    """Per-sample outcomes are missing, damaged or of other samples, or do not add up to the score."""


ONE_SEED = "one variant has a single seed"
"""It is beside several seeds of the other variant, so that its own variance is unknown."""
CORRECTED = "not significant after correction for several tests"
"""The row's own interval shows a difference."""
NO_DIFFERENCE = "no difference on any sample"
FEW_DIFFER = "too few clusters differ"
"""Nothing is said of what could have been detected, and variants are not called equivalent."""


@dataclass(frozen=True)
class Breakdowns:
    """How many seeds of a variant failed, so that they have no score, how many were judged, and how many were not."""

    variant: str
    broken: int
    judged: int
    not_judged: int = 0


@dataclass(frozen=True)
class Verdict:
    """A conclusion with its numbers, in the score's own unit.

    Attributes:
        kind: the conclusion.
        percent: whether the score is a fraction, which readers are shown in percent.
        margin: what a difference was asked to be within; None where nothing was asked.
        within: whether the difference is shown to be within the margin; so may be one that is shown not to be 0.
        why: `ONE_SEED`, `CORRECTED`, `NO_DIFFERENCE` or `FEW_DIFFER`, where nothing can be told for that reason.
        smallest: where nothing can be told, the true difference that would be shown four times in five; infinite where
            too few clusters disagree to say.
        breakdowns: of each variant, where any failed; the verdict is then one on those that trained.
        counted: the difference with training runs that failed at chance: what whoever takes a recipe without knowing
            how it will end has to expect.
        caveats: why a difference shown here may not hold elsewhere.
    """

    kind: Kind
    percent: bool = True
    margin: float | None = None
    within: bool = False
    why: str = ""
    smallest: float = math.inf
    breakdowns: tuple[Breakdowns, ...] = ()
    counted: Estimate | None = None
    caveats: tuple[str, ...] = ()


def verdict_of(
    estimate: Estimate,
    *,
    p: float | None = None,
    slack: float = 0.0,
    higher: bool = True,
    effect: bool = False,
    tests: int = 1,
    margin: float | None = None,
    percent: bool = True,
) -> Verdict:
    """Return what an estimate of a difference concludes.

    Args:
        p: the adjusted p value; without one the interval shows a difference.
        slack: how far the number that is compared with may be from its print, either way; 0 for a comparison of scores.
        higher: whether more of the score is better.
        effect: whether the difference is an effect of a field, not one of variants.
        tests: the number of tests over which p values are adjusted.
        margin: a difference smaller than this does not matter. Without one nothing is called equivalent.
        percent: whether the score is a fraction.
    """
    verdict = Verdict(Kind.INCONCLUSIVE, percent=percent, margin=margin)
    if estimate.borrowed:
        return replace(verdict, why=ONE_SEED)
    verdict = replace(verdict, within=margin is not None and estimate.within(margin, slack))
    if p < 1 - LEVEL if p is not None else estimate.shown(slack):
        above = estimate.estimate > 0
        kinds = (Kind.BELOW, Kind.ABOVE) if effect else (Kind.B_BETTER, Kind.A_BETTER)
        return replace(verdict, kind=kinds[above if effect else above == higher])
    if verdict.within:
        return replace(verdict, kind=Kind.EQUIVALENT)
    why = FEW_DIFFER if estimate.few else ""
    if estimate.shown(slack):
        why = CORRECTED
    elif estimate.method == "rule of three" and not estimate.estimate:
        why = NO_DIFFERENCE
    return replace(verdict, why=why, smallest=estimate.smallest_difference(tests=tests))


def conclusion(expect: str, low: float, high: float, margin: float | None, *, enough: bool = True) -> str:
    """Return the verdict on an effect, as `docs/guide/claims.md` states it.

    Args:
        expect: "a > b", "> 0", "a >= b", "a = b" and their reverses, about the effect of a less b.
        low, high: the 95 % interval of the effect.
        margin: the smallest relevant effect; None if there is none.
        enough: whether enough samples differ to call an effect smaller than the margin.
    """
    if "<" in expect:
        low, high = -high, -low
    margin = margin or 0.0
    below, within = high <= -margin, enough and -margin < low and high < margin
    if expect == "a = b":
        return SUPPORT if within else CONTRADICTION if below or low >= margin else UNDECIDED
    if "=" in expect:
        return SUPPORT if enough and low > -margin else CONTRADICTION if below else UNDECIDED
    return NO_EFFECT if within else SUPPORT if low > 0 else CONTRADICTION if below else UNDECIDED
