"""Searches the largest stable learning rate with jobs of a sweep, one search per row and combination of the grid."""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from transfer.core.errors import UsageError, errors_naming
from transfer.experiments.grid import SweepJob, expand, make_job
from transfer.experiments.step import check_option, parse_seeds, step_options
from transfer.experiments.sweep_file import SweepFile
from transfer.records.evidence import ending
from transfer.report.tables.table import Column, Table
from transfer.sweep.bisection import Search, SearchResult
from transfer.sweep.runner import Progress


@dataclass
class _RunningSearch:
    """One search: the job whose learning rate it varies, its plan, and its result."""

    job: SweepJob
    plan: Generator[tuple[float, int], bool, SearchResult]
    search: Search
    result: SearchResult | None = None
    failed: str = ""
    """The reason why the search cannot continue; empty if it can."""
    at_chance: int = 0
    """Number of training runs that ended at chance level."""


@dataclass
class Searches:
    """All searches of a sweep whose YAML has `search`; `Sweeper` calls `next_jobs` when a job has ended."""

    sweep: SweepFile
    groups: list[_RunningSearch] = field(default_factory=list)
    group_of_job: dict[str, _RunningSearch] = field(default_factory=dict)
    """The search that requested a job, by the name of the job."""

    def __post_init__(self) -> None:
        settings, where = self.sweep.search or {}, f"sweep {self.sweep.name}: search"
        self.option, seeds = str(settings.get("option", "lr")), parse_seeds(settings.get("seeds", [0, 1, 2]), where)
        low, high, ratio = (settings.get(name, 1.5) for name in ("low", "high", "ratio"))
        budget, step = settings.get("budget", 12), str(settings.get("step", list(self.sweep.steps)[-1]))
        self.budget = budget
        numbers = all(isinstance(value, int | float) for value in (low, high, ratio, budget))
        least = 2 * len(seeds) - 1
        if not (numbers and 0 < low < high < math.inf and ratio > 1 and budget >= least):
            raise UsageError(
                f"{where}: needs 0 < low < high, ratio > 1 and budget >= {least}, got low {low}, high {high}, "
                f"ratio {ratio}, budget {budget}; use --set search.KEY=VALUE"
            )
        if later := [later_step.name for later_step in self.sweep.steps.values() if later_step.after == step]:
            raise UsageError(f"{where}: step {later[0]!r} follows the searched step; remove it")
        with errors_naming(where):
            found = self.sweep.steps[step]
            check_option(self.option, step_options(found.kind, found.recipe))
            value = found.source.values().get(self.option)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"`{self.option}` is not a number (the recipe has {value!r}), so it has no range")
        self.prerequisites: list[SweepJob] = []
        for job in expand(self.sweep):
            if job.step.name != step:
                self.prerequisites.append(job)
            elif not any(_in_same_search(job, group.job, self.option) for group in self.groups):
                search = Search(low, high, seeds, budget, ratio)
                self.groups.append(_RunningSearch(job, search.plan(), search))

    def start(self) -> list[SweepJob]:
        """Return the first jobs: those that the searched step needs, and the first training run of every search."""
        return [*self.prerequisites, *(self._job(group, next(group.plan)) for group in self.groups)]

    def next_jobs(self, progress: Progress) -> Sequence[SweepJob]:
        """Return the next training run of the search to which a finished job belongs."""
        group = self.group_of_job.get(progress.job.name)
        if group is None or group.result is not None:
            return ()
        if progress.record is None:
            group.failed = f"{progress.job.title} {progress.status}: {progress.reason}"
            return ()
        ended = ending(progress.record)
        if ended == "not_judged":
            group.failed = f"whether {progress.job.title} is stable cannot be decided: {progress.record.reason}"
            return ()
        group.at_chance += ended.endswith("at_chance")
        try:
            return [self._job(group, group.plan.send(ended == "completed"))]
        except StopIteration as end:
            group.result = end.value
            return ()

    def table(self) -> Table:
        """Return one row per search: largest stable value, its range over the seeds, number of runs, contradictions."""
        columns = [Column(f"largest stable {self.option}", significant_digits=3)]
        return Table.from_rows((self._row(group) for group in self.groups), columns)

    def _row(self, group: _RunningSearch) -> dict[str, Any]:
        job, result = group.job, group.result
        row: dict[str, Any] = {"sweep": job.label or job.step.name, "backbone": job.backbone}
        row |= {"dataset": job.dataset, "options": _options(job, self.option)}
        if result is None:
            return row | {"note": f"search unfinished: {group.failed or 'stopped'}", "runs": len(group.search.probes)}
        low, high = result.interval
        missing, chance = group.search.seeds[len(result.brackets) :], group.at_chance
        more = f"use --set search.budget={group.search.budget + 2 * len(missing)}"
        notes = [f"no runs were left for seed {', '.join(map(str, missing))}; {more}"] * bool(missing)
        notes += [f"{chance} ended at chance level, as also happens where {self.option} is too small"] * bool(chance)
        notes += result.violations
        each = tuple(f"seed {b.seed}: {b.low:.3g} to {b.high:.3g}" for b in result.brackets)
        return row | {
            f"largest stable {self.option}": result.estimate,
            "range over seeds": f"{low:.3g} to {high:.3g}",
            "each seed": each,
            "runs": len(result.probes),
            "note": tuple(notes),
        }

    def _job(self, group: _RunningSearch, rate_and_seed: tuple[float, int]) -> SweepJob:
        rate, seed = rate_and_seed
        old = group.job
        options = old.options | {self.option: rate}
        job = make_job(
            old.step, old.backbone, old.dataset, seed, options, (*_axes(old), self.option), old.parent, old.label
        )
        self.group_of_job[job.name] = group
        return job


def _in_same_search(job: SweepJob, other: SweepJob, option: str) -> bool:
    """Return whether two jobs belong to the same search: they differ in nothing but the seed and the rate."""
    first, second = (
        (item.backbone, item.dataset, item.parent, {k: v for k, v in item.options.items() if k != option})
        for item in (job, other)
    )
    return first == second


def _axes(job: SweepJob) -> tuple[str, ...]:
    """Return the names of the options of a job that its grid or the row of a part varies."""
    varied = dict.fromkeys((*job.step.varied, "stem", "attention", "ffn"))
    return tuple(name for name in varied if name in job.options)


def _options(job: SweepJob, option: str) -> str:
    """Return the varied options of a job as text, without the searched one."""
    return ", ".join(f"{name}={job.options[name]}" for name in _axes(job) if name != option)
