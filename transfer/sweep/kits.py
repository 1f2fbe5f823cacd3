"""Lists which published numbers are reproduced: `python -m transfer.sweep anchors --list`.

The text is Markdown for terminals of 100 columns; `docs/guide/reproduce.md` has the table, and the commands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from statistics import fmean

from transfer.core.errors import UsageError, count, shortened
from transfer.engine.cost import GPU_SPEED
from transfer.experiments.grid import expand
from transfer.experiments.published_rows import Paper, Row, Value, read_paper
from transfer.experiments.sweep_file import SweepFile, read_sweep
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.records.store import runs_in
from transfer.report.published.matching import Matcher
from transfer.report.tables.table import Table
from transfer.report.tables.text import markdown
from transfer.sweep.cost_estimate import WorkEstimate

NOT_YET = "not yet"


def kits_text(paper: str, folders: Sequence[Path], speed: float | None) -> str:
    """Return the kits of a paper: a table with what the runs in folders reproduce.

    Args:
        paper: name of the paper in configs/published.
        folders: folders of runs or of sweeps.
        speed: TFLOP/s that a GPU sustains, by default `GPU_SPEED`.

    Raises:
        UsageError: the paper is unknown or has no kits.
    """
    published, runs = read_paper(paper), StoredRuns.of(runs_in(folders)[0])
    if not published.kits:
        raise UsageError(f"--list: {paper} has no kits; those of anchors are shown by `anchors --list`")
    kits = [Kit(name, published, **kit) for name, kit in published.kits.items()]
    speed = speed or GPU_SPEED
    names = ("kit", "expected", "within", "GPU hours", "reproduced here")
    rows = [(kit.name, kit.expected, kit.tolerance, kit.hours(speed), kit.state(runs)) for kit in kits]
    table = Table.from_rows(dict(zip(names, row, strict=True)) for row in rows)
    about = f"In percent; GPU hours by the estimate of each command with `--dry-run --gpus 1 --speed {speed:g}`."
    return (
        f"{markdown(table)}\n\n{about}\nSources and commands: configs/published/{paper}.yaml, docs/guide/reproduce.md"
    )


@dataclass(frozen=True)
class Kit:
    """How a published number is reproduced, with the difference that is allowed, and the sweep that runs it."""

    name: str
    """The step that it runs."""
    paper: Paper
    table: str
    within: float
    """Largest difference in percentage points, stated before anything ran."""
    set: Sequence[str] = ()
    """`STEP.KEY=VALUE` texts for the sweep of the table."""

    @cached_property
    def sweep(self) -> SweepFile:
        return read_sweep(self.paper.tables[self.table].sweep, None, self.set, tasks=[self.name])

    @cached_property
    def row(self) -> Row:
        """The published row that has the step."""
        return next(row for row in self.paper.tables[self.table].rows if self.name in row.steps)

    @property
    def values(self) -> list[Value]:
        """The numbers to expect, of this step on the datasets that the command runs it on."""
        datasets = self.sweep.steps[self.name].dataset
        of_step = [value for value in self.row.values if value.step == self.name]
        return [value for value in of_step if value.dataset in datasets]

    @property
    def expected(self) -> str:
        texts = [f"{value.metric} {value.printed}" for value in self.values if value.percent is not None]
        unpublished = sorted({value.dataset for value in self.values if value.percent is None})
        if unpublished:
            texts.append(f"none published ({', '.join(unpublished)})")
        return ", ".join(texts)

    @property
    def tolerance(self) -> str:
        """The largest difference; empty where no number is published."""
        return f"{self.within:g}" if any(value.percent is not None for value in self.values) else ""

    def hours(self, speed: float) -> str:
        """Return the GPU hours of all jobs of the command, without detectors' heads."""
        jobs = [job for job in expand(self.sweep) if job.step.name == self.name]
        hours = sum(operations for operations, _ in WorkEstimate(jobs).work.values()) / speed / 3.6e15
        return f"{max(hours, 0.01):.{2 if hours < 1 else 0}f}"

    def state(self, runs: StoredRuns) -> str:
        """Return whether runs reproduce the numbers: yes or no, with their means; or why none can say."""
        matcher, reasons, scores, far = Matcher(self.sweep, self.paper, runs), list[str](), list[str](), list[float]()
        for value in self.values:
            records = list[Record]()
            for own in matcher.own_runs(self.row, value):
                reasons += own.reasons
                records += () if own.reasons else own.records
            if not records:
                return f"{NOT_YET}: {shortened(dict.fromkeys(reasons), 1)}" if reasons else NOT_YET
            own_scores = [100 * record.scores[value.metric] for record in records if value.metric in record.scores]
            mean = fmean(own_scores) if own_scores else inf
            shown = f"{mean:.2f}" if own_scores else "failed"
            scores.append(f"{value.metric} {shown} ({count(len(records), 'run')})")
            if value.percent is not None:
                far.append(abs(mean - value.percent))
        verdict = "recorded"
        if far:
            verdict = "no" if round(max(far), 6) > self.within else "yes"
        return f"{verdict}: {', '.join(scores)}"
