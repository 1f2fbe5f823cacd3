"""`python -m tests.tour` runs docs/tour.ipynb from top to bottom in an empty folder; `--write` keeps its outputs."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "tour.ipynb"
SECONDS = 300
"""Limit for one cell."""


def main(argv: list[str]) -> int:
    """Run the notebook; return 1 when a cell fails, after its error."""
    parser = argparse.ArgumentParser(prog="python -m tests.tour", description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the outputs in the notebook")
    options = parser.parse_args(argv)
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME", f"{folder}/cache")
        client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}})
        try:
            client.execute()
        except CellExecutionError as error:
            print(f"{NOTEBOOK}: a cell failed\n{error}", file=sys.stderr)
            return 1
    print(f"{NOTEBOOK.name}: {len(notebook.cells)} cells in {time.monotonic() - begin:.0f} s")
    if options.write:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times of day
            if cell.cell_type == "code":  # warnings name folders of this machine
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        nbformat.write(notebook, NOTEBOOK)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
