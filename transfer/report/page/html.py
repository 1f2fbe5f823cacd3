"""The report as one self-contained HTML page: tables, figures, pictures, and the record behind every number.

The page loads nothing from elsewhere, which its security policy forbids. All text is escaped.
"""

import base64
import hashlib
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from transfer.core.errors import visible_lines
from transfer.records.run_set import RunSet
from transfer.report.page.embedded_records import json_block, marks_of, run_facts
from transfer.report.page.section_types import Gallery, Picture, Section
from transfer.report.tables.table import RUN_COLUMNS, MeanInterval, Table, cell_text, is_number
from transfer.report.tables.text import constant_columns, note_texts, values

CELLS = 6000
"""Number of cells of all tables that are laid out at once; a click shows the others."""
UNBROKEN = r"\d (?=%|s\b|min\b|h\b)|[-+]?[\d.]+( points)? \[[^]]*\]"
"""Numbers with their unit or interval, which are not broken into lines."""
WIDE = 48
"""Number of characters of a cell beyond which its text wraps."""


def page(title: str, sections: Sequence[Section], runs: RunSet) -> str:
    """Return the page, with the records of `runs`. Other runs that a table names have no link.

    Args:
        title: heading of the page.
        sections: parts of the page.
        runs: whose records the page holds.
    """
    marks = {run.record.run_id: marks_of(run.record) for run in runs}
    columns = sum(len(section.table.columns) for section in sections if section.table is not None)
    rows = min(max(CELLS // max(columns, 1), 10), 100)
    style, script = _asset("page.css"), _asset("page.js")
    body = "\n".join(_section(section, f"part-{number}", marks, rows) for number, section in enumerate(sections))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">To the tables</a>
<header>
<h1>{text(title)}</h1>
<p class="soft">{_extent(marks)}</p>
<nav aria-label="Sections">{_links(sections)}</nav>
</header>
<main id="main">
{body}
</main>
<footer><p>Self-contained file. Click a run's name to open its record, or a column's title to sort.</p>
<noscript><p>Enable JavaScript for sorting, filters and records.</p></noscript></footer>
<dialog id="record" aria-labelledby="record-title"></dialog>
<script type="application/json" id="records">{json_block(run_facts(runs.runs))}</script>
<script>{script}</script>
</body>
</html>
"""


def _links(sections: Sequence[Section]) -> str:
    """Return links to the sections, folded so that the summary is what is read first."""
    links = (f'<li><a href="#part-{number}">{text(one.title)}</a></li>' for number, one in enumerate(sections))
    return f"<details><summary>Sections</summary><ul>{''.join(links)}</ul></details>"


def text(value: object) -> str:
    """Return a text as HTML, for an element or between quotes; control characters are shown."""
    return escape(visible_lines(str(value)))


def _paragraphs(lines: str, attributes: str = "") -> str:
    """Return a paragraph for each line, or an item of a list after "- "; what stands between backticks is code."""
    parts = []
    for line in filter(str.strip, lines.splitlines()):
        marked = re.sub("`([^`]+)`", r"<code>\1</code>", text(line)).replace("Cost:", "<b>Cost:</b>")
        whole = re.sub(UNBROKEN, lambda found: found[0].replace(" ", "\u00a0"), marked)
        parts.append(f"<li>{whole[2:]}</li>" if line.startswith("- ") else f"<p{attributes}>{whole}</p>")
    return re.sub("((?:<li>.*?</li>)+)", r"<ul>\1</ul>", "".join(parts))


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Return the content security policy: no other address is loaded, and no other script runs."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _extent(marks: dict[str, list[str]]) -> str:
    """Return the number of runs, and of runs with each mark, as HTML."""
    counts: dict[str, int] = {}
    for of_run in marks.values():
        for mark in of_run:
            counts[mark] = counts.get(mark, 0) + 1
    marked = "".join(f" · {count} {_badge(mark)}" for mark, count in sorted(counts.items()))
    return f"{len(marks)} run{'s' * (len(marks) != 1)}{marked}"


def _badge(mark: str) -> str:
    kind = mark if mark in ("smoke", "dirty") else "broken"
    return f'<span class="mark {kind}">{text(mark)}</span>'


def _section(section: Section, name: str, marks: dict[str, list[str]], rows: int) -> str:
    heading = f'<h2 id="{name}-title">{text(section.title)}</h2>'
    kind = " class=lead" if section.lead else ""
    parts = [f'<section id="{name}" aria-labelledby="{name}-title"{kind}>']
    parts += [f"<details><summary>{heading}</summary>" if section.folded else heading]
    parts += [f"<div>{_paragraphs(block)}</div>" for block in section.note.split("\n\n") if block.strip()]
    if section.plot is not None:
        shown = {"wide": section.plot.svg, "narrow": section.plot.narrow}
        drawn = "".join(_svg(svg, f'class="{width}" role="img" aria-label="{text(section.title)}"', name)
                        for width, svg in shown.items())  # fmt: skip
        address = f"data:text/csv;charset=utf-8,{quote(section.plot.csv, safe=',')}"
        caption = f'<figcaption><a download="{section.file_name}.csv" href="{address}">Data (CSV)</a></figcaption>'
        parts.append(f'<figure class="plot">{drawn}{caption}</figure>')
    if section.table is not None:
        parts.append(_table(section.table, section, marks, rows))
        parts.append(_paragraphs("\n".join(note_texts(section.table.notes)), ' class="soft"'))
    if section.galleries:
        drawn = " pairs" if section.in_pairs else ""
        drawn += " drawn" if any(gallery.picture for gallery in section.galleries) else ""
        parts.append(
            f'<div class="galleries{drawn}">{"".join(_gallery(gallery, marks) for gallery in section.galleries)}</div>'
        )
    if section.pictures:
        figures = "".join(_figure(picture, marks) for picture in section.pictures)
        parts.append(f'<div class="pictures{" pairs" * section.in_pairs}">{figures}</div>')
    parts.append(_paragraphs(section.reading, ' class="soft"'))
    return "\n".join([*parts, *["</details>"] * section.folded, "</section>"])


def _svg(svg: str, attributes: str, name: str) -> str:
    """Return a drawing with attributes, and with ids that are unique on the page: two sections may hold equal plots."""
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\1{name}-", svg).replace("<svg ", f"<svg {attributes} ", 1)


def _table(table: Table, section: Section, marks: dict[str, list[str]], most: int) -> str:
    """Return a section's table as HTML: the first `most` rows, and the others in a template, which is not laid out."""
    constant = constant_columns(table)
    names = sorted((name for name in table.names if name not in constant), key=lambda name: name in RUN_COLUMNS)
    present = [[value for value in table[name] if value is not None] for name in names]
    numeric = [bool(column) and all(map(is_number, column)) for column in present]
    digits_of = {column.name: column.significant_digits for column in table.columns}
    columns = [
        _numbers(table[name], digits_of[name])
        if of_numbers
        else [_text_cell(name, value, marks) for value in values(table, name)]
        for name, of_numbers in zip(names, numeric)
    ]
    named = [table[name] for name in names if name in RUN_COLUMNS]
    lines = [
        _row(
            list(cells),
            sorted({mark for column in named for run in runs_in(column[place]) for mark in marks.get(run, ())}),
        )
        for place, cells in enumerate(zip(*columns))
    ]
    heads = "".join(
        f'<th scope="col" aria-sort="none"{" class=n" * of_numbers}><button type="button">{name}</button></th>'
        for name, of_numbers in zip(map(_heading, names), numeric)
    )
    rest = f"<template>{''.join(lines[most:])}</template>" if lines[most:] else ""
    shared = ", ".join(f"{name} {value}" for name, value in constant.items() if value)
    means = " class=means" * any(isinstance(value, MeanInterval) for row in table.rows for value in row.values())
    caption = f'<p class="soft">All rows: {text(shared)}.</p>\n' if shared else ""
    return (
        f'{caption}<div class="scroll" tabindex="0" role="region" data-name="{section.slug}" '
        f'aria-label="Table: {text(section.title)}">\n'
        f"<table{means}><thead><tr>{heads}</tr></thead><tbody>\n{''.join(lines[:most])}</tbody></table></div>{rest}"
    )


def _heading(name: str) -> str:
    return f"<span>{text(name).replace('_', '_<wbr>')}</span>"


def _row(cells: list[str], marks: list[str]) -> str:
    """Return a row with its marks in the first cell; `data-v` keeps that cell's value for sorting."""
    marks = [mark for mark in marks if mark in ("smoke", "dirty")]
    if not marks:
        return f"<tr>{''.join(cells)}</tr>\n"
    opening, _, inner = cells[0].partition(">")
    if "data-v=" not in opening:
        opening += f' data-v="{re.sub("<[^>]*>", "", inner)}"'
    badges = "".join(map(_badge, marks))
    return f'<tr class="{" ".join(marks)}">{opening}>{badges}{inner}{"".join(cells[1:])}</tr>\n'


def _numbers(values: list[Any], digits: int | None) -> list[str]:
    """Return the cells of a column of numbers with its significant digits.

    Without any these are whole numbers, else two decimals, or four digits if some are tiny.
    """
    numbers = [None if value is None or math.isnan(value) else float(value) for value in values]
    whole = all(value is None or value.is_integer() for value in numbers)
    digits = digits or (4 if any(value and abs(value) < 0.01 for value in numbers) else None)
    cells = []
    for value in numbers:
        shown = (
            "" if value is None else f"{value:.0f}" if whole else f"{value:.{digits}g}" if digits else f"{value:.2f}"
        )
        exact = "" if value is None else f"{value:.10g}"
        cells.append(f"<td class=n>{shown}</td>" if exact == shown else f'<td class=n data-v="{exact}">{shown}</td>')
    return cells


def runs_in(value: Any) -> list[str]:
    """Return the ids of the runs in a cell."""
    return [str(run) for run in value or ()]


def _text_cell(name: str, value: Any, marks: dict[str, list[str]]) -> str:
    """Return a cell of text, or with links to the runs that it names."""
    if name in RUN_COLUMNS and (runs := runs_in(value)):
        links = " ".join(_link(run, run.rpartition("-")[2], marks) for run in runs)
        return f'<td data-v="{text(" ".join(runs))}">{links}</td>'
    if value is None:
        return "<td></td>"
    shown = cell_text(value)
    if isinstance(value, MeanInterval):  # the interval stays on one line
        shown = shown.replace(", ", ",\N{NO-BREAK SPACE}")
    wide = " class=w" * (len(shown) > WIDE)
    return f"<td{wide}>{text(shown)}</td>"


def _link(run: str, shown: str, marks: dict[str, list[str]]) -> str:
    """Return a link that opens the record of a run, or plain text if the page has no such record."""
    if run not in marks:
        return text(shown)
    address = quote(run, safe="")
    return f'<a href="#run={address}" title="the record of {text(run)}">{text(shown)}</a>'


def _gallery(gallery: Gallery, marks: dict[str, list[str]]) -> str:
    """Return a query and the marks of its first gallery images, with their picture if there is one."""
    kinds = {True: ("right", "✓"), False: ("wrong", "✗")}
    marked = ((image, *kinds[image.right]) for image in gallery.images)
    places = "".join(f'<li class="{kind}" title="{text(image.about)}">{mark}</li>' for image, kind, mark in marked)
    caption = f"{text(gallery.about)} · {_link(gallery.run_id, gallery.run_id, marks)}"
    picture = _image(gallery.picture) if gallery.picture else ""
    return f'<figure><figcaption>{caption}</figcaption><ol class="places">{places}</ol>{picture}</figure>'


def _figure(picture: Picture, marks: dict[str, list[str]]) -> str:
    link = _link(picture.run_id, picture.run_id, marks)
    return f"<figure>{_image(picture)}<figcaption>{text(picture.about)} · {link}</figcaption></figure>"


def _image(picture: Picture) -> str:
    address = f"data:{picture.media_type};base64,{base64.b64encode(picture.content).decode()}"
    return f'<img decoding="async" alt="{text(picture.about)}" src="{address}">'
