"""Searches the largest stable learning rate with a budget of training runs. Imports no torch.

A rate is stable when the training run does not fail and its metric is above chance level. The search first assumes
that all rates below a stable one are stable, which finds a single limit in the fewest runs. If that finds no stable
rate, it searches the whole range, because training also fails (at chance level) if the rate is too small. Results that
contradict a single limit are reported.
"""

import itertools
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

TO_CONFIRM = 2
"""The number of runs that confirm that a seed has the same bracket as the seed before."""


@dataclass(frozen=True)
class Probe:
    """A finished training run: its rate, its seed, and whether it was stable."""

    rate: float
    seed: int
    stable: bool


@dataclass(frozen=True)
class Bracket:
    """The result for one seed: its largest stable rate lies between `low` and `high`."""

    seed: int
    low: float
    """The largest rate that was stable; 0 if none was."""
    high: float
    """The smallest rate above it at which the training failed; infinite if it never did."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    brackets: tuple[Bracket, ...]
    probes: tuple[Probe, ...]
    violations: tuple[str, ...]
    """A sentence for each stable rate above one that failed with the same seed."""

    @property
    def estimate(self) -> float:
        """Estimated median limit over the seeds: the geometric mean of its bounds; nan if a bound is missing.

        The median limit lies between the median of the lower ends and the median of the upper ends, so a seed whose
        bracket is open on one side still contributes by its other side.
        """
        if not self.brackets:
            return math.nan
        low, high = (median(ends) for ends in zip(*((b.low, b.high) for b in self.brackets), strict=True))
        return math.sqrt(low * high) if low > 0 and high < math.inf else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Smallest and largest rate at which the limit of some seed can lie."""
        return min(b.low for b in self.brackets), max(b.high for b in self.brackets)


@dataclass
class Search:
    """A search that plans one training run after the other and is sent the result of each.

    The first seed bisects [low, high] on a logarithmic scale until the ends of its bracket differ by at most `ratio`.
    Each other seed starts from the bracket of the seed before and, if its limit lies elsewhere, moves outwards in steps
    that start at `ratio` squared and grow. The budget is divided so that every seed is searched, and never exceeded.

    After a failed training run the search tries smaller rates. When it has reached `low`, or the last third of the
    budget, without a stable rate, it tries the middle of the widest gap between the rates tried so far (the upper one
    of equal gaps), until a rate is stable or no gap is wider than `ratio` squared; then it bisects between that rate
    and the next failed one above it. A seed that has to search like this may use the shares of later seeds.

    Args:
        low: the smallest rate; it is not tried before the middle of the range.
        high: the largest rate; it is not tried before the middle of the range.
        seeds: the seeds, one search each.
        budget: the largest number of training runs in total.
        ratio: the precision of a bracket, above 1.
    """

    low: float
    high: float
    seeds: Sequence[int]
    budget: int
    ratio: float = 1.5
    probes: list[Probe] = field(default_factory=list)

    def plan(self) -> Generator[tuple[float, int], bool, SearchResult]:
        """Yield (rate, seed), be sent whether training was stable, and return the result of the search."""
        brackets: list[Bracket] = []
        for index, seed in enumerate(self.seeds):
            later_seeds, remaining = len(self.seeds) - index - 1, self.budget - len(self.probes)
            allowance = max(remaining - TO_CONFIRM * later_seeds, min(remaining, TO_CONFIRM))
            if allowance <= 0:
                break
            brackets.append((yield from self._bracket(seed, brackets[-1] if brackets else None, allowance)))
        return SearchResult(tuple(brackets), tuple(self.probes), tuple(_violations(self.probes)))

    def _bracket(self, seed: int, near: Bracket | None, allowance: int) -> Generator[tuple[float, int], bool, Bracket]:
        """Search the limit of one seed, starting from the bracket `near` of the seed before, and return its bracket."""
        first = len(self.probes)
        share, searches_gaps = first + allowance, False
        for rate in (near.low, near.high) if near else ():
            # both ends are tried: a stable one above a failed one contradicts a single limit
            if 0 < rate < math.inf and len(self.probes) < share:
                yield from self._try(rate, seed)
        downwards = self.budget - self.budget // 3
        step = self.ratio**2 if near else math.inf
        while len(self.probes) < (self.budget if searches_gaps or self._none_stable(share) else share):
            probes = self.probes[first:]
            stable, failed = _limits(probes)
            middle = self._next_rate(stable, failed, step) if stable or len(probes) < downwards else None
            if middle is None and not stable:
                middle, searches_gaps = self._middle_of_widest_gap(probes), True
            step *= step
            if middle is None or middle in (stable, failed):  # the same in four digits
                break
            yield from self._try(middle, seed)
        return Bracket(seed, *_limits(self.probes[first:]))

    def _none_stable(self, runs: int) -> bool:
        """Return whether none of the first runs was stable, whatever their seeds."""
        return not any(probe.stable for probe in self.probes[:runs])

    def _middle_of_widest_gap(self, probes: Sequence[Probe]) -> float | None:
        """Return the middle of the widest gap between the rates tried, or None when all gaps are narrow."""
        rates = sorted({self.low, self.high, *(probe.rate for probe in probes)})
        width, below, above = max((round(math.log(b / a), 2), a, b) for a, b in itertools.pairwise(rates))
        return _rounded(math.sqrt(below * above)) if width > 2 * math.log(self.ratio) else None

    def _next_rate(self, stable: float, failed: float, step: float) -> float | None:
        """Return the middle of the open range, at most a step outside the bracket, or None when it is narrow enough."""
        below, above = stable or self.low, min(failed, self.high)
        if (stable == 0 and failed <= self.low) or (failed == math.inf and stable >= self.high):
            return None
        if stable and failed < math.inf:
            return None if failed / stable <= self.ratio else _rounded(math.sqrt(stable * failed))
        if above / below <= self.ratio:
            return self.low if not stable else self.high  # the end itself was never tried
        middle = math.sqrt(below * above)
        return _rounded(min(middle, stable * step) if stable else max(middle, failed / step))

    def _try(self, rate: float, seed: int) -> Generator[tuple[float, int], bool, None]:
        """Request one training run and remember its result."""
        stable = yield rate, seed
        self.probes.append(Probe(rate, seed, stable))


def _limits(probes: Sequence[Probe]) -> tuple[float, float]:
    """Return the largest stable rate (0 if none) and the smallest failed rate above it (infinite if none)."""
    stable = max((probe.rate for probe in probes if probe.stable), default=0.0)
    return stable, min((probe.rate for probe in probes if not probe.stable and probe.rate > stable), default=math.inf)


def _rounded(rate: float) -> float:
    """Round to four digits, as a command line shows them."""
    return float(f"{rate:.4g}")


def _violations(probes: Sequence[Probe]) -> Iterator[str]:
    """Yield a sentence for each stable rate above one that failed with the same seed."""
    for seed in dict.fromkeys(probe.seed for probe in probes):
        seed_probes = [probe for probe in probes if probe.seed == seed]
        failed = [probe.rate for probe in seed_probes if not probe.stable]
        for probe in seed_probes:
            if probe.stable and failed and probe.rate > min(failed):
                yield f"seed {seed}: {probe.rate:g} is stable, but training failed at the smaller {min(failed):g}"
