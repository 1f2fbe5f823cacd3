"""The options of `python -m transfer.report`, and which of them go together."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from backbones.errors import UsageError
from backbones.settings import Positional, flag
from transfer.report.formats import Format, chosen_format

DEFAULT_RUNS = (Path("runs"),)


@dataclass(kw_only=True)
class ReportOptions:
    """Records to read, and what to show of them."""

    runs: Positional[tuple[Path, ...]] = DEFAULT_RUNS
    """Folders of runs (--out of the commands that made them) or of sweeps."""
    format: Format | None = None
    """Format of the output; by default that of the suffix of --output, else terminal, which is 100 columns wide. csv,
    jsonl and parquet hold all rows in one table, latex is for booktabs, html is one self-contained page with plots,
    maps and galleries."""
    output: Path | None = None
    """File to write; by default stdout."""
    smoke: bool = False
    """Show smoke runs as well; by default they are excluded."""
    dirty: bool = False
    """Show runs made with changed files of the suite as well; by default they are excluded."""
    per_run: bool = False
    """One row per run instead of means over seeds. In csv, jsonl and parquet one row per run and score."""
    pivot: bool = False
    """Variants as rows, tasks as columns: means over seeds with their 95 % intervals."""
    scores: tuple[str, ...] = ()
    """Scores that --pivot shows, as mAP rank1; by default each task's primary one."""
    paper: str | None = None
    """Paper in configs/published whose numbers are shown beside your own; needs --table or --figure."""
    table: str | None = None
    """Number or name of the table in that paper."""
    figure: str | None = None
    """Number or name of the figure in that paper: shows its claims with notes, and its costs beside your own."""
    compare: tuple[str, ...] = ()
    """Two backbones: each a name, a run (or the end of its id), or FIELD=VALUE[,FIELD=VALUE]; the difference is paired
    by sample."""
    correction: Literal["holm", "bh", "none"] = "holm"
    """Correction of a comparison's p values: Holm, Benjamini-Hochberg, or none."""
    margin: float | None = None
    """Largest difference that does not matter, in points: with it a comparison can find two backbones equivalent.
    With --paper the largest difference at which a number agrees with the printed one, 1 by default."""
    interaction: tuple[str, str] | None = None
    """Two fields, for instance stem attention: tests whether the effect of one depends on the other."""
    heatmap: tuple[str, ...] = ()
    """Two fields, for instance lr warmup_epochs: shows outcomes and scores of training runs over both."""
    by: tuple[str, ...] = ()
    """Fields for whose values --heatmap has separate panels."""
    cost: bool = False
    """Scores against operations, with the Pareto front, and the hours of the runs."""
    measure_cost: bool = False
    """Measure what a training step and a forward pass of the compared variants take one beside the other, for some
    seconds on this machine."""
    layers: bool = False
    """Diagnostics of the task tokens, layer by layer."""
    figures: Path | None = None
    """Write the figures of the page to this folder, as SVG and PDF for one and for two columns (3.35 and
    6.9 inches), each with its data as CSV."""
    style: Path | None = None
    """File of matplotlib's settings for --figures, over those of the suite."""
    pictures: bool = False
    """Embed the pictures of the runs (made by --save-pictures) in the page."""
    bundle: Path | None = None
    """Pack the runs into this file, without images, weights and paths of this machine."""
    import_: Annotated[Path | None, flag("import")] = None
    """Check the runs in a bundle and add them to the first folder of runs."""
    card: str | None = None
    """Print the model card of a run."""

    def __post_init__(self) -> None:
        chosen = self._actions
        actions, fields = " ".join(chosen), " ".join(self.heatmap)
        if not chosen:
            self.format = chosen_format(self.format, self.output)
        compares = bool(self.compare or self.interaction)
        shows = compares or bool(self.paper or self.heatmap or self.cost or self.layers or self.per_run or self.pivot)
        paper = "--paper and --table belong together, as --paper scaled_relu --table 4; or --figure 1"
        for is_wrong, text in (
            (self.table is not None and self.figure is not None, "--table and --figure exclude each other"),
            ((self.paper is None) != (self.table is None and self.figure is None), paper),
            (self.margin is not None and not self.margin > 0, "--margin: a difference in points, above 0"),
            (len(chosen) > 1, f"{' and '.join(chosen)} exclude each other"),
            (self.output and chosen and not self.card, f"--output: has no effect with {actions}"),
            (self.import_ and len(self.runs) > 1, "--import: name one folder of runs, to which they are added"),
            (self.scores and not self.pivot, "--scores: needs --pivot"),
            (len(self.heatmap) not in (0, 2), f"--heatmap: needs two fields, as lr warmup_epochs, got {fields}"),
            (self.by and not self.heatmap, "--by: needs --heatmap"),
            (
                self.measure_cost and not (self.compare or self.figures or self.format == "html"),
                "--measure-cost: needs --compare, as --compare stem=conv stem=patchify, or --format html",
            ),
            (self.pictures and self.format != "html", "--pictures: needs --format html"),
            (self.style and not self.figures, "--style: needs --figures"),
            (self.correction != "holm" and not compares, "--correction: needs --compare"),
            (self.margin is not None and not (compares or self.paper), "--margin: needs --compare"),
            (shows and chosen and not self.figures, f"{actions}: shows no tables; leave out what asks for them"),
            (self.format and chosen, f"--format: has no effect with {actions}"),
        ):
            if is_wrong:
                raise UsageError(text)

    @property
    def published(self) -> tuple[str, str] | None:
        """Names of the paper and of its table or figure; None without --paper."""
        table = f"figure{self.figure}" if self.figure is not None else self.table
        return (self.paper, table) if self.paper is not None and table is not None else None

    @property
    def _actions(self) -> list[str]:
        """The options asked for that do something else than show tables, as --NAME."""
        actions = {"bundle": self.bundle, "import": self.import_, "card": self.card, "figures": self.figures}
        return [f"--{name}" for name, value in actions.items() if value]
