"""`python -m transfer.report RUNS [...]`: show the records of runs as tables, comparisons, maps, or a page."""

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from backbones.errors import UsageError, UserError
from backbones.runtime.files import check_writable, write_atomic
from backbones.settings import Positional, flag, parse
from transfer.cli.command import exit_on_user_error
from transfer.cli.old_names import renamed_flag
from transfer.records.run_set import RunSet
from transfer.records.store import Run, merged, store_in
from transfer.report.formats import DATA, Format, chosen_format, file_content, typed_frame

if TYPE_CHECKING:
    from transfer.report.page.section_types import Section
    from transfer.report.page.sections import ReportRequest


@dataclass(kw_only=True)
class ReportOptions:
    """Records to read, and what to show of them."""

    runs: Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders of runs (--out of the commands that made them) or of sweeps."""
    format: Format | None = None
    """Format of the output; by default that of the suffix of --output, or markdown. csv, jsonl and parquet hold all
    rows in one table, latex is for booktabs, html is one self-contained page with plots, maps and galleries."""
    output: Path | None = None
    """File to write (with --hub a folder); by default stdout."""
    smoke: bool = False
    """Show smoke runs as well; they are left out otherwise."""
    dirty: bool = False
    """Show runs made with changed files of the suite as well; they are left out otherwise."""
    each: bool = False
    """One row per run instead of means over seeds. In csv, jsonl and parquet one row per run and score."""
    paper: str | None = None
    """Paper in configs/published whose numbers are shown beside your own; needs --table or --figure."""
    table: str | None = None
    """Number or name of the table in that paper."""
    figure: str | None = None
    """Number or name of the figure in that paper: shows its claims with notes, and its costs beside your own."""
    compare: tuple[str, str] | None = None
    """Two backbones: each a name, a run, or FIELD=VALUE[,FIELD=VALUE]; the difference is paired by sample."""
    correction: Literal["holm", "bh", "none"] = "holm"
    """Correction of a comparison's p values: Holm, Benjamini-Hochberg, or none."""
    bootstrap_samples: int = 10_000
    """Samples of the bootstrap; at most 1,000 for COCO's scores, which take longer."""
    margin: float | None = None
    """Largest difference that does not matter, in points: with it a comparison can find two backbones equivalent.
    With --paper the largest difference at which a number agrees with the printed one, 1 by default."""
    interaction: tuple[str, str] | None = None
    """Two fields, for instance stem attention: tests whether the effect of one depends on the other."""
    map: tuple[str, str] | None = None
    """Two fields, for instance lr warmup_epochs: shows outcomes and scores of trainings over both."""
    by: tuple[str, ...] = ()
    """Fields for whose values --map has separate panels."""
    cost: bool = False
    """Scores against operations and hours, with the Pareto front."""
    layers: bool = False
    """Diagnostics of the task tokens, layer by layer."""
    figures: Path | None = None
    """Write the figures of the page to this folder, as SVG and PDF of 6.9 inches, each with its data as CSV."""
    style: Path | None = None
    """File of matplotlib's settings for --figures, over those of the suite."""
    serve: bool = False
    """Show the page at http://127.0.0.1:PORT and renew it while runs go on; Ctrl-C ends it."""
    port: int = 8765
    """Port of --serve; 0 takes a free one."""
    pictures: bool = False
    """Embed the pictures of the runs (made by --save-pictures) in the page."""
    bundle: Path | None = None
    """Pack the runs into this file, without images, weights and paths of this machine."""
    import_: Annotated[Path | None, flag("import")] = None
    """Check the runs in a bundle and add them to the first folder of runs."""
    card: str | None = None
    """Print the model card of a run."""
    hub: str | None = None
    """Write a run's weights and card to the folder --output, in the layout of a model on the Hugging Face hub."""
    weights: Path | None = None
    """Folder of the weights for --hub; by default the run's own export."""

    def __post_init__(self) -> None:
        if self.table is not None and self.figure is not None:
            raise UsageError("--table and --figure exclude each other")
        if (self.paper is None) != (self.table is None and self.figure is None):
            raise UsageError("--paper and --table belong together, as --paper scaled_relu --table 4; or --figure 1")
        if not 100 <= self.bootstrap_samples <= 1_000_000:
            raise UsageError(f"--bootstrap-samples {self.bootstrap_samples}: must be between 100 and 1000000")
        if self.margin is not None and not 0 < self.margin < float("inf"):
            raise UsageError(f"--margin {self.margin:g}: a difference in points, above 0")
        if self.hub and not self.output:
            raise UsageError("--hub: name the folder to write with --output")
        if not (self.bundle or self.import_ or self.card or self.hub or self.figures or self.serve):
            self.format = chosen_format(self.format, self.output)
        self._check_ignored()

    @property
    def published(self) -> tuple[str, str] | None:
        """Names of the paper and of its table or figure; None without --paper."""
        table = f"figure{self.figure}" if self.figure is not None else self.table
        return (self.paper, table) if self.paper is not None and table is not None else None

    def _check_ignored(self) -> None:
        """Raise UsageError for an option that would have no effect."""
        shows = bool(
            self.paper or self.compare or self.interaction or self.map or self.cost or self.layers or self.each
        )
        actions = {"bundle": self.bundle, "import": self.import_, "card": self.card, "hub": self.hub}
        actions |= {"figures": self.figures, "serve": "yes" if self.serve else None}
        chosen = [f"--{name}" for name, value in actions.items() if value]
        if len(chosen) > 1:
            raise UsageError(f"{' and '.join(chosen)} exclude each other")
        if self.output and (self.bundle or self.import_ or self.figures or self.serve):
            raise UsageError(f"--output: has no effect with {chosen[0]}")
        if self.import_ and len(self.runs) > 1:
            raise UsageError("--import: name one folder of runs, to which they are added")
        no_action = "none of --bundle, --import, --card, --hub"
        without = chosen and not (self.figures or self.serve)
        for name, ignored, needs in (
            ("--by", self.by and not self.map, "--map"),
            ("--pictures", self.pictures and self.format != "html" and not self.serve, "--format html"),
            ("--weights", self.weights and not self.hub, "--hub"),
            ("--port", self.port != 8765 and not self.serve, "--serve"),
            ("--style", self.style and not self.figures, "--figures"),
            ("--correction", self.correction != "holm" and not (self.compare or self.interaction), "--compare"),
            ("--margin", self.margin is not None and not (self.compare or self.interaction or self.paper), "--compare"),
            (
                "--bootstrap-samples",
                self.bootstrap_samples != 10_000 and not (self.compare or self.interaction),
                "--compare",
            ),
            ("--paper, --compare, --map ...", shows and without, no_action),
            ("--format", self.format is not None and chosen, no_action),
        ):
            if ignored:
                raise UsageError(f"{name}: has an effect only with {needs}")


def main(argv: list[str]) -> int:
    """Run the command; return its exit status."""
    return exit_on_user_error(_main, argv)


def _main(argv: list[str]) -> int:
    if renamed := renamed_flag(argv, [item.name for item in fields(ReportOptions)]):
        raise UsageError(renamed)
    options = parse(ReportOptions, argv, prog="python -m transfer.report")
    if options.import_:
        return _import(options.import_, options.runs[0])
    if options.serve:
        from transfer.report.serve import serve

        return serve(options.runs, lambda: _served(options), options.port)
    known = read_runs(options.runs)
    gc.freeze()  # records live until the end, so the collector need not traverse them
    try:
        return _report(options, known)
    finally:
        gc.unfreeze()


def _report(options: ReportOptions, known: Sequence[Run]) -> int:
    if options.card or options.hub:
        return _share(options, known)
    shown = _shown(known, options)
    if options.bundle:
        from transfer.share.bundle import bundle

        packed = bundle(shown, options.bundle)
        print(f"{options.bundle}: {_runs(len(packed))}")
        return 0
    if options.figures:
        return _write_figures(RunSet.of(shown, known), options, options.figures)
    _print(_render(RunSet.of(shown, known), options), options.output)
    return 0


def _write_figures(runs: RunSet, options: ReportOptions, folder: Path) -> int:
    from transfer.report.figures.svg import styled
    from transfer.report.page.sections import sections
    from transfer.report.paper_figures import write_figures

    with styled(options.style):
        files = write_figures(sections(runs, replace(_request(options), everything=True)), folder)
    print(f"{folder}: {len(files)} files")
    return 0


def _served(options: ReportOptions) -> tuple[RunSet, "list[Section]"]:
    """Return the runs and sections of a page that is served; no run need be finished."""
    from transfer.report.page.sections import sections

    known, _ = _read(options.runs)
    shown = [
        run for run in known if (options.smoke or not run.record.smoke) and (options.dirty or not run.record.dirty)
    ]
    runs = RunSet.of(shown, known)
    return runs, sections(runs, replace(_request(options), everything=True))


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the finished runs in folders of runs or of sweeps, with messages on stderr about all other runs.

    Raises:
        UserError: a folder does not exist.
    """
    runs, messages = _read(folders)
    for message in messages:
        print(message, file=sys.stderr)
    return runs


def _read(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return the finished runs, and messages about all others. Raises UserError as `read_runs`."""
    finished: list[Run] = []
    messages: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder of runs")
        store = store_in(folder)
        runs, problems = store.runs()
        finished += runs
        messages += [f"left out: {problem}" for problem in problems]
        for run in store.unfinished():
            messages.append(f"{run.folder}: {run.state}{f' ({run.reason})' if run.reason else ''}")
    runs, disputes = merged(finished)
    return runs, [*messages, *disputes]


def _shown(known: Sequence[Run], options: ReportOptions) -> list[Run]:
    """Return the runs to show: smoke and dirty ones only if asked for. Raises UserError if none is left."""
    shown = [run for run in known if options.smoke or not run.record.smoke]
    if len(shown) < len(known):
        print(f"{_runs(len(known) - len(shown))} of --smoke left out; --smoke shows them", file=sys.stderr)
    clean = [run for run in shown if options.dirty or not run.record.dirty]
    if len(clean) < len(shown):
        print(f"{_runs(len(shown) - len(clean))} of changed files left out; --dirty shows them", file=sys.stderr)
    if not clean and not options.paper:
        raise UserError(f"no finished runs to show in {', '.join(map(str, options.runs))}")
    return clean


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _request(options: ReportOptions) -> "ReportRequest":
    from transfer.report.page.sections import ReportRequest

    return ReportRequest(
        each=options.each,
        paper=options.published,
        compare=(options.compare,) if options.compare else (),
        correction=options.correction,
        draws=options.bootstrap_samples,
        margin=options.margin,
        interaction=options.interaction,
        map=options.map,
        by=options.by,
        cost=options.cost,
        layers=options.layers,
        pictures=options.pictures,
        everything=options.format == "html",
    )


def _render(runs: RunSet, options: ReportOptions) -> bytes:
    from transfer.report.page.sections import as_latex, as_markdown, as_one_table, sections

    request = _request(options)
    if options.format in DATA and options.each and not request.names_sections:
        from transfer.records.run_frame import frame_of_runs

        return file_content(frame_of_runs(runs), options.format)
    parts = sections(runs, request)
    if options.format in DATA:
        return file_content(typed_frame(as_one_table(parts)), options.format)
    if options.format == "html":
        from transfer.report.page.html import page

        return page("Transfer results", parts, runs).encode()
    write = as_latex if options.format == "latex" else as_markdown
    return write(parts, ids=options.each).encode()


def _print(content: bytes, output: Path | None) -> None:
    if output is None:
        print(content.decode().removesuffix("\n"))
    else:
        write_atomic(output, content, flag="--output")


def _import(file: Path, folder: Path) -> int:
    from transfer.share.bundle import import_bundle

    check_writable(folder, "--import into")
    result = import_bundle(file, store_in(folder))
    print(result)
    return 1 if result.conflicts else 0


def _share(options: ReportOptions, known: Sequence[Run]) -> int:
    from transfer.share.model_card import hub_layout, model_card

    name = options.card or options.hub
    run = next((run for run in known if name in (run.record.run_id, str(run.folder), run.folder.name)), None)
    if run is None:
        raise UserError(f"there is no run {name!r} in {', '.join(map(str, options.runs))}")
    if options.hub:
        assert options.output
        print(hub_layout(run, options.weights, options.output, known))
        return 0
    _print(model_card(run, known).encode(), options.output)
    return 0


def command() -> None:
    """Run the console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
