"""How a table is shown: as Markdown, in a terminal, and as CSV. Knows no statistics."""

import math
from csv import QUOTE_NONNUMERIC
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

RUN = "run"
"""Column of the ids of a row's runs, separated by blanks."""


NOTES = "notes"
"""Key of `DataFrame.attrs` under which a table carries what is to be said below it: a list of texts."""


SIGNIFICANT = "significant"
"""Key of `DataFrame.attrs` for the columns, of any size, that are printed with four significant digits."""


IN_FULL = "in full"
"""Key of `DataFrame.attrs` under which a table has, by column, the full texts of those that a note explains."""


def markdown(rows: "pd.DataFrame") -> str:
    """A Markdown table with what its notes say below; scores with two decimals, nothing where there is none."""
    columns = []
    significant = rows.attrs.get(SIGNIFICANT, ())
    for place, name in enumerate(rows.columns):
        form = ".4g" if name in significant else ".2f"
        texts = [_one_line(str(name)), *(_one_line(_text(value, form)) for value in rows.iloc[:, place].tolist())]
        width = max(len(texts[0]) + 2, *map(len, texts))
        columns.append([f" {texts[0]:{width}} ", ":" + "-" * (width + 1), *(f" {text:{width}} " for text in texts[1:])])
    lines = [f"|{'|'.join(cells)}|" for cells in zip(*columns, strict=True)]
    notes = [f"- {_one_line(note)}" for note in rows.attrs.get(NOTES, [])]
    return "\n".join([*lines, "", *notes] if notes else lines)


def csv(rows: "pd.DataFrame") -> str:
    """Comma-separated values with all digits; in the place of letters stands what they stand for.

    With a # in a value all texts are quoted, so that readers who take it for the start of a comment do not there.
    """
    lettered = (note.removeprefix("protocol ") for note in rows.attrs.get(NOTES, []) if note.startswith("protocol "))
    stands = dict(mark.split(": ", 1) for mark in lettered)
    if stands and "protocol" in rows:
        rows = rows.assign(protocol=[stands.get(mark, mark) for mark in rows["protocol"]])
    for name, texts in rows.attrs.get(IN_FULL, {}).items():
        rows = rows.assign(**{name: [texts.get(text, text) for text in rows[name]]})
    text = str(rows.to_csv(index=False))
    return (str(rows.to_csv(index=False, quoting=QUOTE_NONNUMERIC)) if "#" in text else text).rstrip("\n")


def comments(rows: "pd.DataFrame", title: str, note: str = "") -> list[str]:
    """Title and notes of a table as comment lines above its `csv`, but for letters that this writes out."""
    said = [*rows.attrs.get(NOTES, []), *filter(str.strip, note.splitlines())]
    if "protocol" in rows:
        said = [line for line in said if not line.startswith("protocol ")]
    return [f"# {' '.join(line.splitlines())}" for line in (title, *said)]


def _text(value: Any, form: str) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else format(value, form)
    return "" if value is None else str(value)


def _one_line(text: str) -> str:
    """Text that cannot leave its cell."""
    return " ".join(text.splitlines()).replace("|", "\\|")
