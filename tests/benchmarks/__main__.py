"""Benchmarks and parity checks, which people run by hand:

python -m tests.benchmarks                          lists them: what each needs, and what it measured last
python -m tests.benchmarks NAME [arguments]         runs one; `NAME --help` explains its arguments
python -m tests.benchmarks NAME [arguments] --record    also appends what it prints to measured.csv
"""

import contextlib
import importlib
import io
import shlex
import sys
import textwrap
from collections.abc import Sequence

from backbones.errors import did_you_mean
from tests.benchmarks.catalogue import BENCHMARKS
from tests.benchmarks.measured import append, latest, measured_now, read_measurements

RECORD = "--record"


class Tee(io.StringIO):
    """Text that is printed at once, and kept."""

    def __init__(self, screen: io.TextIOBase) -> None:
        super().__init__()
        self._screen = screen

    def write(self, text: str) -> int:
        """Print and keep the text."""
        self._screen.write(text)
        return super().write(text)

    def flush(self) -> None:
        """Show what was written so far."""
        self._screen.flush()


def listing() -> str:
    """Every benchmark with its purpose, its needs and its last figures."""
    measurements, lines = read_measurements(), []
    for benchmark in BENCHMARKS.values():
        lines += [benchmark.name, f"  {benchmark.summary}"]
        lines += [f"  needs: {benchmark.needs}", f"  GPU: {benchmark.gpu}"]
        heading = ""
        for one in latest(measurements, benchmark.name):
            if heading != (heading := f"  {one.command}, {one.date}, {one.machine}, commit {one.commit}:"):
                lines.append(heading)
            lines += textwrap.wrap(one.figure, 116, initial_indent="    - ", subsequent_indent="      ")
        lines += [] if heading else ["  not measured"]
        lines.append("")
    return "\n".join(lines)


def run(name: str, argv: Sequence[str]) -> int:
    """Run one benchmark and return its exit status; what it prints is appended to the table where asked."""
    arguments = [argument for argument in argv if argument != RECORD]
    sys.argv[0] = f"python -m tests.benchmarks {name}"  # what its --help calls it
    main_ = importlib.import_module(f"tests.benchmarks.{BENCHMARKS[name].module}").main
    if RECORD not in argv:
        return int(main_(arguments))
    with contextlib.redirect_stdout(Tee(sys.stdout)) as printed:
        status = int(main_(arguments))
    if status == 0:
        command = shlex.join(["python", "-m", "tests.benchmarks", name, *arguments])
        append(measured_now(name, command, printed.getvalue()))
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """List the benchmarks, or run the one that is named; return the exit status."""
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    if not arguments or arguments[0] in ("-h", "--help", "--list"):
        print(f"{__doc__}\n{listing()}", end="")
        return 0
    name, *others = arguments
    if name not in BENCHMARKS:
        names = ", ".join(BENCHMARKS)
        print(
            f"error: unknown benchmark {name!r}{did_you_mean(name, BENCHMARKS)} (benchmarks: {names})", file=sys.stderr
        )
        return 2
    return run(name, others)


if __name__ == "__main__":
    sys.exit(main())
