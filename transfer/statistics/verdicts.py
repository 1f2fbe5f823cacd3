"""What a comparison concludes, as values. Sentences are made of them in `transfer.report.tables.comparison_rows` alone.

`docs/verdicts.md` says how each is reached. Imports no torch.
"""

from dataclasses import dataclass, replace
from enum import Enum

from transfer.statistics.contrasts import with_more_seeds
from transfer.statistics.intervals import Estimate

POINT = 0.01
"""One point of a score in percent, which the advice on seeds is for."""
MOST_SEEDS = 100


class Kind(Enum):
    """Every verdict that there is; `a` and `b` are the sides of the comparison."""

    A_BETTER = "a better"
    B_BETTER = "b better"
    ABOVE = "above 0"
    """Of an effect, which has no sides"""
    BELOW = "below 0"
    EQUIVALENT = "equivalent"
    """Two one-sided tests show a difference smaller than the margin either way"""
    CANNOT_TELL = "cannot tell"
    A_BROKE_DOWN = "a broke down"
    B_BROKE_DOWN = "b broke down"
    BOTH_BROKE_DOWN = "both broke down"
    NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Breakdowns:
    """Of a side's seeds, how many have no score since a training broke down: their own, or one before it."""

    side: str
    broken: int
    of: int


@dataclass(frozen=True)
class Verdict:
    """A conclusion with its numbers, in the score's own unit."""

    kind: Kind
    reasons: tuple[str, ...] = ()
    """Why nothing can be compared"""
    margin: float | None = None
    """That a difference was asked to be within"""
    within: bool = False
    """Whether it is shown to be; so may be one that is shown not to be 0"""
    excluded: float | None = None
    """Where nothing can be told: no larger difference, either way, is left open by the interval"""
    smallest: float | None = None
    """Where nothing can be told: the true difference that would be shown four times in five; infinite where none is"""
    seeds: int | None = None
    """Where nothing can be told: seeds that each system would have to have besides, for one point to be shown so often.
    None where seeds do not matter or nothing is known of them; -1 where no number of them would do"""
    equal: bool = False
    """Whether the systems' outcomes are the same on every sample"""
    breakdowns: tuple[Breakdowns, ...] = ()
    """Of each side, where any broke down: the verdict is then one on those that trained"""
    counted: Estimate | None = None
    """The difference with what broke down at chance, as it is for who takes a recipe without knowing how it will end"""


def verdict_of(
    estimate: Estimate,
    *,
    p: float | None = None,
    higher: bool = True,
    effect: bool = False,
    tests: int = 1,
    margin: float | None = None,
    advise: bool = True,
    breakdowns: tuple[Breakdowns, ...] = (),
    counted: Estimate | None = None,
) -> Verdict:
    """What an estimate says.

    Args:
        breakdowns, counted: see `Verdict`.
        p: the adjusted p value; by default its own.
        higher: is better.
        effect: it is one of a field, not a difference of sides.
        tests: over which p values are adjusted.
        margin: a difference smaller than this does not matter. Without one nothing is called equivalent.
        advise: on seeds, for scores in which a point is a hundredth.
    """
    found = _verdict(estimate, p, higher, effect, tests, margin, advise)
    return replace(found, breakdowns=breakdowns, counted=counted) if any(own.broken for own in breakdowns) else found


def _verdict(
    estimate: Estimate, p: float | None, higher: bool, effect: bool, tests: int, margin: float | None, advise: bool
) -> Verdict:
    within = margin is not None and estimate.within(margin)
    if (estimate.p if p is None else p) < 1 - estimate.level:
        above = estimate.estimate > 0
        kind = (Kind.BELOW, Kind.ABOVE) if effect else (Kind.B_BETTER, Kind.A_BETTER)
        return Verdict(kind[above == higher if not effect else above], margin=margin, within=within)
    if estimate.low == estimate.high:
        return Verdict(Kind.EQUIVALENT, margin=0.0, within=True, equal=True)
    equal = estimate.discordant == 0
    if within:
        return Verdict(Kind.EQUIVALENT, margin=margin, within=True, equal=equal)
    return Verdict(
        Kind.CANNOT_TELL,
        margin=margin,
        excluded=max(abs(estimate.low), abs(estimate.high)),
        smallest=estimate.smallest_difference(tests=tests),
        seeds=seeds_to_add(estimate, POINT, tests=tests) if advise else None,
        equal=equal,
    )


def broken_down(a: bool, b: bool) -> Verdict:
    """Where a side has no score since its training broke down."""
    return Verdict(Kind.BOTH_BROKE_DOWN if a and b else Kind.A_BROKE_DOWN if a else Kind.B_BROKE_DOWN)


def seeds_to_add(estimate: Estimate, difference: float, *, tests: int = 1) -> int | None:
    """Seeds that each system needs besides, for a true difference of this size to be shown four times in five.

    More seeds divide the variance between seeds; that over test samples, the models being given, stays as it is, though
    it falls a little too. 0 where they suffice; -1 where even 100 would not.
    """
    if estimate.seed_error is None or not estimate.seeds or min(estimate.seeds) < 2:
        return None
    if estimate.smallest_difference(tests=tests) <= difference:
        return 0
    for more in range(1, MOST_SEEDS + 1):
        if with_more_seeds(estimate, more).smallest_difference(tests=tests) <= difference:
            return more
    return -1
