"""`python -m tests.tour` runs docs/tour.ipynb from top to bottom in an empty folder.

`--write` keeps its outputs and makes the picture of README from the demo's page, with Chromium.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.documents import chromium

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTEBOOK = DOCS / "tour.ipynb"
PICTURE = DOCS / "images" / "page.png"
SECONDS = 300
"""Limit for one cell."""


def draw_page(folder: str) -> None:
    """Make README's picture: the top of the page of the demo, which runs in this folder."""
    browser = chromium()
    if browser is None:
        sys.exit("no chromium on PATH (apt-get install chromium)")
    subprocess.run([sys.executable, "-m", "transfer.sweep", "demo", "--out", f"{folder}/demo"], check=True)
    page = Path(folder, "demo", "report.html").as_uri()
    subprocess.run([*browser, "--window-size=1400,1060", f"--screenshot={PICTURE}", page], check=True)


def main(argv: list[str]) -> None:
    """Run the notebook; the error of a cell ends it."""
    parser = argparse.ArgumentParser(prog="python -m tests.tour", description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the outputs, and make README's picture")
    options = parser.parse_args(argv)
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("XDG_CACHE_HOME", f"{folder}/cache")
        NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
        if options.write:
            draw_page(folder)
    if options.write:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times of day
            if cell.cell_type == "code":  # warnings name folders of this machine
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main(sys.argv[1:])
