"""`python -m tests.tables` writes the guide's tables of keys: the string under each field is its meaning.

A table stands between `<!-- keys of MODULE.CLASS -->` and `<!-- end -->`; names after a colon select and order fields.
"""

import pkgutil
import re
from dataclasses import fields

from tests.documents import PAGES, ROOT, read
from transfer.cli.help import meanings

TABLE = re.compile(r"(<!-- keys of ([\w.]+)(?:: ([\w ]+))? -->\n).*?(<!-- end -->)", re.DOTALL)


def rows(path: str, names: str | None) -> str:
    """Return the table of a dataclass."""
    dataclass = pkgutil.resolve_name(path)
    texts = meanings(dataclass)
    chosen = names.split() if names else [item.name for item in fields(dataclass)]
    lines = [f"| `{name}` | {texts[name].replace('|', chr(92) + '|').rstrip('.')} |" for name in chosen]
    return "\n".join(["\n| key | meaning |", "|---|---|", *lines, "", ""])


def written(text: str) -> str:
    """Return a page with its tables as the code has them."""
    return TABLE.sub(lambda found: f"{found[1]}{rows(found[2], found[3])}{found[4]}", text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(written(read(page)), encoding="utf-8")
