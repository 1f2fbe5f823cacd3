"""`python -m transfer.report RUNS [...]`: show the records of runs as tables, comparisons, maps, or a page."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from transfer.cli.entry import exit_on_user_error
from transfer.cli.help import read_options
from transfer.comparison.selection import has_value, which_two
from transfer.core.errors import UsageError, UserError, print_safe, visible_lines
from transfer.core.files import check_writable, write_atomic
from transfer.records.run_set import RunSet, frame_of_runs
from transfer.records.store import Run, has_record, merged, store_in
from transfer.report.formats import DATA, ReportOptions, file_content, typed_frame
from transfer.report.tables.cost_ratios import CostRatios

if TYPE_CHECKING:
    from transfer.report.page.sections import ReportRequest


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return exit_on_user_error(_main, argv)


def _main(argv: list[str]) -> int:
    options = read_options(ReportOptions, argv, "python -m transfer.report")
    if options.import_:
        return _import(options.import_, options.runs[0])
    print_safe(f"report: reading {', '.join(map(str, options.runs))}", file=sys.stderr, flush=True)
    known = read_runs(options.runs)
    if options.card:
        return _card(options, known)
    shown = _shown(known, options)
    if len(options.compare) not in (0, 2):
        raise UsageError(f"--compare: {which_two(options.compare, RunSet.of(shown, known))}")
    if options.bundle:
        from transfer.verify.bundle import bundle

        packed = bundle(shown, options.bundle)
        print_safe(f"{options.bundle}: {_runs(len(packed))}")
        return 0
    if options.figures:
        return _write_figures(RunSet.of(shown, known), options, options.figures)
    request = _request(options)
    _print(_render(RunSet.of(shown, known), options, request), options.output, escape=options.format != "terminal")
    if options.measure_cost and not has_record(options.runs[0]) and os.access(options.runs[0], os.W_OK):
        request.ratios.write(options.runs[0])
    return 0


def _write_figures(runs: RunSet, options: ReportOptions, folder: Path) -> int:
    from transfer.report.figures.svg import styled
    from transfer.report.page.sections import sections
    from transfer.report.paper_figures import write_figures

    with styled(options.style):
        files = write_figures(lambda: sections(runs, replace(_request(options), everything=True)), folder)
    print_safe(f"{folder}: {len(files)} files")
    return 0


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the finished runs in folders of runs or of sweeps, with messages on stderr about all other runs.

    Raises:
        UserError: a folder does not exist.
    """
    finished: list[Run] = []
    messages: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: directory not found; name a folder of runs, as runs or sweeps/NAME")
        if has_record(folder):  # one run
            of_folder, _ = store_in(folder.resolve().parent).runs()
            finished += [run for run in of_folder if run.folder == folder.resolve()]
            continue
        store = store_in(folder)
        runs, problems = store.runs()
        finished += runs
        messages += [f"skipped: {problem}" for problem in problems]
        for run in store.unfinished():
            messages.append(f"{run.folder}: {run.state}{f' ({run.reason})' if run.reason else ''}")
    runs, disputes = merged(finished)
    for message in (*messages, *disputes):
        print_safe(message, file=sys.stderr)
    return runs


def _shown(known: Sequence[Run], options: ReportOptions) -> list[Run]:
    """Return the runs to show: smoke and dirty ones only if asked for. Raises UserError if none is left."""
    shown = [run for run in known if options.smoke or not run.record.smoke]
    if len(shown) < len(known):
        print_safe(f"{_runs(len(known) - len(shown))} of --smoke excluded; --smoke shows them", file=sys.stderr)
    clean = [run for run in shown if options.dirty or not run.record.dirty]
    if len(clean) < len(shown):
        print_safe(f"{_runs(len(shown) - len(clean))} of changed files excluded; --dirty shows them", file=sys.stderr)
    if not clean and not options.paper:
        raise UserError(f"no finished runs to show in {', '.join(map(str, options.runs))}")
    return clean


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _request(options: ReportOptions) -> "ReportRequest":
    from transfer.report.page.sections import ReportRequest

    same = ("per_run", "pivot", "scores", "correction", "margin", "interaction", "by", "cost", "layers", "pictures")
    return ReportRequest(
        **{name: getattr(options, name) for name in same},
        paper=options.published,
        compare=((options.compare[0], options.compare[1]),) if options.compare else (),
        heatmap=(options.heatmap[0], options.heatmap[1]) if options.heatmap else None,
        ratios=_cost_ratios(options),
        brief=options.format == "terminal",
        everything=options.format == "html",
    )


def _cost_ratios(options: ReportOptions) -> CostRatios:
    """Return the costs measured earlier, and with --measure-cost those of other pairs when they are asked for."""
    ratios = CostRatios()
    if options.measure_cost:
        from transfer.doctor.speed_pairs import cost_ratios

        ratios = cost_ratios()
    for folder in options.runs:
        ratios.read(folder)
    return ratios


def _render(runs: RunSet, options: ReportOptions, request: "ReportRequest") -> bytes:
    from transfer.report.formats import as_latex, as_markdown, as_one_table, as_terminal
    from transfer.report.page.sections import sections
    from transfer.report.tables.terminal import shows_colors

    if options.format in DATA and options.per_run and not request.names_sections:
        return file_content(frame_of_runs(runs), options.format)
    parts = sections(runs, request)
    if options.format in DATA:
        return file_content(typed_frame(as_one_table(parts)), options.format)
    if options.format == "html":
        from transfer.report.page.html import page

        return page("Transfer results", parts, runs).encode()
    if options.format == "terminal":
        return as_terminal(parts, ids=options.per_run, color=shows_colors()).encode()
    write = as_latex if options.format == "latex" else as_markdown
    return visible_lines(write(parts, ids=options.per_run)).encode()


def _print(content: bytes, output: Path | None, *, escape: bool = True) -> None:
    """Write a report to a file, or print it; `escape` shows the control characters of names, colors among them."""
    if output is None:
        text = content.decode().removesuffix("\n")
        (print_safe if escape else print)(text)
    else:
        write_atomic(output, content, flag="--output")


def _import(file: Path, folder: Path) -> int:
    from transfer.verify.bundle import import_bundle

    check_writable(folder, "--import into")
    result = import_bundle(file, store_in(folder))
    print_safe(str(result))
    return 1 if result.conflicts else 0


def _card(options: ReportOptions, known: Sequence[Run]) -> int:
    from transfer.report.card import model_card

    name = options.card
    named = (run for run in known if name == str(run.folder) or has_value(run.record, "run", str(name), {}))
    run = next(named, None)
    if run is None:
        raise UserError(f"--card: run {name!r} not found in {', '.join(map(str, options.runs))}; use a run id")
    _print(model_card(run, known).encode(), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
