"""`python -m tests.tables` writes the guide's tables of keys, and the architecture's of subpackages, from the code.

A table stands between `<!-- keys of MODULE.CLASS -->` and `<!-- end -->`; names after a colon select and order fields.
The string under a field is its meaning. At `<!-- subpackages -->` the table has the first sentence of each docstring.
"""

import pkgutil
import re
from dataclasses import fields

from tests.documents import PAGES, ROOT, read
from tests.test_imports import ROOMS, docstring
from transfer.cli.help import meanings

TABLE = re.compile(r"(<!-- keys of ([\w.]+)(?:: ([\w ]+))? -->\n).*?(<!-- end -->)", re.DOTALL)
SUBPACKAGES = re.compile(r"(<!-- subpackages -->\n).*?(<!-- end -->)", re.DOTALL)


def rows(path: str, names: str | None) -> str:
    """Return the table of a dataclass."""
    dataclass = pkgutil.resolve_name(path)
    texts = meanings(dataclass)
    chosen = names.split() if names else [item.name for item in fields(dataclass)]
    lines = [f"| `{name}` | {texts[name].replace('|', chr(92) + '|').rstrip('.')} |" for name in chosen]
    return "\n".join(["\n| key | meaning |", "|---|---|", *lines, "", ""])


def subpackages() -> str:
    """Return the table of subpackages, each above those that it imports from."""
    sentences = {room: " ".join(docstring(room).split()).partition(". ")[0] for room in ROOMS}
    lines = [f"| `{room}/` | {sentence.rstrip('.')} |" for room, sentence in sentences.items()]
    return "\n".join(["\n| subpackage | contents |", "|---|---|", *lines, "", ""])


def written(text: str) -> str:
    """Return a page with its tables as the code has them."""
    text = SUBPACKAGES.sub(lambda found: f"{found[1]}{subpackages()}{found[2]}", text)
    return TABLE.sub(lambda found: f"{found[1]}{rows(found[2], found[3])}{found[4]}", text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(written(read(page)), encoding="utf-8")
