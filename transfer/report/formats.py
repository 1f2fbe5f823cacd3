"""The formats of a report: how each is chosen, and tables and runs as files that other programs read.

Imports pandas only to make such a file.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from transfer.core.errors import UsageError, visible
from transfer.core.files import csv_text
from transfer.core.settings import Positional, flag
from transfer.report.page.section_types import Section
from transfer.report.tables.table import RUN_COLUMNS, Column, Table, is_missing, is_number, with_numbers
from transfer.report.tables.terminal import BOLD, WIDTH, broken_lines, colored, terminal
from transfer.report.tables.text import latex, markdown, notes_of_row, without_tags

if TYPE_CHECKING:
    import pandas as pd


Format = Literal["terminal", "markdown", "csv", "jsonl", "parquet", "latex", "html"]

SUFFIXES: dict[Format, tuple[str, ...]] = {
    "terminal": (),
    "markdown": (".md", ".markdown", ".txt"),
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson"),
    "parquet": (".parquet", ".pq"),
    "latex": (".tex",),
    "html": (".html", ".htm"),
}
"""Format -> the suffixes of its files."""
_INFINITE = (float("inf"), float("-inf"))
DATA: tuple[Format, ...] = ("csv", "jsonl", "parquet")
"""Formats that programs read: one table, with a name for each column."""


def chosen_format(named: Format | None, output: Path | None) -> Format:
    """Return the format of a report: the named one, or that of the suffix of its file, or else Markdown.

    Without a file it is text for a terminal.

    Args:
        named: value of `--format`.
        output: value of `--output`.

    Raises:
        UsageError: the suffix is that of another format, or of none; Parquet without a file.
    """
    if output is None:
        if named == "parquet":
            raise UsageError("--format parquet: a binary file; name it with --output")
        return named or "terminal"
    if named == "terminal":
        raise UsageError("--format terminal: for the screen; files are of --format markdown")
    suffix = output.suffix.lower()
    of_suffix = next((form for form, suffixes in SUFFIXES.items() if suffix in suffixes), None)
    if named and of_suffix and named != of_suffix:
        raise UsageError(
            f"--output {output}: {suffix} is a file of --format {of_suffix}, not of --format {named}; "
            f"leave out --format, or end the name in {SUFFIXES[named][0]}"
        )
    if suffix and named is None and of_suffix is None:
        known = ", ".join(suffixes[0] for suffixes in SUFFIXES.values() if suffixes)
        raise UsageError(f"--output {output}: no format has the suffix {suffix}; end it in {known}, or use --format")
    return named or of_suffix or "markdown"


def typed_frame(table: "Table") -> "pd.DataFrame":
    """Return a table as a data frame whose columns have one type each, also where values are missing.

    Types are boolean, Int64, float64 and string; a column of numbers and texts is of texts.
    """
    frame = table.to_frame()
    return frame.astype({name: _dtype(table[name]) for name in table.names})


def _dtype(cells: Sequence[Any]) -> str:
    values = [value for value in cells if not is_missing(value)]
    if values and all(isinstance(value, bool) for value in values):
        return "boolean"
    if not values or not all(map(is_number, values)):
        return "string"
    return "Int64" if all(isinstance(value, Integral) and abs(int(value)) < 2**63 for value in values) else "float64"


def file_content(frame: "pd.DataFrame", form: Format) -> bytes:
    """Return the content of a file with the rows of a data frame, numbers with all their digits.

    Args:
        form: one of `DATA`. Missing values are empty in csv and null in jsonl and parquet; jsonl has no infinity, so
            that it is null there.
    """
    if form == "parquet":
        return bytes(frame.to_parquet(None, index=False))
    names, rows = list(frame.columns), _plain_rows(frame)
    if form == "csv":
        return f"{csv_text([names, *rows])}\n".encode()
    lines = [
        {name: None if value in _INFINITE else value for name, value in zip(names, row, strict=True)} for row in rows
    ]
    return "".join(f"{json.dumps(line, ensure_ascii=False, allow_nan=False)}\n" for line in lines).encode()


def _plain_rows(frame: "pd.DataFrame") -> list[list[Any]]:
    """Return the values of each row as Python's own; None where one is missing, times in ISO 8601."""
    import pandas as pd

    columns = []
    for name in frame.columns:
        column = frame[name]
        values = [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)]
        columns.append([value.isoformat() if isinstance(value, pd.Timestamp) else value for value in values])
    return [list(row) for row in zip(*columns, strict=True)]


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
    """Two backbones: each a name, weights/NAME, a run (or the end of its id), or FIELD=VALUE[,FIELD=VALUE]; the
    difference is paired by sample."""
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


def as_terminal(parts: Sequence[Section], *, ids: bool = False, color: bool = False) -> str:
    """Return the tables of a report in lines of at most 100 characters; with `ids` they have the columns of run ids."""
    texts = []
    for part in parts:
        if part.table is None and part.plot is not None:
            continue
        pieces = [colored(visible(f"## {part.title}"), BOLD, color=color)]
        if part.table is not None:
            pieces.append(terminal(part.table.without(*(() if ids else RUN_COLUMNS)), color=color))
        told = []
        for number, line in enumerate(filter(str.strip, part.note.splitlines())):
            lines = "\n".join(broken_lines(visible(line), WIDTH, "  " * line.startswith("- ")))
            told.append(colored(lines, BOLD, color=color and part.lead and not number))
        pieces += ["\n\n".join(told).replace("\n\n- ", "\n- ")] * bool(told)
        texts.append("\n\n".join(pieces))
    return "\n\n".join(texts)


def as_markdown(parts: Sequence[Section], *, ids: bool = False) -> str:
    """Return the tables of a report as Markdown, under titles; with `ids` they have the columns of run ids."""
    return "\n\n".join(_text(part, ids) for part in parts if part.table is not None or part.plot is None)


def _text(part: Section, ids: bool) -> str:
    pieces, table = [f"## {without_tags(part.title)}"], part.table
    if table is not None:
        pieces.append(markdown(table.without(*(() if ids else RUN_COLUMNS))))
    return "\n\n".join([*pieces, *map(without_tags, filter(str.strip, part.note.splitlines()))])


def as_latex(parts: Sequence[Section], *, ids: bool = False) -> str:
    """Return the tables of a report in LaTeX for booktabs; titles and notes are comments."""
    texts = []
    for part in parts:
        if part.table is not None:
            title, *notes = (f"% {visible(line)}" for line in (part.title, *filter(str.strip, part.note.splitlines())))
            texts.append("\n".join([title, latex(part.table.without(*(() if ids else RUN_COLUMNS))), *notes]))
    return "\n\n".join(texts)


def as_one_table(parts: Sequence[Section]) -> Table:
    """Return the rows of all tables of a report in one table, with the columns of each.

    A first column `table` has the title of the table that a row is from, a last column `notes` the notes on the row.
    """
    rows = []
    columns: dict[str, Column] = {}
    for part in parts:
        if part.table is None:
            continue
        table = with_numbers(part.table)
        columns |= {column.name: column for column in table.columns if column.name not in columns}
        remarks = tuple(filter(str.strip, part.note.splitlines()))
        for place, row in enumerate(table.rows):
            rows.append({"table": part.title, **row, "notes": (*notes_of_row(table, place), *remarks)})
    names = ("table", *columns, "notes")
    described = [columns.get(name, Column(name)) for name in names]
    return Table(described, [{name: row.get(name) for name in names} for row in rows])
