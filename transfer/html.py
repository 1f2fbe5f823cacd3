"""Tables as one self-contained HTML page."""

from collections.abc import Mapping
from html import escape

import pandas as pd

STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #222; }
table { border-collapse: collapse; margin: 0 0 2rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
th { background: #f4f4f4; }
td { font-variant-numeric: tabular-nums; }
"""


def page(tables: Mapping[str, pd.DataFrame]) -> str:
    """A page with one titled table after the other; all text is escaped."""
    body = "\n".join(f"<h2>{escape(title)}</h2>\n{_table(rows)}" for title, rows in tables.items())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Transfer results</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>Transfer results</h1>\n"
        f"<p>Scores in percent; mean and standard deviation over seeds.</p>\n{body}\n</body>\n</html>"
    )


def _table(rows: pd.DataFrame) -> str:
    return rows.to_html(index=False, border=0, na_rep="", float_format="{:.2f}".format, escape=True)
