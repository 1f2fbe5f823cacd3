"""`python -m tests.tour` runs docs/tour.ipynb from top to bottom in an empty folder; `--write` keeps its outputs."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "tour.ipynb"
SECONDS = 300
"""Limit for one cell."""


def main(argv: list[str]) -> None:
    """Run the notebook; the error of a cell ends it."""
    parser = argparse.ArgumentParser(prog="python -m tests.tour", description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the outputs in the notebook")
    options = parser.parse_args(argv)
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("XDG_CACHE_HOME", f"{folder}/cache")
        NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
    if options.write:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times of day
            if cell.cell_type == "code":  # warnings name folders of this machine
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main(sys.argv[1:])
