"""`python -m transfer.report RUNS [...]`: the records in folders of runs as a table."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from backbones.errors import UserError
from backbones.files import cannot_write, write_atomic
from backbones.settings import Positional, parse
from transfer.cli import guarded
from transfer.results import Record, Store
from transfer.tables import frame, markdown, over_datasets, summary


@dataclass(kw_only=True)
class ReportOptions:
    """Which records to read, and how to print them."""

    runs: Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs, as --out of the commands that made them."""
    format: Literal["markdown", "csv", "html"] = "markdown"
    """Form of the tables."""
    output: Path | None = None
    """File to write; by default stdout."""
    smoke: bool = False
    """Show smoke runs as well; they are left out otherwise."""
    each: bool = False
    """One row per run instead of means over seeds."""


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit status."""
    return guarded(_main, argv)


def _main(argv: list[str]) -> int:
    options = parse(ReportOptions, argv, prog="python -m transfer.report")
    records = _read(options.runs)
    shown = [record for record in records if options.smoke or not record.smoke]
    if len(shown) < len(records):
        print(f"{len(records) - len(shown)} smoke runs left out; --smoke shows them", file=sys.stderr)
    if not shown:
        raise UserError(f"no finished runs in {', '.join(map(str, options.runs))}")
    text = _render(shown, options)
    if options.output:
        try:
            write_atomic(options.output, text.encode())
        except OSError as error:
            raise cannot_write(options.output, error) from None
    else:
        print(text)
    return 0


def _read(folders: Sequence[Path]) -> list[Record]:
    records: list[Record] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder of runs")
        found, problems = Store(folder).records()
        records += found
        for problem in problems:
            print(f"left out: {problem}", file=sys.stderr)
    # The same run copied into two folders is one run.
    return list({record.identity: record for record in records}.values())


def _render(records: list[Record], options: ReportOptions) -> str:
    """One table per task."""
    tables = {}
    for task in dict.fromkeys(record.task for record in records):
        mine = [record for record in records if record.task == task]
        tables[task] = frame(mine).drop(columns="protocol") if options.each else summary(mine)
        means = over_datasets(mine)
        if len(means):
            tables[f"{task}: mean over data sets"] = means
    if options.format == "csv":
        return "\n".join(table.to_csv(index=False) for table in tables.values()).rstrip("\n")
    if options.format == "html":
        from transfer.html import page

        return page(tables)
    return "\n\n".join(f"## {task}\n\n{markdown(table)}" for task, table in tables.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
