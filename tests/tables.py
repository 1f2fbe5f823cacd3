"""`python -m tests.tables` writes the guide's lists of keys, and the architecture's of subpackages, from the code.

A list stands between `<!-- keys of MODULE.CLASS -->` and `<!-- end -->`; names after a colon select and order fields.
The string under a field is its meaning. At `<!-- subpackages -->` the list has the first sentence of each docstring.
"""

import pkgutil
import re
import textwrap
from collections.abc import Mapping
from dataclasses import fields

from tests.documents import PAGES, ROOT, read
from tests.test_imports import ROOMS, docstring
from transfer.cli.help import meanings

TABLE = re.compile(r"(<!-- keys of ([\w.]+)(?:: ([\w ]+))? -->\n).*?(<!-- end -->)", re.DOTALL)
SUBPACKAGES = re.compile(r"(<!-- subpackages -->\n).*?(<!-- end -->)", re.DOTALL)


def listed(meanings_by_name: Mapping[str, str]) -> str:
    """Return a Markdown list of names and meanings, whose lines do not break within code."""
    items = []
    for name, meaning in meanings_by_name.items():
        text = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), f"- `{name}`: {meaning.rstrip('.')}")
        items.append(textwrap.fill(text, 119, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))
    return "\n".join(["", *items, "", ""]).replace("\0", " ")


def keys(path: str, names: str | None) -> str:
    """Return the list of a dataclass's fields."""
    dataclass = pkgutil.resolve_name(path)
    texts = meanings(dataclass)
    chosen = names.split() if names else [item.name for item in fields(dataclass)]
    return listed({name: texts[name] for name in chosen})


def subpackages() -> str:
    """Return the list of subpackages, each above those that it imports from."""
    sentences = {room: " ".join(docstring(room).split()).partition(". ")[0] for room in ROOMS}
    return listed({f"{room}/": sentence for room, sentence in sentences.items()})


def written(text: str) -> str:
    """Return a page with its lists as the code has them."""
    text = SUBPACKAGES.sub(lambda found: f"{found[1]}{subpackages()}{found[2]}", text)
    return TABLE.sub(lambda found: f"{found[1]}{keys(found[2], found[3])}{found[4]}", text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(written(read(page)), encoding="utf-8")
