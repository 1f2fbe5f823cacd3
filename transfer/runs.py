"""Finished runs for users of Python: their records and the models that they left; chosen, compared, shown as a data
frame, a table or a file. Imports no torch.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from numpy.typing import NDArray

from transfer.comparison.paired_intervals import read_outcomes
from transfer.comparison.selection import has_value, select_arms
from transfer.core.errors import MissingInput, UserError, visible
from transfer.core.exports import EXPORT, export_folder
from transfer.core.files import atomic_replacement, with_home
from transfer.engine.checkpoint import history
from transfer.records import run_set, store
from transfer.records.fields import check_fields, value_label
from transfer.records.record import Record

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from backbones.backbone import Backbone
    from transfer.predict.trained import Prediction
    from transfer.report.tables.table import Table


class Run(store.StoredRun):
    """A finished run.

    Attributes:
        folder: where its files lie.
        record: what `record.json` says.
    """

    @property
    def run_id(self) -> str:
        """The name of the run, `<task>-<dataset>-<backbone>-<12 hex>`."""
        return self.record.run_id

    @property
    def task(self) -> str:
        """The name of the task; of a pretraining `pretrain-METHOD`."""
        return self.record.task

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.record.seed

    @property
    def scores(self) -> dict[str, float]:
        """The scores by name, fractions in [0, 1] unless `record.metrics` says otherwise; empty if training failed."""
        return dict(self.record.scores)

    @property
    def outcome(self) -> str:
        """How the training ended: completed, nonfinite, diverged, collapsed, at_chance or not_judged."""
        return self.record.status

    @property
    def weights(self) -> Path:
        """The folder of the trained backbone in timm's format, which `--weights` and `weights=` take.

        Raises:
            MissingInput: the run trained no backbone, or kept no weights.
        """
        folder = self.folder / EXPORT
        if export_folder(str(folder)) is None:
            raise MissingInput(store.without_weights(self))
        return folder

    def backbone(self, **overrides: Any) -> "Backbone":
        """Return the trained backbone, `backbones.backbone.Backbone`, on the CPU.

        A run that trains none gives the frozen backbone that it used.

        Args:
            overrides: as `img_size=` and `classes="trained"` of `backbones.create`.

        Raises:
            MissingInput: the weights are not here.
            UserError: they are not those that the run used.
        """
        import torch

        from backbones.backbone import create
        from transfer.core.options import from_plain
        from transfer.core.seeding import seed_torch
        from transfer.predict.trained import trained_spec
        from transfer.verify.checks import task_of

        record, size = self.record, None
        with suppress(UserError):  # the task is not here
            task = task_of(record)
            size = task.built_size(from_plain(task.options, record.options))
        with torch.random.fork_rng(devices=[]):
            seed_torch(record.seed)  # draws what was random in the run
            return create(trained_spec(self), **{"img_size": size} | overrides)

    def model(self) -> "nn.Module":
        """Return the whole trained model, with head, neck and detector, on the CPU in evaluation mode.

        It is a backbone (with `logits` where it has a classifier), the classifier of `linear`, or the learner of `reid`
        (`encode`) or `detect` (`detector`). Raises UserError.
        """
        import torch

        from transfer.engine.context import Context
        from transfer.predict.trained import Trained

        return Trained(self, Context(torch.device("cpu"), "fp32", quiet=True)).model

    def predict(self, images: Any, **options: Any) -> "Prediction":
        """Return what the trained model finds in new images, with the numbers of the run's own evaluation.

        Args:
            images: files, folders or patterns, one or several.
            options: those of `python -m transfer.predict`, as `gallery=` and `top=`. See its errors, too.
        """
        from transfer.predict.options import PredictOptions
        from transfer.predict.trained import predict

        return predict(self, PredictOptions(run=self.folder, images=images, **options))

    def history(self) -> list[dict[str, Any]]:
        """Return the lines of `history.jsonl`: statistics of training steps, and of validations."""
        return history(self.folder)

    def per_sample(self) -> dict[str, NDArray[Any]]:
        """Return the per-sample results, arrays by name; see docs/adding-a-part.md for what each task keeps.

        Raises:
            UserError: the file is missing or damaged.
        """
        return read_outcomes(self)


class RunSet(run_set.StoredRuns):
    """Finished runs in order, with what the folder's other runs say of them (the trainings behind their weights)."""

    def __iter__(self) -> Iterator[Run]:
        """Yield the runs."""
        return (Run(run.folder, run.record) for run in self.runs)

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> "RunSet": ...
    def __getitem__(self, place: int | slice) -> "Run | RunSet":
        """Return the run at a place, from 0, or the runs of a slice."""
        if isinstance(place, slice):
            return self.select(self.runs[place])
        return Run(self.runs[place].folder, self.runs[place].record)

    def __add__(self, other: "RunSet") -> "RunSet":
        """Return the runs of both; a run of both, or a copy of it, stands once."""
        runs, _ = store.merged(self.runs + other.runs)
        known, _ = store.merged(self.known + other.known)
        return RunSet(tuple(runs), tuple(known))

    def __repr__(self) -> str:
        """Return how many runs of which tasks there are."""
        counts = Counter(record.task for record in self.records)
        text = ", ".join(f"{count} {visible(task)}" for task, count in counts.items())
        return f"<RunSet of {len(self)}: {text or 'no runs'}>"

    def filter(self, **values: Any) -> "RunSet":
        """Return the runs whose fields have these values.

        Args:
            values: field -> value, or a list of values of which one must hold. Fields are those of `--compare`: task,
                dataset, backbone, run, seed, weights, a field of the backbone (`stem="conv"`), an option (`lr=0.05`).

        Raises:
            UsageError: no run has a field of this name.
        """
        check_fields(values, self.records, self.exports)

        def has_one(record: Record, name: str, value: Any) -> bool:
            choices = value if isinstance(value, list | tuple | set) else [value]
            return any(has_value(record, name, str(choice), self.exports) for choice in choices)

        return self.where(lambda record: all(has_one(record, *item) for item in values.items()))

    def to_frame(self) -> "pd.DataFrame":
        """Return one row per run and score, with the columns and dtypes of `transfer.records.run_set.FRAME_COLUMNS`."""
        from transfer.records.run_set import frame_of_runs

        return frame_of_runs(self)

    def to_table(self, *, each: bool = False) -> "Table":
        """Return the table of `python -m transfer.report`: a row per configuration, with means over its seeds.

        Args:
            each: a row per run instead.
        """
        from transfer.report.tables.scores import each_run, summary

        return each_run(self) if each else summary(self)

    def to_markdown(self, *, each: bool = False) -> str:
        """Return `to_table` as Markdown, with its notes."""
        from transfer.report.tables.text import markdown

        return markdown(self.to_table(each=each).without("run"))

    def to_latex(self, *, each: bool = False) -> str:
        """Return `to_table` as LaTeX for the package booktabs; the notes stand below as comments."""
        from transfer.report.tables.text import latex

        return latex(self.to_table(each=each).without("run"))

    def to_parquet(self, path: Path | str) -> None:
        """Write `to_frame` as a Parquet file, whole or not at all.

        Raises:
            UserError: the file cannot be written.
        """
        with atomic_replacement(Path(path)) as temporary:
            self.to_frame().to_parquet(temporary, index=False)


def load(*folders: Path | str) -> RunSet:
    """Return the finished runs in folders of runs or of sweeps, as `python -m transfer.report` reads them.

    Smoke runs and runs of changed files are among them: columns `smoke` and `dirty` of `to_frame` mark them. A record
    that cannot be read is left out with a warning.

    Args:
        folders: by default `runs`.

    Raises:
        MissingInput: a folder does not exist.
    """
    import warnings

    runs, problems = store.runs_in(Path(with_home(str(folder))) for folder in folders or ("runs",))
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return RunSet.of(runs)


def compare(runs: RunSet, field: str, a: Any, b: Any, *, margin: float | None = None) -> "Table":
    """Compare the runs in which a field has one value with those in which it has another.

    Runs are matched by task, dataset, protocol and the rest of the backbone, and paired by sample, and by seed as far
    as both variants have the same ones. `docs/concepts/statistics.md` says how intervals and verdicts are reached.

    Args:
        runs: the runs of both variants, as `evaluate` and `load` return them.
        field: "stem", "attention", "backbone", "run", "lr", ...; see `RunSet.filter`.
        a, b: the two values; the difference is a less b.
        margin: in points of percent: smaller differences do not matter, and two variants may be found equivalent.

    Returns:
        A row per match and score: difference, interval, p, adjusted p, verdict; `.to_frame()` for pandas.

    Raises:
        UsageError: no run has the field, or one of the values.
        UserError: nothing can be compared; the message says why.
    """
    from transfer.report.tables.comparison import compare_variants, comparison_table

    comparison = compare_variants(runs, f"{field}={value_label(a)}", f"{field}={value_label(b)}", margin)
    return comparison_table(comparison, runs)


def measure_cost(runs: RunSet, field: str, a: Any, b: Any) -> "Table":
    """Measure what the runs with one value of a field cost beside those with another.

    The models of each matched pair are built from the records with random weights. Training steps and forward passes
    of both run in turns in this process for some seconds, in processor time of one thread or in time of the GPU.

    Args:
        runs: the runs of both variants, as `evaluate` and `load` return them.
        field: "stem", "attention", "backbone", ...; see `RunSet.filter`.
        a, b: the two values; a ratio is a over b.

    Returns:
        A row per pair of models: `transfer.report.tables.costs.ratio_table`.

    Raises:
        UsageError: no run has the field, or one of the values.
    """
    from transfer.comparison.pairing import match_runs
    from transfer.measure.steps import cost_ratios
    from transfer.report.tables.costs import ratio_table

    variants = select_arms([f"{field}={value_label(a)}", f"{field}={value_label(b)}"], runs)
    return ratio_table(match_runs(variants, runs.exports).matches, cost_ratios())
