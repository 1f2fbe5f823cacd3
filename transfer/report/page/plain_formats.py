"""A report's sections as text for terminals, Markdown and LaTeX, and as one table for programs."""

from collections.abc import Sequence

from backbones.errors import visible
from transfer.report.page.section_types import Section
from transfer.report.render.terminal import BOLD, WIDTH, broken_lines, colored, terminal
from transfer.report.render.text import markdown, notes_of_row, without_tags
from transfer.report.tables.table import RUN_COLUMNS, Column, Table, with_numbers


def as_terminal(parts: Sequence[Section], *, ids: bool = False, color: bool = False) -> str:
    """Return the tables of a report in lines of at most 100 characters; with `ids` they have the columns of run ids."""
    texts = []
    for part in parts:
        if part.table is None and part.plot is not None:
            continue
        pieces = [colored(visible(f"## {part.title}"), BOLD, color=color)]
        if part.table is not None:
            pieces.append(terminal(part.table.without(*(() if ids else RUN_COLUMNS)), color=color))
        for number, line in enumerate(filter(str.strip, part.note.splitlines())):
            told = "\n".join(broken_lines(visible(line), WIDTH))
            pieces.append(colored(told, BOLD, color=color and part.lead and not number))
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
    from transfer.report.render.latex import latex

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
