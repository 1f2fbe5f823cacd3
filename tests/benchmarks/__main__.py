"""Benchmarks and parity checks, which people run by hand:

python -m tests.benchmarks                          lists them, with what each needs
python -m tests.benchmarks NAME [arguments]         runs one; `NAME --help` explains its arguments
"""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from transfer.core.errors import UserError, did_you_mean

FOLDER = Path(__file__).resolve().parent
BENCHMARKS = {
    f"parity_{path.stem}" if path.parent.name == "parity" else path.stem: path
    for path in sorted(FOLDER.rglob("*.py"))
    if "\ndef main(" in path.read_text(encoding="utf-8") and path.stem != "__main__"
}
"""The file of each by its name; it has a function `main(argv)`."""


def main(argv: Sequence[str]) -> int:
    """List the benchmarks, or run the one that is named; return the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        for name, path in BENCHMARKS.items():
            first, *others = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
            print(name, first, *(line for line in others if line.startswith("Needs ")), sep="\n  ")
        return 0
    name, *others = argv
    if name not in BENCHMARKS:
        near = did_you_mean(name, BENCHMARKS)
        print(f"error: unknown benchmark {name!r}{near} (benchmarks: {', '.join(BENCHMARKS)})", file=sys.stderr)
        return 2
    sys.argv[0] = f"python -m tests.benchmarks {name}"  # what its --help calls it
    module = ".".join(("tests", "benchmarks", *BENCHMARKS[name].relative_to(FOLDER).with_suffix("").parts))
    try:
        return int(importlib.import_module(module).main(others))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
