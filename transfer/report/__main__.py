"""`python -m transfer.report [COMMAND] RUNS [...]`: show the records of runs: tables, comparisons, maps, a page."""

import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transfer.cli.entry import exit_on_user_error
from transfer.cli.help import first_sentence, read_options
from transfer.cli.layers import names_of_flags
from transfer.core.errors import UsageError, UserError, count, did_you_mean, print_safe
from transfer.core.files import check_writable, write_atomic
from transfer.report import options as kinds
from transfer.report.options import COMMAND_OPTIONS

if TYPE_CHECKING:
    from transfer.records.run_set import StoredRuns
    from transfer.records.store import StoredRun
    from transfer.report.sections import ReportRequest

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
    if isinstance(options, kinds.ImportOptions):
        return _import(options)
    print_safe(f"report: reading {', '.join(map(str, options.runs))}", file=sys.stderr, flush=True)
    known = _read(options.runs)
    if isinstance(options, kinds.CardOptions):
        return _card(options, known)
    shown = _shown(known, options)
    if isinstance(options, kinds.BundleOptions):
        from transfer.verify.bundle import bundle

        print_safe(f"{options.output}: {count(len(bundle(shown, options.output, every=options.every)), 'run')}")
        return 0
    from transfer.records.run_set import StoredRuns

    runs = StoredRuns.of(shown, known)
    if isinstance(options, kinds.ClaimsOptions):
        return _claims(options, runs)
    request = _request(options, runs)
    if isinstance(options, kinds.FiguresOptions):
        return _write_figures(runs, options, request)
    _print(_render(runs, options, request), options.output)
    if request.ratios.measure and os.access(options.runs[0], os.W_OK):
        request.ratios.write(options.runs[0])
    return 0


def _read(folders: "Sequence[Path]") -> "list[StoredRun]":
    """Return the finished runs in folders of runs or of sweeps, with messages on stderr about all other runs."""
    from transfer.records.store import runs_in, store_in

    runs, messages = runs_in(folders)
    for message in [*messages, *(run for folder in folders for run in store_in(folder).unfinished())]:
        print_safe(message, file=sys.stderr)
    return runs


def _shown(known: "Sequence[StoredRun]", options: kinds.RunsOptions) -> "list[StoredRun]":
    """Return the runs to show: smoke and dirty ones only if asked for. Raises UserError if none is left."""
    shown = list(known)
    for flag, made_with in (("smoke", "--smoke"), ("dirty", "changed files")):
        if getattr(options, flag):
            continue
        remaining = [run for run in shown if not getattr(run.record, flag)]
        if excluded := len(shown) - len(remaining):
            print_safe(f"{count(excluded, 'run')} of {made_with} excluded; --{flag} shows them", file=sys.stderr)
        shown = remaining
    if not shown and not isinstance(options, kinds.PaperOptions | kinds.ClaimsOptions):
        raise UserError(f"no finished runs to show in {', '.join(map(str, options.runs))}")
    return shown


def _request(options: Any, runs: "StoredRuns") -> "ReportRequest":
    """Return what the options of a command ask for."""
    from transfer.comparison.selection import which_two
    from transfer.report.sections import ReportRequest

    request = ReportRequest(
        **{item.name: getattr(options, item.name) for item in fields(ReportRequest) if hasattr(options, item.name)},
        brief=getattr(options, "format", None) == "terminal",
        everything=isinstance(options, kinds.EverythingOptions),
    )
    needed = isinstance(options, kinds.CompareOptions) and not request.interaction
    if len(request.compare) != 2 and (request.compare or needed):
        raise UsageError(f"--compare: {which_two(request.compare, runs)}")
    if request.margin is not None and request.margin <= 0:
        raise UsageError("--margin: a difference in points, above 0")
    request.pivot |= request.cost or (bool(request.scores) and not request.per_class)
    request.cost |= isinstance(options, kinds.CostOptions)
    if request.measure_cost:
        from transfer.measure.steps import cost_ratios

        request.ratios = cost_ratios()
    for folder in options.runs:
        request.ratios.read(folder)
    return request


def _claims(options: kinds.ClaimsOptions, runs: "StoredRuns") -> int:
    from transfer.experiments.claims import read_claims
    from transfer.report.claims.document import claim_sections, write_document
    from transfer.report.claims.evaluate import evaluate_claim
    from transfer.report.formats import content

    read = read_claims(options.claims)
    results = [evaluate_claim(claim, runs) for claim in read.claims]
    if options.document:
        files = write_document(options.document, read, results, runs)
        print_safe(f"{options.document}: {len(files)} files", file=sys.stderr)
    parts = [*claim_sections(read.title, results, runs, plots=options.format == "html")]
    _print(content(parts, str(options.format), read.title, runs), options.output)
    return 0


def _write_figures(runs: "StoredRuns", options: kinds.FiguresOptions, request: "ReportRequest") -> int:
    from transfer.report.figures.svg import write_figures
    from transfer.report.sections import sections

    files = write_figures(
        lambda: [(part.file_name, part.plot) for part in sections(runs, request) if part.plot], options.output
    )
    print_safe(f"{options.output}: {len(files)} files")
    return 0


def _render(runs: "StoredRuns", options: kinds.OutputOptions, request: "ReportRequest") -> bytes:
    from transfer.records.run_set import frame_of_runs
    from transfer.report import formats
    from transfer.report.sections import sections

    form, ids = str(options.format), getattr(options, "per_run", False)
    if form in formats.DATA and ids and not request.names_sections:
        return formats.file_content(frame_of_runs(runs), form)
    return formats.content(sections(runs, request), form, "Transfer results", runs, ids=ids)


def _print(content: bytes, output: Path | None) -> None:
    """Write a report to a file, or print it."""
    if output is None:
        print_safe(content.decode().removesuffix("\n"))
    else:
        write_atomic(output, content, flag="--output")


def _import(options: kinds.ImportOptions) -> int:
    from transfer.records.store import store_in
    from transfer.verify.bundle import import_bundle

    check_writable(options.out, "--out")
    result = import_bundle(options.bundle, store_in(options.out))
    print_safe(str(result))
    return 1 if result.conflicts else 0


def _card(options: kinds.CardOptions, known: "Sequence[StoredRun]") -> int:
    from transfer.comparison.selection import is_named
    from transfer.report.card import model_card

    run = next((run for run in known if is_named(run, options.run)), None)
    if run is None:
        raise UserError(f"--run: {options.run!r} not found in {', '.join(map(str, options.runs))}; use a run id")
    _print(model_card(run, known).encode(), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
