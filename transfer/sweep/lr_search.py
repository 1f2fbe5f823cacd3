"""Searches the largest stable learning rate with jobs of a sweep, one search per row and combination of the grid.

A rate is stable when the training run does not fail and its metric is above chance level. The search first assumes
that all rates below a stable one are stable, which finds a single limit in the fewest runs. If that finds no stable
rate, it searches the whole range, because training also fails (at chance level) if the rate is too small. Results that
contradict a single limit are reported; the half-score rate of the same runs stands beside it.
"""

import itertools
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from statistics import median
from typing import Any, NamedTuple

from transfer.core.errors import UsageError
from transfer.core.user_code import VARIED_PARTS
from transfer.experiments.grid import SweepJob, expand
from transfer.experiments.step import parse_seeds
from transfer.experiments.sweep_file import SweepFile
from transfer.records.evidence import Evidence, chance, ending
from transfer.records.record import Record
from transfer.report.tables.table import Column, Table
from transfer.statistics.half_score import half_score_summary, stable_limits
from transfer.sweep.runner import Progress

TO_CONFIRM = 2
"""The number of runs that confirm that a seed has the same bracket as the seed before."""


class Probe(NamedTuple):
    """A finished training run: its rate, its seed, and whether it was stable."""

    rate: float
    seed: int
    stable: bool


class Bracket(NamedTuple):
    """The result for one seed: its largest stable rate lies between `low` and `high`."""

    seed: int
    low: float
    """The largest rate that was stable; 0 if none was."""
    high: float
    """The smallest rate above it at which the training failed; infinite if it never did."""


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
    brackets: list[Bracket] = field(default_factory=list)

    @property
    def estimate(self) -> float:
        """Estimated median limit over the seeds: the geometric mean of its bounds; nan if a bound is missing.

        The median limit lies between the median of the lower ends and the median of the upper ends, so a seed whose
        bracket is open on one side still contributes by its other side.
        """
        low = median(bracket.low for bracket in self.brackets)
        high = median(bracket.high for bracket in self.brackets)
        return math.sqrt(low * high) if low > 0 and high < math.inf else math.nan

    @property
    def violations(self) -> list[str]:
        """A sentence for each stable rate above one that failed with the same seed."""
        least = dict.fromkeys(self.seeds, math.inf)
        for rate, seed, stable in self.probes:
            if not stable:
                least[seed] = min(rate, least[seed])
        return [
            f"seed {seed}: {rate:g} is stable, but training failed at the smaller {least[seed]:g}"
            for rate, seed, stable in self.probes
            if stable and rate > least[seed]
        ]

    def plan(self) -> Generator[tuple[float, int], bool, None]:
        """Yield (rate, seed) of one training run after the other, and be sent whether it was stable."""
        for index, seed in enumerate(self.seeds):
            later_seeds, remaining = len(self.seeds) - index - 1, self.budget - len(self.probes)
            allowance = max(remaining - TO_CONFIRM * later_seeds, min(remaining, TO_CONFIRM))
            if allowance <= 0:
                break
            self.brackets.append((yield from self._bracket(seed, allowance)))

    def _bracket(self, seed: int, allowance: int) -> Generator[tuple[float, int], bool, Bracket]:
        """Search the limit of one seed, starting from the bracket of the seed before, and return its bracket."""
        first, near = len(self.probes), self.brackets[-1] if self.brackets else None
        share, searches_gaps = first + allowance, False
        for rate in (near.low, near.high) if near else ():
            # both ends are tried: a stable one above a failed one contradicts a single limit
            if 0 < rate < math.inf and len(self.probes) < share:
                self.probes.append(Probe(rate, seed, (yield rate, seed)))
        downwards = self.budget - self.budget // 3
        step = self.ratio**2 if near else math.inf
        while len(self.probes) < share or (
            len(self.probes) < self.budget and (searches_gaps or not any(probe.stable for probe in self.probes[:share]))
        ):
            probes = self.probes[first:]
            stable, failed = _limits(probes)
            middle = self._next_rate(stable, failed, step) if stable or len(probes) < downwards else None
            if middle is None and not stable:
                middle, searches_gaps = self._middle_of_widest_gap(probes), True
            step *= step
            if middle is None or middle in (stable, failed):  # the same in four digits
                break
            self.probes.append(Probe(middle, seed, (yield middle, seed)))
        return Bracket(seed, *_limits(self.probes[first:]))

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


def _limits(probes: Sequence[Probe]) -> tuple[float, float]:
    """Return the largest stable rate (0 if none) and the smallest failed rate above it (infinite if none)."""
    return stable_limits((probe.rate, probe.stable) for probe in probes)[:2]


def _rounded(rate: float) -> float:
    """Round to four digits, as a command line shows them."""
    return float(f"{rate:.4g}")


@dataclass
class SearchJobs:
    """One search: the job whose learning rate it varies, and its state."""

    job: SweepJob
    search: Search
    ended: bool = False
    failed: str = ""
    """The reason why the search cannot continue; empty if it can."""
    records: list[tuple[float, Record]] = field(default_factory=list)
    """The rates and records of the training runs."""

    def __post_init__(self) -> None:
        self.plan = self.search.plan()

    def half_score(self) -> float:
        """Return the half-score rate of the search, nan where it is not bracketed or the metric has no chance level."""
        curves: dict[int, list[tuple[float, float]]] = {}
        self.records.sort(key=itemgetter(0))
        for rate, record in self.records:
            for score in Evidence([record]).variant([record]).with_breakdowns(record.primary).values():
                curves.setdefault(record.seed, []).append((rate, score))
        if not curves:
            return math.nan
        first = self.records[0][1]
        level = chance(first, first.primary) or 0.0
        return half_score_summary(curves, first.scale(first.primary) * level)[0]


@dataclass
class Searches:
    """All searches of a sweep whose YAML has `search`; `Sweeper` calls `next_jobs` when a job has ended."""

    sweep: SweepFile
    group_of_job: dict[str, SearchJobs] = field(default_factory=dict)
    """The search that requested a job, by the name of the job."""

    def __post_init__(self) -> None:
        settings, where = self.sweep.search or {}, f"sweep {self.sweep.name}: search"
        self.option, seeds = str(settings.get("option", "lr")), parse_seeds(settings.get("seeds", [0, 1, 2]), where)
        low, high, ratio = settings["low"], settings["high"], settings.get("ratio", 1.5)
        self.budget = budget = settings.get("budget", 12)
        step = str(settings.get("step", list(self.sweep.steps)[-1]))
        numbers = all(isinstance(value, int | float) for value in (low, high, ratio, budget))
        least = 2 * len(seeds) - 1
        if not (numbers and 0 < low < high < math.inf and ratio > 1 and budget >= least):
            raise UsageError(
                f"{where}: needs 0 < low < high, ratio > 1 and budget >= {least}, got low {low}, high {high}, "
                f"ratio {ratio}, budget {budget}; use --set search.KEY=VALUE"
            )
        if later := [other.name for other in self.sweep.steps.values() if other.after == step]:
            raise UsageError(f"{where}: step {later[0]!r} follows the searched step; remove it")
        value = self.sweep.steps[step].source.values().get(self.option)
        if isinstance(value, bool) or not isinstance(value, int | float):
            fault = f"`{self.option}` is not a number (the recipe has {value!r}), so it has no range"
            raise UsageError(f"{where}: {fault}")
        self.prerequisites = list[SweepJob]()
        searched: dict[str, SweepJob] = {}  # the jobs of a search differ in nothing but the seed and the rate
        for job in expand(self.sweep):
            if job.step.name != step:
                self.prerequisites.append(job)
                continue
            options = {name: value for name, value in job.options.items() if name != self.option}
            searched.setdefault(repr((job.backbone, job.dataset, job.parent and job.parent.name, options)), job)
        self.groups = [SearchJobs(job, Search(low, high, seeds, budget, ratio)) for job in searched.values()]

    def start(self) -> list[SweepJob]:
        """Return the first jobs: those that the searched step needs, and the first training run of every search."""
        return [*self.prerequisites, *(self._job(group, next(group.plan)) for group in self.groups)]

    def next_jobs(self, progress: Progress) -> Sequence[SweepJob]:
        """Return the next training run of the search to which a finished job belongs."""
        group = self.group_of_job.get(progress.job.name)
        if group is None or group.ended:
            return ()
        if progress.record is None:
            group.failed = f"{progress.job.title} {progress.status}: {progress.reason}"
            return ()
        ended = ending(progress.record)
        if ended == "not_judged":
            group.failed = f"whether {progress.job.title} is stable cannot be decided: {progress.record.reason}"
            return ()
        group.records.append((progress.job.options[self.option], progress.record))
        try:
            return [self._job(group, group.plan.send(ended == "completed"))]
        except StopIteration:
            group.ended = True
            return ()

    def table(self) -> Table:
        """Return one row per search: largest stable value, that of each seed, number of runs, contradictions."""
        columns = [Column(f"{name} {self.option}", significant_digits=3) for name in ("largest stable", "half-score")]
        return Table.from_rows((self._row(group) for group in self.groups), columns)

    def _row(self, group: SearchJobs) -> dict[str, Any]:
        job, search = group.job, group.search
        options = ", ".join(f"{name}={job.options[name]}" for name in _axes(job) if name != self.option)
        row: dict[str, Any] = {"sweep": job.label or job.step.name, "backbone": job.backbone}
        row |= {"dataset": job.dataset, "options": options}
        if not group.ended:
            return row | {"note": f"search unfinished: {group.failed or 'stopped'}", "runs": len(search.probes)}
        notes = search.violations
        if at_chance := sum(ending(record).endswith("at_chance") for _, record in group.records):
            notes.insert(0, f"{at_chance} ended at chance level, as also happens where {self.option} is too small")
        if missing := search.seeds[len(search.brackets) :]:
            more = f"use --set search.budget={search.budget + 2 * len(missing)}"
            notes.insert(0, f"no runs were left for seed {', '.join(map(str, missing))}; {more}")
        return row | {
            f"largest stable {self.option}": search.estimate,
            f"half-score {self.option}": group.half_score(),
            "each seed": tuple(f"seed {seed}: {low:.3g} to {high:.3g}" for seed, low, high in search.brackets),
            "runs": len(search.probes),
            "note": tuple(notes),
        }

    def _job(self, group: SearchJobs, rate_and_seed: tuple[float, int]) -> SweepJob:
        (rate, seed), old = rate_and_seed, group.job
        job = replace(old, seed=seed, options=old.options | {self.option: rate}, axes=(*_axes(old), self.option))
        self.group_of_job[job.name] = group
        return job


def _axes(job: SweepJob) -> tuple[str, ...]:
    """Return the names of the options of a job that its grid or the row of a part varies."""
    varied = dict.fromkeys((*job.step.varied, *VARIED_PARTS))
    return tuple(name for name in varied if name in job.options)
