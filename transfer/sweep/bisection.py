"""The largest rate that still trains, by a search with a budget of runs. No torch.

A rate is stable when the training at it does not break down. The search first takes rates below a stable one to be
stable, which finds a single limit in the fewest runs. Where that leads to no stable rate it looks everywhere between
its ends, since a training breaks down at too small a rate, too (at chance). What contradicts a single limit is said.
"""

import itertools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

TO_CONFIRM = 2
"""Runs that show a further seed to have the bracket of the one before."""


@dataclass(frozen=True)
class Probe:
    """A training that was asked for: its rate, its seed, and whether it was stable."""

    rate: float
    seed: int
    stable: bool


@dataclass(frozen=True)
class Bracket:
    """What is known of one seed: the largest stable rate lies from `low` up to `high`."""

    seed: int
    low: float
    """Largest rate that was stable; 0 where none was."""
    high: float
    """Smallest rate above it that broke down; infinite where none did."""

    @property
    def ratio(self) -> float:
        """high / low."""
        return self.high / self.low if self.low else math.inf


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    brackets: tuple[Bracket, ...]
    probes: tuple[Probe, ...]
    violations: tuple[str, ...]
    """Stable rates above one that broke down, for the same seed."""

    @property
    def estimate(self) -> float:
        """The middle, on a logarithmic scale, of where the seeds' median limit lies; nan where that is open.

        A seed whose bracket is open on one side counts with the other: the median of limits lies between the medians of
        their lower and of their upper ends.
        """
        if not self.brackets:
            return math.nan
        low, high = (median(ends) for ends in zip(*((b.low, b.high) for b in self.brackets), strict=True))
        return math.sqrt(low * high) if low > 0 and high < math.inf else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """From the smallest to the largest rate at which the limit of some seed can lie: its range over the seeds."""
        return min(b.low for b in self.brackets), max(b.high for b in self.brackets)


@dataclass
class Search:
    """Asks for one training after the other; `probe` is given each result.

    The first seed bisects [low, high] on a logarithmic scale until the bracket's ends differ by no more than `ratio`;
    the others start from the bracket of the one before and go outwards where theirs is elsewhere, in steps of `ratio`
    squared that double. The budget is shared so that every seed has its turn, and is never exceeded.

    A break-down sends the search to smaller rates. When it has come to `low`, or to the last third of the budget, and
    nothing was stable, it tries the middle of the widest gap between the rates tried so far (of equal ones the upper),
    until a rate is stable or no gap is wider than `ratio` squared; then it bisects from that rate to the next one above
    that broke down. A seed that has to look like this may take the shares of the seeds to come.

    Args:
        low, high: rates; their ends are not tried before the middle is.
        budget: most trainings in all.
        ratio: above 1.
    """

    low: float
    high: float
    seeds: Sequence[int]
    budget: int
    ratio: float = 1.5
    probes: list[Probe] = field(default_factory=list)

    def plan(self) -> Generator[tuple[float, int], bool, SearchResult]:
        """A generator of (rate, seed) that is sent whether the training was stable, and returns what was found."""
        brackets: list[Bracket] = []
        for place, seed in enumerate(self.seeds):
            left, over = len(self.seeds) - place - 1, self.budget - len(self.probes)
            allowance = max(over - TO_CONFIRM * left, min(over, TO_CONFIRM))
            if allowance <= 0:
                break
            brackets.append((yield from self._bracket(seed, brackets[-1] if brackets else None, allowance)))
        return SearchResult(tuple(brackets), tuple(self.probes), tuple(_violations(self.probes)))

    def _bracket(self, seed: int, near: Bracket | None, allowance: int) -> Generator[tuple[float, int], bool, Bracket]:
        before = len(self.probes)
        share, looked = before + allowance, False
        for rate in self._rates(near):
            # both ends: one that is stable above one that is not contradicts a single limit
            if len(self.probes) < share:
                yield from self._try(rate, seed)
        downwards = self.budget - self.budget // 3
        step = self.ratio**2 if near else math.inf
        while len(self.probes) < (self.budget if looked or self._nothing_by(share) else share):
            own = self.probes[before:]
            stable, broken = _limits(own)
            middle = self._next(stable, broken, step) if stable or len(own) < downwards else None
            if middle is None and not stable:
                middle, looked = self._between(own), True
            step *= step
            if middle is None or middle in (stable, broken):  # the same in four digits
                break
            yield from self._try(middle, seed)
        return Bracket(seed, *_limits(self.probes[before:]))

    def _nothing_by(self, runs: int) -> bool:
        """Whether none of the first runs was stable, with whatever seed."""
        return not any(probe.stable for probe in self.probes[:runs])

    def _between(self, own: Sequence[Probe]) -> float | None:
        """The middle of the widest gap between rates that were tried; None when all are narrow."""
        marks = sorted({self.low, self.high, *(probe.rate for probe in own)})
        width, below, above = max((round(math.log(b / a), 2), a, b) for a, b in itertools.pairwise(marks))
        return _rounded(math.sqrt(below * above)) if width > 2 * math.log(self.ratio) else None

    def _rates(self, near: Bracket | None) -> Iterator[float]:
        """The ends of the bracket of another seed."""
        if near is not None:
            yield from (rate for rate in (near.low, near.high) if 0 < rate < math.inf)

    def _next(self, stable: float, broken: float, step: float) -> float | None:
        """The rate to try, the middle of what is open, at most a step outside; None when that is small enough."""
        below, above = stable or self.low, min(broken, self.high)
        if (stable == 0 and broken <= self.low) or (broken == math.inf and stable >= self.high):
            return None
        if stable and broken < math.inf:
            return None if broken / stable <= self.ratio else _rounded(math.sqrt(stable * broken))
        if above / below <= self.ratio:
            return self.low if not stable else self.high  # the end itself was never tried
        middle = math.sqrt(below * above)
        return _rounded(min(middle, stable * step) if stable else max(middle, broken / step))

    def _try(self, rate: float, seed: int) -> Generator[tuple[float, int], bool, bool]:
        stable = yield rate, seed
        self.probes.append(Probe(rate, seed, stable))
        return stable


def _limits(probes: Sequence[Probe]) -> tuple[float, float]:
    """The largest stable rate, 0 without one, and the smallest above it that broke down, infinite without one."""
    stable = max((probe.rate for probe in probes if probe.stable), default=0.0)
    return stable, min((probe.rate for probe in probes if not probe.stable and probe.rate > stable), default=math.inf)


def _rounded(rate: float) -> float:
    """Four digits, as a command line shows them."""
    return float(f"{rate:.4g}")


def search_largest_stable(search: Search, probe: Callable[[float, int], bool]) -> SearchResult:
    """Runs a whole search; `probe(rate, seed)` says whether the training at a rate is stable."""
    plan = search.plan()
    try:
        asked = next(plan)
        while True:
            asked = plan.send(probe(*asked))
    except StopIteration as end:
        found: SearchResult = end.value
        return found


def _violations(probes: Sequence[Probe]) -> Iterator[str]:
    for seed in dict.fromkeys(probe.seed for probe in probes):
        mine = [probe for probe in probes if probe.seed == seed]
        broken = [probe.rate for probe in mine if not probe.stable]
        for probe in mine:
            if probe.stable and broken and probe.rate > min(broken):
                yield f"seed {seed}: {probe.rate:g} is stable, {min(broken):g} below it broke down"
