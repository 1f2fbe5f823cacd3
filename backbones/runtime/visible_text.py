"""Names from files, made safe to print: a terminal obeys control characters. Imports no torch."""

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONGEST_LINE = 2000
"""The most characters of a line of an error; a value of a user's file may be far longer."""


def visible(text: str) -> str:
    """Return a text with control characters, those of writing direction too, as `\\x1b`."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """Return a text of several lines with all other control characters made visible."""
    return "\n".join(map(visible, text.split("\n")))


def short_lines(text: str) -> str:
    """Return a text whose lines end after so many characters, and say how many more there are."""
    return "\n".join(
        line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ... ({len(line) - LONGEST_LINE} more characters)"
        for line in text.split("\n")
    )
