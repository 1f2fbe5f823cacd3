"""`python -m transfer.report [COMMAND] RUNS [...]`: show the records of runs: tables, comparisons, maps, a page."""

import sys
from dataclasses import fields
from pathlib import Path

from transfer.cli.entry import exit_on_user_error
from transfer.cli.help import first_sentence, read_options
from transfer.cli.layers import names_of_flags
from transfer.core.errors import UsageError, did_you_mean, print_safe
from transfer.report.options import COMMAND_OPTIONS

USAGE = """usage: python -m transfer.report [COMMAND] [RUNS ...] [options]

{commands}

COMMAND --help lists its options. Without COMMAND: page with --format html or an HTML file; compare
with --compare or --interaction; map with --heatmap; paper with --paper; else table."""
FLAGS = {"--compare": "compare", "--interaction": "compare", "--heatmap": "map", "--paper": "paper"}
"""The command that a flag stands for where none is named."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return exit_on_user_error(_main, argv)


def named_command(argv: list[str]) -> tuple[str, list[str]]:
    """Return the name of the command that the arguments name, or stand for, and its arguments."""
    if argv and argv[0] in COMMAND_OPTIONS:
        return argv[0], argv[1:]
    first = next(iter(argv), "-")
    if first[0] != "-" and not Path(first).exists() and (near := did_you_mean(first, COMMAND_OPTIONS)):
        raise UsageError(f"unknown command {first!r}{near}")
    if any(word in ("html", "--format=html") or word.endswith(".html") for word in argv):
        return "page", argv
    return next((FLAGS[flag] for word in argv if (flag := word.partition("=")[0]) in FLAGS), "table"), argv


def _main(argv: list[str]) -> int:
    if argv[:1] in (["-h"], ["--help"]):
        lines = (f"  {name:10} {first_sentence(kind.__doc__ or '')}" for name, kind in COMMAND_OPTIONS.items())
        print_safe(USAGE.format(commands="\n".join(lines)))
        return 0
    name, argv = named_command(argv)
    for flag in names_of_flags(argv):
        having = [owner for owner, kind in COMMAND_OPTIONS.items() if flag in {item.name for item in fields(kind)}]
        if having and name not in having:
            option = f"--{flag.replace('_', '-')}"
            raise UsageError(f"{option} is not an option of `report {name}`; use `report {'`, `report '.join(having)}`")
    options = read_options(COMMAND_OPTIONS[name], argv, f"python -m transfer.report {name}")
    from transfer.report.commands import run_command  # imports numpy, which --help does not need

    return run_command(options)


if __name__ == "__main__":
    sys.exit(main())
