"""What the commands of `transfer.report` do with their options: read records, make a report, print or write it."""

import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from transfer.comparison.selection import is_named, which_two
from transfer.core.errors import UsageError, UserError, count, print_safe
from transfer.core.files import check_writable, write_atomic
from transfer.experiments.claims import Claims, read_claims
from transfer.records.run_set import StoredRuns, frame_of_runs
from transfer.records.store import StoredRun, runs_in, store_in
from transfer.report import formats
from transfer.report import options as kinds
from transfer.report.card import model_card
from transfer.report.claims.document import claim_sections, write_document
from transfer.report.claims.evaluate import evaluate_claim
from transfer.report.figures.svg import write_figures
from transfer.report.sections import ReportRequest, sections
from transfer.verify.bundle import bundle, import_bundle


def run_command(options: Any) -> int:
    """Run the command that options belong to; return its exit status."""
    if isinstance(options, kinds.ImportOptions):
        return _import(options)
    claims = read_claims(options.claims) if isinstance(options, kinds.ClaimsOptions) else None
    print_safe(f"report: reading {', '.join(map(str, options.runs))}", file=sys.stderr, flush=True)
    known, problems = _read(options.runs)
    if isinstance(options, kinds.CardOptions):
        return _card(options, known)
    shown = _shown(known, options)
    if isinstance(options, kinds.BundleOptions):
        print_safe(f"{options.output}: {count(len(bundle(shown, options.output, every=options.every)), 'run')}")
        return 0
    runs = StoredRuns(tuple(shown), tuple(known), tuple(problems))
    if claims:
        return _claims(options, claims, runs)
    request = _request(options, runs)
    if isinstance(options, kinds.FiguresOptions):
        files = write_figures(
            lambda: [(part.file_name, part.plot) for part in sections(runs, request) if part.plot], options.output
        )
        print_safe(f"{options.output}: {len(files)} files")
        return 0
    form, ids = str(options.format), getattr(options, "per_run", False)
    if form in formats.DATA and ids and not request.names_sections:
        content = formats.file_content(frame_of_runs(runs), form)
    else:
        content = formats.content(sections(runs, request), form, "Transfer results", runs, ids=ids)
    _print(content, options.output)
    if request.ratios.measure and os.access(options.runs[0], os.W_OK):
        request.ratios.write(options.runs[0])
    return 0


def _read(folders: Sequence[Path]) -> tuple[list[StoredRun], list[str]]:
    """Return the finished runs in folders of runs or of sweeps, and problems of records, on stderr with all others."""
    runs, problems = runs_in(folders)
    for message in [*problems, *(run for folder in folders for run in store_in(folder).unfinished())]:
        print_safe(message, file=sys.stderr)
    return runs, problems


def _shown(known: Sequence[StoredRun], options: kinds.RunsOptions) -> list[StoredRun]:
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


def _request(options: Any, runs: StoredRuns) -> ReportRequest:
    """Return what the options of a command ask for."""
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
        from transfer.measure.steps import cost_ratios  # imports torch

        request.ratios = cost_ratios()
    for folder in options.runs:
        request.ratios.read(folder)
    return request


def _claims(options: kinds.ClaimsOptions, read: Claims, runs: StoredRuns) -> int:
    results = [evaluate_claim(claim, runs) for claim in read.claims]
    if options.document:
        files = write_document(options.document, read, results, runs)
        print_safe(f"{options.document}: {len(files)} files", file=sys.stderr)
    parts = [*claim_sections(read.title, results, runs, plots=options.format == "html")]
    _print(formats.content(parts, str(options.format), read.title, runs), options.output)
    return 0


def _print(content: bytes, output: Path | None) -> None:
    """Write a report to a file, or print it."""
    if output is None:
        print_safe(content.decode().removesuffix("\n"))
    else:
        write_atomic(output, content, flag="--output")


def _import(options: kinds.ImportOptions) -> int:
    check_writable(options.out, "--out")
    result = import_bundle(options.bundle, store_in(options.out))
    print_safe(str(result))
    return 1 if result.conflicts else 0


def _card(options: kinds.CardOptions, known: Sequence[StoredRun]) -> int:
    run = next((run for run in known if is_named(run, options.run)), None)
    if run is None:
        raise UserError(f"--run: {options.run!r} not found in {', '.join(map(str, options.runs))}; use a run id")
    _print(model_card(run, known).encode(), options.output)
    return 0
