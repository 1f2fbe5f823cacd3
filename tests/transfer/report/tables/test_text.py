"""Tables for a terminal: never wider than asked for, nothing lost without a word."""

import random
import re
from collections.abc import Iterable

import pytest

from transfer.report.tables.table import Column, Note, Table
from transfer.report.tables.text import WIDTH, terminal

WORDS = ("conv", "patchify", "a rather long name of a backbone", "toy_market (smoke, version 1)", "x", "")


def table_of(seed: int) -> Table:
    """A random table of texts and numbers, with and without details."""
    rng = random.Random(seed)
    columns, rows = [], [{} for _ in range(rng.randint(1, 6))]
    for number in range(rng.randint(1, 14)):
        name = f"{rng.choice(('score', 'box_AP50', 'a column of several words', 'accuracy_10shot se'))} {number}"
        columns.append(Column(name, detail=rng.randint(0, 3)))
        numbers = rng.random() < 0.5
        for row in rows:
            row[name] = rng.uniform(-100, 100) if numbers else rng.choice(WORDS)
    return Table.from_rows(rows, columns, [Note("a note that is longer than a line " * 5)])


def cells(shown: str) -> list[list[str]]:
    """The cells of each line of the grid."""
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def joined(parts: Iterable[str]) -> str:
    return " ".join(" ".join(parts).split())


@pytest.mark.parametrize("seed", range(20))
def test_no_line_is_wider_and_every_cell_is_shown_or_named(seed: int) -> None:
    table = table_of(seed)
    shown = terminal(table)
    assert all(len(line) <= WIDTH for line in shown.splitlines()), shown
    text, grid = joined(shown.splitlines()), cells(shown)
    rule = next(place for place, line in enumerate(grid) if set("".join(line)) <= set(":-"))
    body = {joined(column[:rule]): joined(column[rule + 1 :]) for column in zip(*grid, strict=True)}
    left_out = re.search(r"Not shown in 100 columns: (.*?) \(--format", text)
    names = left_out[1].split(", ") if left_out else []
    above = re.search(r"(?:In every row|Here): (.*?)\.(?: \||$)", text)
    for name in table.names:
        constant = above is not None and re.search(rf"{re.escape(name)}\b", above[1])
        empty = all(value == "" for value in table[name])
        assert (name in body) + (name in names) + bool(constant) == 1 or empty, (name, shown)
        for value in table[name] if name in body else ():
            assert (f"{value:.2f}" if isinstance(value, float) else value) in body[name], name


def test_a_mean_and_its_interval_are_one_cell() -> None:
    row = {"stem": "conv", "top1": 21.67, "top1 low": 18.82, "top1 high": 24.51}
    shown = terminal(Table.from_rows([row, {**row, "top1": None}]))
    assert cells(shown)[2:] == [["21.7 [18.8, 24.5]"], [""]]


def test_a_table_that_fits_is_whole() -> None:
    table = Table.from_rows([{"stem": "conv", "mAP": 41.234}, {"stem": "patchify", "mAP": 7.0}])
    assert terminal(table) == ("| stem     |   mAP |\n|:---------|------:|\n| conv     | 41.23 |\n| patchify |  7.00 |")
    assert cells(terminal(Table.from_rows([{"seed": 0}, {"seed": None}])))[2:] == [["0"], [""]]
