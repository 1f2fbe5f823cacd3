"""The sections of a report: summary, scores, comparisons, costs, maps, published results, curves, visualizations."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from transfer.comparison.paired_intervals import Settings
from transfer.core.errors import UsageError, UserError
from transfer.engine.checkpoint import HISTORY, history
from transfer.records.run_set import RunSet
from transfer.report.figures.svg import arms_colored
from transfer.report.page.comparison_sections import (
    brief_tables,
    comparison_sections,
    comparisons_of,
    difference_table,
    in_words,
    ratios_of,
    samples,
)
from transfer.report.page.section_types import Section
from transfer.report.tables.cost_ratios import CostRatios
from transfer.report.tables.pivot import names_of_runs
from transfer.report.tables.table import Note, is_missing
from transfer.report.tables.text import note_text

CURVES = 12  # largest number of runs of a task whose training curves are drawn
STABILITY = ("lr", "warmup_epochs")
NO_COSTS = "report cost: none of these runs has a score"
NO_LAYERS = "--layers: no run of the task tokens (python -m transfer.run tokens), none pretrained with --tokens-at"
READING = {
    "cost": "Higher is better, further left is cheaper. Bars are ± one standard deviation over seeds. "
    "Ringed points are Pareto-optimal among comparable runs.",
    "map": "Each cell is one training setting: its color and hatch give the status of its runs, its number their mean "
    "score. 'At chance' means a score no better than chance level.",
}
"""How to read the sections of a page."""


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """Sections to show besides the tables of scores; `transfer/report/options.py` explains each field."""

    per_run: bool = False
    pivot: bool = False
    scores: Sequence[str] = ()
    paper: tuple[str, str] | None = None
    compare: Sequence[tuple[str, str]] = ()
    correction: str = "holm"
    margin: float | None = None
    interaction: tuple[str, str] | None = None
    heatmap: tuple[str, str] | None = None
    by: Sequence[str] = ()
    cost: bool = False
    ratios: CostRatios = field(default_factory=CostRatios)
    """Measured costs of the variants that are compared, one beside the other."""
    layers: bool = False
    pictures: bool = False
    brief: bool = False
    """For a terminal: short names of variants, and of comparisons the verdicts with their intervals alone."""
    everything: bool = False
    """Also show sections that were not asked for: maps over varied rates, token similarity, curves, galleries."""

    @property
    def settings(self) -> Settings:
        """Settings of the intervals and p values of comparisons."""
        return Settings(self.correction, margin=self.margin)

    @property
    def names_sections(self) -> bool:
        """Whether sections are asked for by name."""
        return bool(
            self.pivot or self.paper or self.compare or self.interaction or self.heatmap or self.cost or self.layers
        )


def sections(runs: RunSet, request: ReportRequest) -> list[Section]:
    """Return the sections of a report in the order in which they are shown.

    Raises:
        UserError: a section was asked for that cannot be made from the runs.
    """
    with arms_colored(names_of_runs(runs)):
        return _page_sections(runs, request) if request.everything else _asked_sections(runs, request)


def _asked_sections(runs: RunSet, request: ReportRequest) -> list[Section]:
    """Return what was asked for by name, or else the tables of scores."""
    parts = [*_pivot(runs, request)] if request.pivot else []
    parts += [_paper(runs, request.paper, request.margin)] if request.paper else []
    for comparison in comparisons_of(runs, request.compare, request.settings):
        tables = brief_tables(comparison, runs) if request.brief else [difference_table(comparison, runs)]
        parts += [in_words(comparison, runs, request.ratios), *tables, *ratios_of(comparison, runs, request.ratios)]
    if request.interaction:
        parts.append(_interaction(runs, request.interaction, request))
    if request.heatmap:
        parts += _maps(runs, request.heatmap, request.by)
    if not request.names_sections:
        parts += _tables(runs, request)
    if request.cost:
        parts += _asked(True, _cost(runs), NO_COSTS)
    if request.layers:
        parts += _asked(True, _layers(runs), NO_LAYERS)
    return parts


def _page_sections(runs: RunSet, request: ReportRequest) -> list[Section]:
    """Return a page's sections in the order of a reader's questions; what is looked up is folded.

    The summary with costs, the scores, the comparisons, stability, published results; then everything else.
    """
    from transfer.report.page.galleries import picture_sections
    from transfer.report.summary.variants import arms_to_compare, why_no_arms

    comparisons = comparisons_of(runs, request.compare, request.settings)
    for pair in () if request.compare else arms_to_compare(runs):
        with suppress(UserError):  # nobody asked for this one
            comparisons += comparisons_of(runs, [pair], request.settings)
    costs = _asked(request.cost, _cost(runs), NO_COSTS)
    first = [*comparison_sections(comparisons, runs, request.ratios)] if comparisons else []
    summary = first[0] if first else Section(title="Summary", note=why_no_arms(runs), lead=True)
    shown = [summary, *_pivot(runs, request), *first[1:]]
    shown += [replace(part, table=None) for part in costs if part.plot]
    shown += _maps(runs, request.heatmap, request.by) if request.heatmap else _varying(runs)
    shown += [_paper(runs, request.paper, request.margin)] if request.paper else []
    shown += [_interaction(runs, request.interaction, request)] if request.interaction else []
    rest = [difference_table(comparison, runs) for comparison in comparisons if comparison.rows or request.compare]
    rest += [*samples(comparisons, runs, request.pictures), *_tables(runs, request)]
    rest += [part for comparison in comparisons for part in ratios_of(comparison, runs, request.ratios)]
    rest += [replace(part, title=f"{part.title}, table", plot=None, reading="") for part in costs]
    rest += [*_asked(request.layers, _layers(runs), NO_LAYERS), *_similarity(runs), *_curves(runs)]
    rest += picture_sections(runs.runs, pictures=request.pictures)
    parts = [*shown, *(replace(part, folded=True) for part in rest)]
    told = {part.reading: part.title for part in reversed(parts)}  # how to read them is told once
    return [part if told[part.reading] == part.title else replace(part, reading="") for part in parts]


def _asked(asked: bool, parts: Iterator[Section], otherwise: str) -> list[Section]:
    """Return the sections. Raises UserError if they were asked for by name and there are none."""
    made = list(parts)
    if asked and not made:
        raise UserError(otherwise)
    return made


def _tables(runs: RunSet, request: ReportRequest) -> Iterator[Section]:
    """Yield a table of scores for each task."""
    from transfer.report.tables.columns import protocol_tables
    from transfer.report.tables.dataset_means import over_datasets
    from transfer.report.tables.pivot import by_variant
    from transfer.report.tables.scores import each_run, summary

    names = names_of_runs(runs)
    for task in runs.tasks:
        of_task = runs.of_task(task)
        table = each_run(of_task) if request.per_run else summary(of_task)
        for title, rows in ((task, table), (f"{task}: mean over datasets", over_datasets(of_task))):
            rows = by_variant(rows, names) if request.brief else rows
            for protocol, part in protocol_tables(rows).items():
                yield Section(title=f"{title}, {protocol}" if protocol else title, table=part)
    yield from _norms(runs)


def _pivot(runs: RunSet, request: ReportRequest) -> Iterator[Section]:
    from transfer.report.tables.pivot import pivot_tables

    for number, table in enumerate(pivot_tables(runs, request.scores), 1):
        yield Section(title=f"Scores by variant{f' ({number})' * (number > 1)}", table=table)


def _norms(runs: RunSet) -> Iterator[Section]:
    """Yield the norms of the first theorem of arXiv 2109.03810, if a stem has them."""
    from transfer.report.tables.tokens import norm_table

    table = norm_table(runs.where(lambda record: record.details.get("stem")))
    if len(table):
        yield Section(title="tokens: weights, scale and shift of the stem's last activation", table=table)


def _paper(runs: RunSet, paper: tuple[str, str], margin: float | None) -> Section:
    from transfer.experiments.published_rows import table_of
    from transfer.report.published.table import paper_table

    table = paper_table(runs, *paper, margin=margin)
    note = "\n".join(map(note_text, table.notes))  # paragraphs: they say what the table is, as its cells do not
    return Section(title=f"{paper[0]}, {table_of(*paper).called}", table=replace(table, notes=[]), note=note)


def _interaction(runs: RunSet, fields: tuple[str, str], request: ReportRequest) -> Section:
    from transfer.report.tables.comparison import crossed, in_brief, interaction_table

    first, second = fields
    comparison = crossed(runs, first, second, request.settings)
    table = interaction_table(comparison, runs).without_empty()
    table = in_brief(comparison, table)[0] if request.brief else table
    return Section(title=f"Interaction of {first} and {second}", table=table)


def _maps(runs: RunSet, axes: tuple[str, str], by: Sequence[str]) -> list[Section]:
    """Return the map of each task that has both axes. Raises UsageError if none has."""
    found: list[Section] = []
    for task in runs.tasks if len(runs.tasks) > 1 else ():
        with suppress(UsageError):
            found += _map(runs.of_task(task), axes, by, f"{task}: stability map")
    return found or [*_map(runs, axes, by, "Stability map")]


def _map(runs: RunSet, axes: tuple[str, str], by: Sequence[str], title: str) -> Iterator[Section]:
    from transfer.report.figures.stability_map import heat_map
    from transfer.report.summary.stability import map_sentence
    from transfer.report.tables.largest_stable import largest_stable
    from transfer.report.tables.stability_map import stability_map

    rows = stability_map(runs, *axes, by)
    plot, told = heat_map(rows), map_sentence(rows)
    if not told:
        rows.notes.append(Note(f"no largest stable {axes[0]}, which is not a number in every run"))
    yield Section(title=title, table=rows.without_empty(), plot=plot, note=told, reading=READING["map"])
    if told:
        yield Section(title=f"{title}: largest stable {axes[0]}", table=largest_stable(rows).without_empty())


def _varying(runs: RunSet) -> Iterator[Section]:
    """Yield stability maps over rate and warm-up of the tasks with several rates."""
    for task in runs.tasks:
        of_task = runs.of_task(task)
        rates, warmups = ({record.options.get(name) for record in of_task.records} for name in STABILITY)
        if len(rates - {None}) > 1 and None not in warmups:
            yield from _map(of_task, STABILITY, (), f"{task}: stability map")


def _cost(runs: RunSet) -> Iterator[Section]:
    from transfer.report.figures.cost import cost_plot
    from transfer.report.tables.costs import cost_table

    for task in runs.tasks:
        rows = cost_table(runs.of_task(task))
        if not all(map(is_missing, rows["score"])):
            plot = cost_plot(rows)
            yield Section(title=f"{task}: score vs. cost", table=rows, plot=plot, reading=READING["cost"])


def _layers(runs: RunSet) -> Iterator[Section]:
    """Yield tables by layer of the task tokens and of trainings with `--tokens-at`."""
    from transfer.report.tables.tokens import layer_table, norm_table

    with_layers = runs.where(lambda record: record.details.get("layers"))
    if len(with_layers):
        yield Section(title="tokens: by layer", table=layer_table(with_layers))
    diagnosed = runs.where(lambda record: record.details.get("tokens_at"))
    layer_histories = {run.record.run_id: history(run.folder, "layers") for run in diagnosed}
    if any(layer_histories.values()):
        from transfer.report.figures.curves import similarity_by_epoch

        plot = similarity_by_epoch(diagnosed, layer_histories)
        table = layer_table(diagnosed, layer_histories)
        yield Section(title="Tokens while training: by layer", table=table, plot=plot)
        norms = norm_table(diagnosed, layer_histories)
        if len(norms):
            title = "Tokens while training: weights, scale and shift of the stem's last activation"
            yield Section(title=title, table=norms)


def _similarity(runs: RunSet) -> Iterator[Section]:
    from transfer.report.figures.curves import similarity_plot

    with_layers = runs.where(lambda record: record.details.get("layers"))
    if len(with_layers):
        plot = similarity_plot(with_layers)
        yield Section(title="Token similarity by layer", plot=plot)


def _curves(runs: RunSet) -> Iterator[Section]:
    from transfer.report.figures.curves import training_curves

    for task in runs.tasks:
        trained = [run for run in runs.of_task(task) if (run.folder / HISTORY).exists()]
        if trained:
            plot = training_curves(runs.select(trained[:CURVES]))
            left = f"The first {CURVES} of {len(trained)} runs." if len(trained) > CURVES else ""
            yield Section(title=f"{task}: training", plot=plot, note=left)
