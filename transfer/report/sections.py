"""The sections of a report: summary, scores, comparisons, costs, maps, published results, curves, visualizations."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from transfer.comparison.compare_arms import Comparison
from transfer.core.errors import UsageError, UserError
from transfer.engine.checkpoint import HISTORY, history
from transfer.experiments.published_rows import table_of
from transfer.measure.ratios import CostRatios
from transfer.records.run_set import StoredRuns
from transfer.report.figures.plots import cost_plot, forest_plot, heat_map, similarity_plot, training_curves
from transfer.report.galleries import picture_sections, sample_sections
from transfer.report.options import EverythingOptions, ScoresOptions
from transfer.report.page.html import Section
from transfer.report.published.table import paper_table
from transfer.report.summary.sentences import answer, arms_to_compare, map_sentence, versus, why_no_arms
from transfer.report.tables.columns import protocol_tables
from transfer.report.tables.comparison import compare_corners, compare_variants, comparison_table, in_brief
from transfer.report.tables.costs import cost_table
from transfer.report.tables.pivot import names_of_runs, pivot_tables
from transfer.report.tables.scores import class_table, each_run, layer_table, norm_table, over_datasets, summary
from transfer.report.tables.stability_map import AXES, largest_stable, stability_map
from transfer.report.tables.table import is_missing
from transfer.report.tables.text import note_texts

CURVES = 12  # largest number of runs of a task whose training curves are drawn
PAIRS = 5  # largest number of pairs of variants that a page compares by itself
NO_COSTS = "report cost: none of these runs has a score"
NO_CLASSES = "--per-class: no run has this score by class; those of detect have box_AP, those of segment mIoU"
NO_LAYERS = "--layers: no run of the task tokens (python -m transfer.run tokens), none pretrained with --tokens-at"
READING = {
    "cost": "Further left is cheaper. Bars are ± one standard deviation over seeds. "
    "Ringed points are Pareto-optimal among comparable runs.",
    "map": "Each cell is one training setting: its color and hatch give the status of its runs, its number their mean "
    "score. 'At chance' means a score no better than chance level.",
    "forest": "Each square is the paired difference of two variants on the same samples, its line the 95 % confidence "
    "interval. A filled square is significant after correction for the tests of its comparison; a line across 0 is "
    "inconclusive.",
}
"""How to read the sections of a page."""
IN_FULL = "Means, p values, other metrics and the numbers of seeds and clusters: --format markdown or csv."
NORMS_TITLE = "weights, scale and shift of the stem's last activation"
"""Title of the norms of the first theorem of arXiv 2109.03810."""


@dataclass(kw_only=True)
class ReportRequest(ScoresOptions, EverythingOptions):
    """Sections to show besides the tables of scores: the options of `report`, whichever command has them.

    Attributes:
        compare: variants to compare, two by two.
        pictures: whether the pictures of the runs are shown.
        brief: for a terminal: of comparisons the verdicts with their intervals alone.
        everything: also show sections that were not asked for: maps over varied rates, token similarity, curves,
            galleries.
        ratios: measured costs of the variants that are compared, one beside the other.
    """

    pictures: bool = False
    brief: bool = False
    everything: bool = False
    ratios: CostRatios = field(default_factory=CostRatios)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The two variants of each comparison."""
        return list(zip(self.compare[::2], self.compare[1::2], strict=True))

    @property
    def names_sections(self) -> bool:
        """Whether sections are asked for by name."""
        flags = self.pivot or self.per_class or self.cost or self.layers
        return bool(flags or self.paper or self.compare or self.interaction or self.heatmap)


def sections(runs: StoredRuns, request: ReportRequest) -> list[Section]:
    """Return the sections of a report in the order in which they are shown.

    Raises:
        UserError: a section was asked for that cannot be made from the runs.
    """
    report = _Report(runs, request, request.published, names_of_runs(runs))
    return report.page() if request.everything else report.asked()


def _asked(asked: bool, parts: Iterator[Section], otherwise: str) -> list[Section]:
    """Return the sections. Raises UserError if they were asked for by name and there are none."""
    listed = list(parts)
    if asked and not listed:
        raise UserError(otherwise)
    return listed


@dataclass(frozen=True)
class _Report:
    """The runs of a report, what was asked for, the paper and its table, and the variant of each run by its id."""

    runs: StoredRuns
    request: ReportRequest
    published: tuple[str, str] | None
    names: Mapping[str, str]

    def asked(self) -> list[Section]:
        """Return what was asked for by name, or else the tables of scores."""
        request = self.request
        parts = [*self.pivot()] if request.pivot else []
        parts += _asked(True, self.classes(), NO_CLASSES) if request.per_class else []
        parts += [*self.paper()]
        for a, b in request.pairs:
            comparison = compare_variants(self.runs, a, b, request.margin)
            note = "\n".join(answer(comparison, self.runs, request.ratios))
            parts.append(Section(title=f"Summary: {versus(comparison, self.runs)}", note=note, lead=True))
            parts += self.differences(comparison)
        parts += [*self.interaction(), *self.asked_maps()]
        if not request.names_sections:
            parts += self.tables()
        parts += _asked(True, self.cost(), NO_COSTS) if request.cost and not request.pivot else []
        parts += _asked(True, self.layers(), NO_LAYERS) if request.layers else []
        return parts

    def page(self) -> list[Section]:
        """Return a page's sections in the order of a reader's questions; what is looked up is folded.

        The summary with costs, the scores, the comparisons, stability, published results; then everything else.
        """
        request = self.request
        comparisons = [compare_variants(self.runs, a, b, request.margin) for a, b in request.pairs]
        unasked = [] if request.compare else arms_to_compare(self.runs)
        for a, b in unasked[:PAIRS]:
            with suppress(UserError):  # nobody asked for this one
                comparisons.append(compare_variants(self.runs, a, b, request.margin))
        costs = _asked(request.cost, self.cost(), NO_COSTS)
        first = [*self.comparisons(comparisons)] if comparisons else []
        head = first[0] if first else Section(title="Summary", note=why_no_arms(self.runs), lead=True)
        if len(unasked) > PAIRS:
            more = f"The first {PAIRS} of {len(unasked)} pairs of variants; --compare shows any other."
            head = replace(head, note=f"{head.note}\n\n{more}")
        shown = [head, *self.pivot(), *first[1:], *(replace(part, table=None) for part in costs if part.plot)]
        shown += [*(self.asked_maps() or self.varying()), *self.paper(), *self.interaction()]
        rest = list[Section]()
        for comparison in comparisons:
            rest += self.differences(comparison) if comparison.rows or request.compare else ()
        for comparison in comparisons:
            rest += sample_sections(comparison, self.runs)
        rest += self.tables()
        rest += [replace(part, title=f"{part.title}, table", plot=None, reading="") for part in costs]
        rest += [*_asked(request.layers, self.layers(), NO_LAYERS), *self.similarity(), *self.curves()]
        rest += picture_sections(self.runs.runs, pictures=request.pictures)
        parts = [*shown, *(replace(part, folded=True) for part in rest)]
        first_titles = {part.reading: part.title for part in reversed(parts)}  # how to read them is said once
        return [part if first_titles[part.reading] == part.title else replace(part, reading="") for part in parts]

    def comparisons(self, comparisons: Sequence[Comparison]) -> Iterator[Section]:
        """Yield the summary of all comparisons with their cost and limits, then the effects of each as a plot."""
        answers = [answer(comparison, self.runs, self.request.ratios) for comparison in comparisons]
        common = [line for line in answers[0] if len(answers) > 1 and all(line in lines for lines in answers)]
        blocks = ["\n".join(line for line in lines if line not in common) for lines in answers]
        blocks += ["\n".join(["In all comparisons:", *common])] if common else []
        yield Section(title="Summary", note="\n\n".join(blocks), lead=True)
        for comparison in comparisons:
            if plot := forest_plot(comparison, self.runs, self.names):
                yield Section(title=versus(comparison, self.runs), plot=plot, reading=READING["forest"])

    def differences(self, comparison: Comparison) -> Iterator[Section]:
        """Yield all differences; in brief those in primary scores.

        Raises:
            UserError: there are none.
        """
        name, table = versus(comparison, self.runs), comparison_table(comparison, self.runs)
        if self.request.brief:
            yield Section(title=name, table=in_brief(comparison, table), note=IN_FULL)
        else:
            yield Section(title=f"{name}: all metrics", table=table.without_empty())

    def tables(self) -> Iterator[Section]:
        """Yield a table of scores for each task."""
        for task in self.runs.tasks:
            runs = self.runs.of_task(task)
            table = each_run(runs) if self.request.per_run else summary(runs)
            for title, rows in ((task, table), (f"{task}: mean over datasets", over_datasets(runs))):
                for protocol, part in protocol_tables(rows).items():
                    yield Section(title=f"{title}, {protocol}" if protocol else title, table=part)
        norms = norm_table(self.runs.where(lambda record: record.details.get("stem")))
        if len(norms):
            yield Section(title=f"tokens: {NORMS_TITLE}", table=norms)

    def pivot(self) -> Iterator[Section]:
        cost = self.request.pivot and self.request.cost
        for number, table in enumerate(pivot_tables(self.runs, self.request.scores, cost=cost), 1):
            yield Section(title=f"Scores by variant ({number})" if number > 1 else "Scores by variant", table=table)

    def classes(self) -> Iterator[Section]:
        for task in self.runs.tasks:
            if len(table := class_table(self.runs.of_task(task), self.request.scores)):
                yield Section(title=f"{task}: by class", table=table)

    def paper(self) -> Iterator[Section]:
        if paper := self.published:
            table = paper_table(self.runs, *paper, margin=self.request.margin)
            note = "\n".join(note_texts(table.notes))  # paragraphs: they say what the table is, as its cells do not
            yield Section(title=f"{paper[0]}, {table_of(*paper).called}", table=replace(table, notes=[]), note=note)

    def interaction(self) -> Iterator[Section]:
        if fields := self.request.interaction:
            comparison = compare_corners(self.runs, *fields, self.request.margin)
            table = comparison_table(comparison, self.runs).without_empty()
            table = in_brief(comparison, table) if self.request.brief else table
            yield Section(title=f"Interaction of {' and '.join(fields)}", table=table)

    def asked_maps(self) -> list[Section]:
        """Return the map of each task that has both axes asked for. Raises UsageError if none has."""
        maps: list[Section] = []
        if axes := self.request.heatmap:
            for task in self.runs.tasks if len(self.runs.tasks) > 1 else ():
                with suppress(UsageError):
                    maps += self.stability(self.runs.of_task(task), axes, f"{task}: stability map")
            maps = maps or [*self.stability(self.runs, axes, "Stability map")]
        return maps

    def varying(self) -> Iterator[Section]:
        """Yield stability maps over rate and warm-up of the tasks with several rates."""
        for task in self.runs.tasks:
            runs = self.runs.of_task(task)
            rates, warmups = ({record.options.get(name) for record in runs.records} for name in AXES)
            if len(rates - {None}) > 1 and None not in warmups:
                yield from self.stability(runs, AXES, f"{task}: stability map")

    def stability(self, runs: StoredRuns, axes: tuple[str, str], title: str) -> Iterator[Section]:
        rows = stability_map(runs, *axes, self.request.by if self.request.heatmap else ())
        plot, sentence = heat_map(rows), map_sentence(rows)
        yield Section(title=title, table=rows.without_empty(), plot=plot, note=sentence, reading=READING["map"])
        if sentence:
            yield Section(title=f"{title}: largest stable {axes[0]}", table=largest_stable(rows).without_empty())

    def cost(self) -> Iterator[Section]:
        for task in self.runs.tasks:
            rows = cost_table(self.runs.of_task(task))
            if not all(map(is_missing, rows["score"])):
                plot = cost_plot(rows, self.names)
                yield Section(title=f"{task}: score vs. cost", table=rows, plot=plot, reading=READING["cost"])

    def layers(self) -> Iterator[Section]:
        """Yield tables by layer of the task tokens and of trainings with `--tokens-at`."""
        with_layers = self.runs.where(lambda record: record.details.get("layers"))
        if len(with_layers):
            yield Section(title="tokens: by layer", table=layer_table(with_layers))
        diagnosed = self.runs.where(lambda record: record.details.get("tokens_at"))
        histories = {run.record.run_id: history(run.folder, "layers") for run in diagnosed}
        if any(histories.values()):
            yield Section(title="Tokens while training: by layer", table=layer_table(diagnosed, histories))
            if len(norms := norm_table(diagnosed, histories)):
                yield Section(title=f"Tokens while training: {NORMS_TITLE}", table=norms)

    def similarity(self) -> Iterator[Section]:
        with_layers = self.runs.where(lambda record: record.details.get("layers"))
        if len(with_layers):
            yield Section(title="Token similarity by layer", plot=similarity_plot(layer_table(with_layers), self.names))

    def curves(self) -> Iterator[Section]:
        for task in self.runs.tasks:
            trained = [run for run in self.runs.of_task(task) if (run.folder / HISTORY).exists()]
            if trained:
                plot = training_curves(self.runs.select(trained[:CURVES]), self.names)
                left = f"The first {CURVES} of {len(trained)} runs." if len(trained) > CURVES else ""
                yield Section(title=f"{task}: training", plot=plot, note=left)
