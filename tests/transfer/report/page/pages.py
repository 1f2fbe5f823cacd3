"""Runs and a map for tests of the page, its plots and its galleries, and a browser that shows the page."""

import html
import json
import re
import subprocess
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tasks.reid.pictures import save_pictures
from tests.documents import chromium
from tests.transfer.records.recorded import classifier, run_set
from tests.transfer.records.test_store import CONTENT, record
from transfer.core.pictures import RANKED, RankedLists
from transfer.records.record import RunKey
from transfer.records.store import StoredRun
from transfer.report.tables.stability_map import StabilityMap, stability_map
from transfer.report.tables.table import Table

HOSTILE = (
    "<script>document.title='broken in'</script>",
    "</script><script>document.title='broken in'</script><!--<script>",
    '"><img src=x onerror="document.title=\'broken in\'">',
    "' onmouseover='alert(1)",
    "`</style></textarea></template></title><svg/onload=alert(1)>`",
    "javascript:alert(1)",
    "$\\frac{1$ ${x} %s \\ & &lt; \x00\x07 \u202e\n<b>牛",
)


def make_run(seed: int = 0, folder: Path = Path("none"), **given: Any) -> StoredRun:
    """A run; what is said of it replaces the entries of its record."""
    run_key = RunKey({**CONTENT, "seed": seed, "of": str(sorted(given.items(), key=str))})
    return StoredRun(folder, record(run_key, seed=seed, **given))


def table_of(**columns: Iterable[Any]) -> Table:
    """A table of these columns."""
    return Table.from_rows(dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))


def stability_rows() -> StabilityMap:
    """A map of two stems, three rates and two warm-ups, with a cell of each ending and a mixed one."""
    endings = ("completed", "diverged", "nonfinite", "score_at_chance", "at_chance", "collapsed")
    records = []
    for place, (lr, warmup) in enumerate(product((1e-4, 1e-3, 1e-2), (0.0, 5.0))):
        for seed in range(3):
            given: dict[str, Any] = {"lr": lr, "hits": 200 + 100 * place, "warmup_epochs": warmup, "seed": seed}
            mixed = place == 5 and seed == 2
            records.append(classifier("conv", status="diverged" if mixed else "completed", **given))
            reached = {"hits": 100, "status": "completed"} if place == 3 else {"status": endings[place]}
            records.append(classifier("patchify", **given | reached))
    return stability_map(run_set(records), by=["stem"])


def ranked_run(folder: Path, *, draw: int = 0) -> StoredRun:
    """A ReID run with three queries, whose lists are kept and of which `draw` are drawn."""
    folder.mkdir(parents=True)
    query = [(f"query/{name}.png", run_key, 1) for name, run_key in (("a", 1), ("b", 2), ("c", 3))]
    gallery = [(f"gallery/{place}.png", place % 4, 2) for place in range(6)]
    nearest = np.array([[1, 0, 5, 2], [0, 2, 1, -1], [5, 4, 3, -1]])
    RankedLists.from_ranking(nearest, query, gallery, np.full(nearest.shape, 0.5, np.float32)).save(folder / RANKED)
    if draw:
        for name, _, _ in (*query, *gallery):
            (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 32), (10, 90, 160)).save(folder / "data" / name)
        save_pictures(folder, folder / "data", draw)
    return make_run(folder=folder)


def write_history(folder: Path, losses: list[float | None]) -> None:
    """A training history with these losses."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, start=1))
    (folder / "history.jsonl").write_text("\n".join(lines) + "\n")


POLICY = 'http-equiv="Content-Security-Policy"'
FRAME = """<!doctype html><body style="color-scheme: {scheme}"><iframe src="page.html"
style="width: {width}px; height: 900px; border: 0"></iframe><script>
onmessage = (event) => {{ document.body.textContent = event.data; }};</script>"""


def in_browser(folder: Path, page: str, script: str, *, width: int = 1280, scheme: str = "light") -> Any:
    """What a script returns that runs in a page, without its security policy, in a frame of a width."""
    browser = chromium()
    if browser is None:
        pytest.skip("no chromium on PATH (apt-get install chromium)")
    tell = "const tell = (found) => parent.postMessage(JSON.stringify(found), '*');"
    told = f"{{ {tell} (async () => {{ {script} }})().then(tell, (error) => tell(String(error))); }}"
    (folder / "page.html").write_text(f"{page.replace(POLICY, 'name=policy')}<script>{told}</script>", encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(width=width, scheme=scheme))
    words = [*browser, "--dump-dom", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=60000"]
    shown = subprocess.run([*words, (folder / "frame.html").as_uri()], capture_output=True, text=True, timeout=120)
    answered = re.search("<body[^>]*>(.*?)</body>", shown.stdout, re.DOTALL)
    assert answered, shown.stderr
    return json.loads(html.unescape(answered[1]))
