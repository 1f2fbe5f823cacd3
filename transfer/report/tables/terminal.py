"""Tables for a terminal: at most 100 columns wide, colored where a terminal shows it and `NO_COLOR` is not set.

What is the same in every row stands once above the table; texts are broken into lines; then columns of details are left
out, which is said below the table. On a pipe the same text comes without colors.
"""

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from transfer.core.errors import visible
from transfer.engine.cost import duration
from transfer.engine.outcome import SCORED
from transfer.records.evidence import is_seeded
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.records.store import Run, Store
from transfer.report.tables.cell_text import Endings
from transfer.report.tables.columns import COSTS
from transfer.report.tables.dataset_means import over_datasets
from transfer.report.tables.scores import TRAIN_SECONDS, each_run, summary
from transfer.report.tables.table import RUN, RUN_COLUMNS, Column, Table, holds_number, is_missing, with_intervals
from transfer.report.tables.text import constant_columns, note_texts, texts_of
from transfer.statistics.verdicts import Kind, Verdict

WIDTH = 100
"""Number of characters of a line."""
MORE = "--format markdown or csv"
"""How to see what is left out of the table of a report."""
LEAST = 2
"""Number of columns that are never left out."""
SHORT = 40
"""Number of characters up to which a text is broken into two lines; into four if it is longer."""
MOST_LINES = 20
"""Lines of a text where a column would be left out that every reader needs."""
WITH_UNIT: dict[str, tuple[str, Callable[[float, int], str]]] = {
    "gflops": ("FLOPs", lambda cost, more: f"{cost:.{1 + more + (cost < 1)}{'g' if cost < 1 else 'f'}} GFLOP"),
    "train_seconds": ("training", lambda number, more: duration(number)),
}
"""Headings of columns of costs, and the texts of their numbers with a unit and some more digits."""
RED, GREEN, YELLOW, BLUE, BOLD = 31, 32, 33, 34, 1
"""Codes of ECMA-48's Select Graphic Rendition; the words say the same without them."""
_COLORS = {
    **dict.fromkeys((Kind.A_BETTER, Kind.ABOVE), GREEN),
    **dict.fromkeys((Kind.B_BETTER, Kind.BELOW, Kind.A_FAILED, Kind.B_FAILED, Kind.BOTH_FAILED), RED),
    **{Kind.EQUIVALENT: BLUE, Kind.INCONCLUSIVE: YELLOW},
}


def shows_colors() -> bool:
    """Return whether stdout is a terminal that shows colors; NO_COLOR (https://no-color.org) turns them off."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def colored(text: str, code: int, *, color: bool) -> str:
    """Return a text in a color, or as it is."""
    return f"\x1b[{code}m{text}\x1b[0m" if color and text.strip() else text


@dataclass
class _Cells:
    """The texts of a column: heading, one list of lines per row, and a color per row (0 for none)."""

    column: Column
    heading: str
    texts: list[str]
    colors: list[int]
    breakable: bool

    @property
    def width(self) -> int:
        """Number of characters of the longest line."""
        return max(map(len, [self.heading, *self.texts]))


def terminal(table: Table, *, width: int = WIDTH, color: bool = False, more: str = MORE) -> str:
    """Return a table with its notes as lines that are at most `width` characters long.

    Columns are left out by their `detail`, then from the right; the first two stay, whatever they need. `more` says how
    to see them.
    """
    table = with_intervals(table)
    columns = [_cells(table, column) for column in table.columns]
    constant = constant_columns(table, least=2 if _line_width(columns) <= width else 1)
    columns = [cells for cells in columns if cells.column.name not in constant]
    shared = {name: value for name, value in constant.items() if value}
    above = ", ".join(f"{name} {value}" for name, value in shared.items())
    if _line_width(columns) > width:
        columns = [_with_short_ids(cells) for cells in columns]
    widths, columns, left_out = _fit(columns, width)
    where = "In every row" if len(table) > 1 else "Here"
    lines = [*broken_lines(f"{where}: {visible(above)}.", width), ""] if above else []
    lines += _grid(columns, widths, color)
    if left_out:
        lines += broken_lines(f"Not shown in {width} columns: {', '.join(left_out)} ({more}).", width)
    notes = note_texts(table.notes)
    lines += [""] * bool(notes)
    for note in notes:
        lines += broken_lines(f"- {visible(note)}", width, indent="  ")
    return "\n".join(lines)


def _cells(table: Table, column: Column) -> _Cells:
    values = table[column.name]
    texts = [" ".join(visible(text).split()).replace("|", "\\|") for text in texts_of(table, column)]
    words = any(character.isalpha() for text in texts for character in text)  # an interval is not broken
    breakable = column.name not in RUN_COLUMNS and words and not any(map(holds_number, values))
    heading = column.name
    if heading in WITH_UNIT:
        heading, unit_text = WITH_UNIT[heading]
        for more in range(4):
            texts = ["" if is_missing(value) else unit_text(value, more) for value in values]
            if len({*texts}) == len({*values}):
                break
    return _Cells(column, visible(heading), texts, [_color(value) for value in values], breakable)


def _with_short_ids(cells: _Cells) -> _Cells:
    """Return a column of run ids with their last parts alone, which tell them apart; any other as it is."""
    if cells.column.name not in RUN_COLUMNS:
        return cells
    texts = [" ".join(run.rpartition("-")[2] for run in text.split()) for text in cells.texts]
    return replace(cells, texts=texts)


def _color(value: object) -> int:
    if isinstance(value, Verdict):
        return _COLORS.get(value.kind, 0)
    if isinstance(value, Endings):
        return RED if any(status not in SCORED for status, _ in (*value.runs, *value.pretraining)) else 0
    return 0


def _line_width(columns: Sequence[_Cells]) -> int:
    return sum(cells.width + 3 for cells in columns) + 1


def _fit(columns: list[_Cells], width: int) -> tuple[list[int], list[_Cells], list[str]]:
    """Return the widths of the columns that are shown, these columns, and the names of the others."""
    left_out: list[str] = []
    while (widths := _widths(columns, width)) is None and len(columns) > LEAST:
        if all(cells.column.detail < 0 for cells in columns[LEAST:]) and (
            widths := _widths(columns, width, MOST_LINES)
        ):
            break
        others = [cells for cells in columns[LEAST:] if cells.column.name not in RUN_COLUMNS] or columns[LEAST:]
        most = max(cells.column.detail for cells in others)
        dropped = [cells for cells in others if cells.column.detail == most][-1]
        columns = [cells for cells in columns if cells is not dropped]
        left_out.insert(0, dropped.heading)
    return widths or [cells.width for cells in columns], columns, left_out


def _widths(columns: Sequence[_Cells], width: int, lines: int = 0) -> list[int] | None:
    """Return the widths with which the columns fit, the longest texts broken; None if they do not."""
    widths = [cells.width for cells in columns]
    smallest = [_smallest_width(cells, lines) for cells in columns]
    excess = _line_width(columns) - width
    while excess > 0:
        room = [(now, place) for place, (now, least) in enumerate(zip(widths, smallest, strict=True)) if now > least]
        if not room:
            return None
        now, place = max(room)
        widths[place] = now - 1
        excess -= 1
    return widths


def _smallest_width(cells: _Cells, lines: int = 0) -> int:
    """Return the width of a column with its heading broken at every blank, and texts into a few lines."""
    heading = max(map(len, cells.heading.split()), default=0)
    if not cells.breakable:
        return max([heading, *map(len, cells.texts)])
    longest = max(map(len, cells.texts), default=0)
    word = max((len(word) for text in cells.texts for word in text.split()), default=0)
    lines = lines or (2 if longest <= SHORT else 4)
    widths = range(max(heading, -(-longest // lines), word, 1), longest + 1)
    fits = (
        width
        for width in widths
        if all(
            len(broken) <= lines and all(len(line) <= width for line in broken)
            for broken in (broken_lines(text, width) for text in cells.texts)
        )
    )
    return next(fits, max(longest, heading))


def _grid(columns: Sequence[_Cells], widths: Sequence[int], color: bool) -> list[str]:
    """Return the lines of a Markdown table; long texts are wrapped."""
    heads = [broken_lines(cells.heading, width) for cells, width in zip(columns, widths, strict=True)]
    lines = [colored(line, BOLD, color=color) for line in _row(columns, widths, heads, None)]
    rules = [
        f":{'-' * (width + 1)}" if cells.breakable else f"{'-' * (width + 1)}:" for cells, width in zip(columns, widths)
    ]
    lines.append(f"|{'|'.join(rules)}|")
    for place in range(len(columns[0].texts) if columns else 0):
        texts = [broken_lines(cells.texts[place], width) for cells, width in zip(columns, widths, strict=True)]
        lines += _row(columns, widths, texts, place if color else None)
    return lines


def _row(
    columns: Sequence[_Cells], widths: Sequence[int], texts: Sequence[list[str]], colors: int | None
) -> Iterator[str]:
    """Yield the lines of a row, colored by its place `colors` if that is given."""
    for number in range(max(map(len, texts), default=0)):
        parts = []
        for cells, width, lines in zip(columns, widths, texts, strict=True):
            text = lines[number] if number < len(lines) else ""
            text = f"{text:{width}}" if cells.breakable else f"{text:>{width}}"
            code = 0 if colors is None else cells.colors[colors]
            parts.append(f" {colored(text, code, color=code > 0)} ")
        yield f"|{'|'.join(parts)}|"


def broken_lines(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text in lines of at most `width` characters; a longer word is a line of its own."""
    words = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return words.wrap(" ".join(text.split())) or [""]


def run_table(records: Sequence[Record], out: Path) -> str:
    """Return a table with a row per record, and means over seeds and datasets where there are several.

    Intervals stand in the place of deviations and standard errors.

    Args:
        records: the records.
        out: folder of their runs.
    """
    runs = RunSet.of(Run(Store(out).folder(record.run_id), record) for record in records)
    tables = [each_run(runs, intervals=True).without(TRAIN_SECONDS)]
    if len({record.seed for record in records}) > 1 and any(map(is_seeded, records)):
        means = summary(runs).without(RUN, *COSTS)
        if len(endings := {record.status for record in records}) == 1:
            rows = [row | {"outcome": max(endings)} for row in means.rows]
            means = Table.from_rows(rows, means.columns, means.notes).without("statuses")
        tables.append(means)
    tables = [table.without(*(name for name in table.names if name.endswith((" sd", " se")))) for table in tables]
    tables.append(over_datasets(runs).without(RUN))
    smoke = " --smoke" * any(record.smoke for record in records)
    more = f"python -m transfer.report table {out}{smoke} --per-run --format csv"
    return "\n\n".join(terminal(table, color=shows_colors(), more=more) for table in tables if len(table))
