"""Reads the rows of a sweep, its own or a published table's, and the readings of ambiguous values. Imports no torch."""

from typing import Any

from transfer.core.errors import UsageError, errors_naming
from transfer.core.options import as_items, check_keys, mapping
from transfer.experiments.step import Step, check_option, step_options


def read_rows(
    content: dict[str, Any], steps: dict[str, Step], readings: str | None, where: str
) -> list[dict[str, Any]]:
    """Return the label and the options by step of each row; a single empty row if the file has none.

    Args:
        content: the sweep's YAML.
        steps: the parsed steps of the tier.
        readings: how many readings of ambiguously reported options to use, "one" or "both"; by default one for a
            published table and both for the file's own rows.
        where: the file's name for error messages.

    Raises:
        UsageError: a key or option is unknown; the message names its place.
    """
    rows = _rows(content, steps, where)
    both = readings == "both" or (readings is None and "table" not in content)
    return rows if both else [_first_reading(row) for row in rows]


def _first_reading(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with only the first reading of each ambiguously reported option."""
    return {
        step: {
            name: {**value, "used": value["used"][:1]} if isinstance(value, dict) else value
            for name, value in options.items()
        }
        if isinstance(options, dict)
        else options
        for step, options in row.items()
    }


def _rows(content: dict[str, Any], steps: dict[str, Step], where: str) -> list[dict[str, Any]]:
    """Return the label and the options by step of each row, with all readings."""
    if "rows" in content and "table" in content:
        raise UsageError(f"{where}: `rows` and `table` exclude each other")
    if "table" in content:
        from transfer.experiments.published_rows import rows_of

        rows = rows_of(str(content["paper"]), str(content.get("table")))
    elif "rows" in content:
        rows = [mapping(row, f"{where}: rows") for row in as_items(content["rows"], f"{where}: rows")]
    else:
        return [{"label": ""}]
    dropped = set(mapping(content["steps"], where)) - set(steps)
    parsed_rows = []
    for number, row in enumerate(rows, 1):
        check_keys(row, (*steps, *dropped, "label"), f"{where}: row {number}")
        named = {key: mapping(row[key] or {}, f"{where}: row {number}: {key}") for key in row if key in steps}
        for key, options in named.items():
            with errors_naming(f"{where}: row {number}: {key}"):
                for option, value in options.items():
                    check_option(option, step_options(steps[key].kind, steps[key].recipe))
                    if isinstance(value, dict) and not value.get("used"):
                        raise UsageError(f"`{option}` is a value or {{printed: ..., used: [...]}}, not {value!r}")
        if named or not any(key in dropped for key in row):
            parsed_rows.append({"label": str(row.get("label", "")), **named})
    return parsed_rows
