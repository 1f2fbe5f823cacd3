"""The options of `python -m transfer.report`, a dataclass for each of its commands."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from transfer.core.errors import UsageError
from transfer.core.options import Checked, Range
from transfer.core.settings import Positional

Format = Literal["terminal", "markdown", "csv", "parquet", "latex", "html"]
FORMAT_SUFFIXES: dict[str, Format] = {
    **{".md": "markdown", ".txt": "markdown", ".csv": "csv"},
    **{".parquet": "parquet", ".tex": "latex", ".html": "html"},
}
"""The format of a file, by its suffix."""
DEFAULT_RUNS = (Path("runs"),)


@dataclass(kw_only=True)
class RunsOptions:
    """Records to read."""

    runs: Positional[tuple[Path, ...]] = DEFAULT_RUNS
    """Folders of runs (--out of the commands that made them) or of sweeps."""
    smoke: bool = False
    """Include smoke runs."""
    dirty: bool = False
    """Include runs of modified code."""


@dataclass(kw_only=True)
class OutputOptions(RunsOptions):
    """What to write."""

    format: Format | None = None
    """Format of the output; by default that of the suffix of --output, else terminal, which is 100 columns wide. csv
    and parquet hold all rows in one table, latex is for booktabs, html is a self-contained page."""
    output: Path | None = None
    """File to write; by default stdout."""

    def __post_init__(self) -> None:
        suffix = self.output.suffix.lower() if self.output else ""
        if self.format is None and suffix and suffix not in FORMAT_SUFFIXES:
            raise UsageError(f"--output {self.output}: end it in one of {', '.join(FORMAT_SUFFIXES)}, or set --format")
        self.format = self.format or FORMAT_SUFFIXES.get(suffix) or ("markdown" if self.output else "terminal")
        if self.format == "parquet" and self.output is None:
            raise UsageError("--format parquet: a binary file; name it with --output")


@dataclass(kw_only=True)
class ScoresOptions:
    """Tables of scores."""

    per_run: bool = False
    """One row per run instead of means over seeds. In csv and parquet one row per run and score."""
    pivot: bool = False
    """Variants as rows, tasks as columns: means over seeds with their 95 % intervals."""
    cost: bool = False
    """With --pivot: parameters, FLOPs per image, and hours of training."""
    per_class: bool = False
    """Scores of each class with their 95 % intervals, for detection and segmentation."""
    scores: tuple[str, ...] = ()
    """Scores with --pivot or --per-class, such as mAP rank1; by default the primary score of each task, with
    --per-class also mask_AP."""
    layers: bool = False
    """Diagnostics of the task tokens, and of pretrainings with --tokens-at, layer by layer."""


@dataclass(kw_only=True)
class TableOptions(ScoresOptions, OutputOptions):
    """Means of scores over seeds, or --per-run; --pivot: variants as rows, tasks as columns."""


@dataclass(kw_only=True)
class ComparedOptions:
    """Variants to compare."""

    compare: tuple[str, ...] = ()
    """Two backbones: each a name, weights/NAME, a run (or the end of its id), or FIELD=VALUE[,FIELD=VALUE]; the
    difference is paired by sample."""
    interaction: tuple[str, str] | None = None
    """Two fields, such as stem attention: tests whether the effect of one depends on the other."""
    margin: float | None = None
    """Largest irrelevant difference, in points; adds an equivalence test."""
    measure_cost: bool = False
    """Measure interleaved training steps and forward passes of both variants on this machine."""


@dataclass(kw_only=True)
class CompareOptions(ComparedOptions, OutputOptions):
    """Two variants on the same samples, or the interaction of two fields."""


@dataclass(kw_only=True)
class MapOptions(OutputOptions):
    """Status and scores of training runs over two fields, such as learning rate and warm-up."""

    heatmap: tuple[str, str] = ("lr", "warmup_epochs")
    """The two fields."""
    by: tuple[str, ...] = ()
    """Fields for whose values there are separate panels."""


@dataclass(kw_only=True)
class CostOptions(OutputOptions):
    """Scores against operations, with the Pareto front, and the hours of the runs."""


@dataclass(kw_only=True)
class PublishedOptions:
    """Published results to show beside your own."""

    paper: str | None = None
    """Paper in configs/published; needs --table or --figure."""
    table: str | None = None
    """Number or name of the table in that paper."""
    figure: str | None = None
    """Number or name of the figure in that paper: shows its claims with notes."""

    @property
    def published(self) -> tuple[str, str] | None:
        """Names of the paper and of its table or figure; None without --paper. Raises UsageError if one is missing."""
        names = [self.table] if self.table is not None else []
        names += [f"figure{self.figure}"] if self.figure is not None else []
        if len(names) != (self.paper is not None):
            raise UsageError("--paper and --table belong together, as --paper scaled_relu --table 4; or --figure 1")
        return (self.paper, names[0]) if self.paper is not None else None


@dataclass(kw_only=True)
class PaperOptions(PublishedOptions, OutputOptions):
    """Published results beside your own."""

    paper: str = field()
    """Paper in configs/published; needs --table or --figure."""
    margin: float | None = None
    """Largest difference at which a number agrees with the printed one, in points [1]."""


@dataclass(kw_only=True)
class ClaimsOptions(OutputOptions):
    """Verdicts on the claims of a paper, by rules stated before the runs."""

    claims: str = ""
    """File of claims in configs/claims by its name, or a YAML file; by default the last word of RUNS."""
    document: Path | None = None
    """Markdown file of the study to write, with its figures and their data in a folder beside it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.claims:
            *folders, file = self.runs
            self.runs, self.claims = tuple(folders) or DEFAULT_RUNS, str(file)


@dataclass(kw_only=True)
class EverythingOptions(ComparedOptions, PublishedOptions):
    """What to show."""

    heatmap: tuple[str, str] | None = None
    """Two fields of a map; by default lr warmup_epochs, if they vary."""
    by: tuple[str, ...] = ()
    """Fields for whose values --heatmap has separate panels."""


@dataclass(kw_only=True)
class PageOptions(EverythingOptions, OutputOptions):
    """One self-contained page with plots, maps and galleries."""

    format: Format | None = "html"
    """Format of the output."""
    pictures: bool = False
    """Embed the pictures of the runs (made by --save-pictures)."""


@dataclass(kw_only=True)
class FiguresOptions(EverythingOptions, RunsOptions):
    """The figures of the page as SVG and PDF, for one and for two columns of a paper."""

    output: Path
    """Folder to write to."""


@dataclass(kw_only=True)
class BundleOptions(Checked, RunsOptions):
    """Runs packed into a file, without images, weights and paths of this machine."""

    output: Path
    """File to write."""
    every: Annotated[int, Range(1)] = 1
    """Keep every N-th step of the training curves, and all validations."""


@dataclass(kw_only=True)
class ImportOptions:
    """Runs of a bundle, checked and added to a folder of runs."""

    bundle: Positional[Path]
    """The bundle."""
    out: Path = DEFAULT_RUNS[0]
    """Folder of runs to which they are added."""


@dataclass(kw_only=True)
class CardOptions(RunsOptions):
    """The model card of a run."""

    run: str
    """Id of the run, or its end."""
    output: Path | None = None
    """File to write; by default stdout."""


COMMAND_OPTIONS: dict[str, type[Any]] = {
    kind.__name__.removesuffix("Options").lower(): kind
    for kind in (
        *(TableOptions, CompareOptions, MapOptions, CostOptions, PaperOptions, ClaimsOptions),
        *(PageOptions, FiguresOptions, BundleOptions, ImportOptions, CardOptions),
    )
}
"""The options of each command, by its name."""
