"""Benchmarks and parity checks, which people run by hand:

python -m tests.benchmarks                          lists them, with what each needs
python -m tests.benchmarks NAME [arguments]         runs one; `NAME --help` explains its arguments
"""

import importlib
import sys
from collections.abc import Sequence

from tests.benchmarks.catalogue import BENCHMARKS
from transfer.core.errors import UserError, did_you_mean


def main(argv: Sequence[str]) -> int:
    """List the benchmarks, or run the one that is named; return the exit status."""
    if not argv or argv[0] in ("-h", "--help", "--list"):
        print(__doc__)
        for one in BENCHMARKS.values():
            print(f"{one.name}\n  {one.summary}\n  needs: {one.needs}\n  GPU: {one.gpu}\n")
        return 0
    name, *others = argv
    if name not in BENCHMARKS:
        near = did_you_mean(name, BENCHMARKS)
        print(f"error: unknown benchmark {name!r}{near} (benchmarks: {', '.join(BENCHMARKS)})", file=sys.stderr)
        return 2
    sys.argv[0] = f"python -m tests.benchmarks {name}"  # what its --help calls it
    try:
        return int(importlib.import_module(f"tests.benchmarks.{BENCHMARKS[name].module}").main(others))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
