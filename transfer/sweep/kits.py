"""Lists how published numbers are reproduced, and which are: `python -m transfer.sweep anchors --list`.

The text is Markdown for terminals of 100 columns; `docs/guide/reproduce.md` has its table and commands.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

from transfer.core.errors import UsageError, count, shortened
from transfer.engine.cost import GPU_SPEED
from transfer.experiments.grid import expand
from transfer.experiments.published_rows import Paper, PublishedTable, Row, Value, read_paper
from transfer.experiments.sweep_file import SweepFile, read_sweep
from transfer.records.run_set import StoredRuns
from transfer.records.store import runs_in
from transfer.report.published.matching import Matcher, OwnRuns, run_marks
from transfer.report.tables.table import Table
from transfer.report.tables.text import WIDTH, markdown
from transfer.sweep.cost_estimate import WorkEstimate

NOT_YET = "not yet"


def kits_text(paper: str, folders: Sequence[Path], speed: float | None) -> str:
    """Return the kits of a paper: a table with what the runs in folders reproduce, and the commands.

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
    send = f"Send back the bundle of what has run:\n\n```sh\npython -m transfer.report bundle sweeps/{paper}_* --output"
    return "\n\n".join([markdown(table), about, *(kit.details for kit in kits), f"{send} {paper}.zip\n```"])


@dataclass(frozen=True)
class Kit:
    """How a published number is reproduced, with the difference that is allowed, and the sweep that runs it."""

    name: str
    """The step that it runs."""
    paper: Paper
    table: str
    within: float
    """Largest difference in percentage points, stated before anything ran."""
    about: str
    get: str
    """Weights to get, as a command or in words."""
    row: str = ""
    """Label of the row in the table, where no sweep runs it; else it is the row that has the step."""
    set: Sequence[str] = ()
    """`STEP.KEY=VALUE` texts for the sweep of the table."""
    dataset: str = ""
    command: str = ""
    """For a row that no sweep runs: the dataset in the record, and the command."""

    @property
    def published(self) -> PublishedTable:
        return self.paper.tables[self.table]

    @cached_property
    def sweep(self) -> SweepFile:
        tasks = [] if self.command else [self.name]
        return read_sweep(self.published.sweep, None, self.set, tasks=tasks)

    @cached_property
    def published_row(self) -> Row:
        return next(row for row in self.published.rows if self.name in row.steps or row.label == self.row)

    @property
    def values(self) -> list[Value]:
        """The numbers to expect, of this step on the datasets that the command runs it on."""
        if self.command:
            return [value for value in self.published_row.values if value.dataset == self.dataset.split(":")[-1]]
        names = self.sweep.steps[self.name].dataset
        return [value for value in self.published_row.values if value.step == self.name and value.dataset in names]

    @property
    def expected(self) -> str:
        unpublished = sorted({value.dataset for value in self.values if value.percent is None})
        texts = [f"{value.metric} {value.printed}" for value in self.values if value.percent is not None]
        return ", ".join([*texts, *([f"none published ({', '.join(unpublished)})"] if unpublished else [])])

    @property
    def tolerance(self) -> str:
        """The largest difference; empty where no number is published."""
        return f"{self.within:g}" if any(value.percent is not None for value in self.values) else ""

    def hours(self, speed: float) -> str:
        """Return the GPU hours of all jobs of the command, without detectors' heads; "" where no sweep runs it."""
        jobs = [] if self.command else [job for job in expand(self.sweep) if job.step.name == self.name]
        hours = sum(operations for operations, _ in WorkEstimate(jobs).work.values()) / speed / 3.6e15
        return f"{max(hours, 0.01):.{2 if hours < 1 else 0}f}" if jobs else ""

    @property
    def details(self) -> str:
        """Heading, what it is and needs, and the command."""
        settings = "".join(f" {text}" for text in ("--set", *self.set)) if self.set else ""
        sweep = f"python -m transfer.sweep {self.published.sweep} --tasks {self.name}{settings} --data FOLDER"
        data = self.dataset or " ".join(dict.fromkeys(value.dataset for value in self.values))
        gpus = 1 if self.command else self.sweep.steps[self.name].resources.get("gpus", 1)
        planned = f" Planned for {gpus} GPUs a node; `--gpus 1` takes one." if gpus > 1 else ""
        text = f"{self.published_row.label}. {self.about} Data: `{data}`. Weights: {self.get}.{planned}"
        lines = textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
        return "\n".join([f"### {self.name}", "", *lines, "", "```sh", self.command or sweep, "```"])

    def state(self, runs: StoredRuns) -> str:
        """Return whether runs reproduce the numbers: yes or no, with their means; or why none can say."""
        found = [self._own(runs, value) for value in self.values]
        usable = [[own for own in of_value if not own.reasons] for of_value in found]
        if not all(usable):
            reasons = [reason for of_value in found for own in of_value for reason in own.reasons]
            return f"{NOT_YET}: {shortened(dict.fromkeys(reasons), 1)}" if reasons else NOT_YET
        scores, far = list[str](), list[float]()
        for value, of_value in zip(self.values, usable, strict=True):
            records = [record for own in of_value for record in own.records]
            own_scores = [100 * record.scores[value.metric] for record in records if value.metric in record.scores]
            mean = fmean(own_scores) if own_scores else None
            of = count(len(records), "run")
            scores.append(f"{value.metric} {'failed' if mean is None else f'{mean:.2f}'} ({of})")
            if value.percent is not None:
                far.append(float("inf") if mean is None else abs(mean - value.percent))
        verdict = ("no" if round(max(far), 6) > self.within else "yes") if far else "recorded"
        return f"{verdict}: {', '.join(scores)}"

    def _own(self, runs: StoredRuns, value: Value) -> list[OwnRuns]:
        """Return the runs of a number; those of a command of its own by the names of backbone and dataset."""
        if not self.command:
            return Matcher(self.sweep, self.paper, runs).own_runs(self.published_row, value)
        names = {"name": self.name}.items()
        records = [record for record in runs.records if names <= record.backbone.items()]
        records = [record for record in records if record.dataset.get("name") == self.dataset]
        return [OwnRuns([record], tuple(run_marks([record]))) for record in records if not record.options["epochs"]]
