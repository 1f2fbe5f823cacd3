"""What a report shows of runs, part by part: tables, comparisons, published numbers, maps, costs, curves, pictures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backbones.errors import UserError
from transfer.comparison.bootstrap import AP_DRAWS
from transfer.comparison.estimates import Bootstrap
from transfer.records.run_set import RunSet
from transfer.records.store import HISTORY, Run, history
from transfer.report.page.html import RUN_COLUMNS
from transfer.report.page.section import Section
from transfer.report.tables.render import NOTES, comments, csv, markdown, table_of

if TYPE_CHECKING:
    import pandas as pd

CURVES = 12  # runs of a task whose training curves are drawn
STABILITY = ("lr", "warmup_epochs")


@dataclass(frozen=True, kw_only=True)
class ReportRequest:
    """Which parts are asked for besides the tables of scores."""

    each: bool = False
    paper: tuple[str, str] | None = None
    compare: Sequence[tuple[str, str]] = ()
    correction: str = "holm"
    draws: int = 10_000
    margin: float | None = None
    interaction: tuple[str, str] | None = None
    map: tuple[str, str] | None = None
    by: Sequence[str] = ()
    cost: bool = False
    layers: bool = False
    pictures: bool = False
    everything: bool = False
    """Also what was not asked for and can be shown: maps of rates that vary, similarity, curves, galleries."""
    extra: Sequence[Section] = field(default=())

    @property
    def bootstrap(self) -> Bootstrap:
        """How comparisons make intervals and p values; of COCO's scores with no more draws than can be waited for."""
        return Bootstrap(self.draws, min(self.draws, AP_DRAWS), self.correction, margin=self.margin)

    @property
    def special(self) -> bool:
        """Whether a part is asked for by name."""
        return bool(self.paper or self.compare or self.interaction or self.map or self.cost or self.layers)


def sections(runs: Sequence[Run], known: Sequence[Run], wanted: ReportRequest) -> list[Section]:
    """The parts of a report in the order of reading.

    Args:
        runs: what is shown.
        known: all runs at hand, among which the runs are looked for that weights come from.

    Raises:
        UserError: what is asked for cannot be had from these runs.
    """
    found = list(wanted.extra)
    if wanted.paper:
        found.append(_paper(runs, known, wanted.paper, wanted.margin))
    found += _comparisons(runs, known, wanted)
    if wanted.interaction:
        from transfer.report.tables.comparison import interaction

        first, second = wanted.interaction
        table = interaction(RunSet.of(runs, known), first, second, wanted.bootstrap)
        found.append(Section(title=f"Interaction of {first} and {second}", table=table))
    if wanted.map:
        found += _map(runs, known, wanted.map, wanted.by, "Stability map")
    if wanted.everything or not wanted.special:
        found += _tables(runs, known, wanted.each)
    if wanted.cost or wanted.everything:
        found += _asked(wanted.cost, _cost(runs, known), "--cost: none of these runs has a score")
    if wanted.layers or wanted.everything:
        none = "--layers: no run of the task tokens (python -m transfer.run tokens), none pretrained with --tokens-at"
        found += _asked(wanted.layers, _layers(runs, known), none)
    if wanted.everything:
        if not wanted.map:
            found += _varying(runs, known)
        found += [*_similarity(runs), *_curves(runs), *_pictures(runs, wanted.pictures)]
    return found


def _asked(asked: bool, parts: Iterator[Section], otherwise: str) -> list[Section]:
    """The parts. Raises UserError where they were asked for by name and there are none."""
    found = list(parts)
    if asked and not found:
        raise UserError(otherwise)
    return found


def _tables(runs: Sequence[Run], known: Sequence[Run], each: bool) -> Iterator[Section]:
    """Scores, a table per task."""
    from transfer.report.tables.scores import frame, over_datasets, summary

    others = [run.record for run in known]
    for task in dict.fromkeys(run.record.task for run in runs):
        records = [run.record for run in runs if run.record.task == task]
        table = frame(records, others) if each else summary(records, others)
        yield Section(title=task, table=table)
        means = over_datasets(records, others)
        if len(means):
            yield Section(title=f"{task}: mean over data sets", table=means)
    yield from _norms(runs, known)


def _norms(runs: Sequence[Run], known: Sequence[Run]) -> Iterator[Section]:
    """What the first theorem of arXiv 2109.03810 is about, where a stem has it."""
    from transfer.report.tables.tokens import norm_table

    mine = [run.record for run in runs if run.record.details.get("stem")]
    table = norm_table(mine, [run.record for run in known])
    if len(table):
        yield Section(title="tokens: weights, scale and shift of the stem's last activation", table=table)


def _paper(runs: Sequence[Run], known: Sequence[Run], paper: tuple[str, str], margin: float | None) -> Section:
    from transfer.published.rows import table_of
    from transfer.report.published.table import paper_table

    table, notes = paper_table(runs, *paper, known=known, margin=margin)
    return Section(title=f"{paper[0]}, {table_of(*paper).called}", table=table, note="\n".join(notes))


def _comparisons(runs: Sequence[Run], known: Sequence[Run], wanted: ReportRequest) -> Iterator[Section]:
    """Each pair of backbones; p values are adjusted over the table of a pair."""
    if not wanted.compare:
        return
    from transfer.report.tables.comparison import compare

    run_set = RunSet.of(runs, known)
    for a, b in wanted.compare:
        table = compare(run_set, a, b, wanted.bootstrap)
        yield Section(title=f"{a} against {b}", table=table)


def _map(
    runs: Sequence[Run], known: Sequence[Run], axes: tuple[str, str], by: Sequence[str], title: str
) -> Iterator[Section]:
    from transfer.report.figures.stability_map import heat_map
    from transfer.report.tables.stability_map import largest_stable, stability_map

    folders = {run.record.run_id: run.folder for run in runs}
    others = [run.record for run in known]
    rows = stability_map([run.record for run in runs], *axes, by, known=others, folders=folders)
    plot = heat_map(rows)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in rows[axes[0]].tolist())
    broke = bool(rows["breakdown_rate"].any())
    if not (numbers and broke):
        why = "as no training broke down" if numbers else "which is not a number in every run"
        rows.attrs[NOTES].append(f"no largest stable {axes[0]}, {why}")
    yield Section(title=title, table=_filled(rows), figure=plot.svg, data=plot.csv)
    if numbers and broke:
        yield Section(title=f"{title}: largest stable {axes[0]}", table=_filled(largest_stable(rows)))


def _filled(table: "pd.DataFrame") -> "pd.DataFrame":
    """Without the columns that are empty in all rows."""
    return table.drop(
        columns=[name for name in table if all(value in ("", None) or value != value for value in table[name])]
    )


def _varying(runs: Sequence[Run], known: Sequence[Run]) -> Iterator[Section]:
    """Maps of the tasks whose rate was varied, over the warm-up too."""
    for task in dict.fromkeys(run.record.task for run in runs):
        mine = [run for run in runs if run.record.task == task]
        rates, warmups = ({run.record.options.get(name) for run in mine} for name in STABILITY)
        if len(rates - {None}) > 1 and None not in warmups:
            yield from _map(mine, known, STABILITY, (), f"{task}: stability map")


def _cost(runs: Sequence[Run], known: Sequence[Run]) -> Iterator[Section]:
    from transfer.report.figures.cost import cost_plot
    from transfer.report.tables.costs import cost_table

    others = [run.record for run in known]
    for task in dict.fromkeys(run.record.task for run in runs):
        rows = cost_table([run.record for run in runs if run.record.task == task], known=others)
        if rows["score"].notna().any():
            plot = cost_plot(rows)
            yield Section(title=f"{task}: score against cost", table=rows, figure=plot.svg, data=plot.csv)


def _layers(runs: Sequence[Run], known: Sequence[Run]) -> Iterator[Section]:
    """Of task tokens, and of trainings that were looked at."""
    from transfer.report.tables.tokens import layer_table, norm_table

    others = [run.record for run in known]
    mine = [run.record for run in runs if run.record.details.get("layers")]
    if mine:
        yield Section(title="tokens: by layer", table=layer_table(mine, others))
    watched = [run for run in runs if run.record.details.get("tokens_at")]
    looks = {run.record.run_id: history(run.folder, "layers") for run in watched}
    if any(looks.values()):
        from transfer.report.figures.training_curves import similarity_by_epoch

        records = [run.record for run in watched]
        plot = similarity_by_epoch(watched, looks)
        table = layer_table(records, others, looks)
        yield Section(title="Tokens while training: by layer", table=table, figure=plot.svg, data=plot.csv)
        norms = norm_table(records, others, looks)
        if len(norms):
            title = "Tokens while training: weights, scale and shift of the stem's last activation"
            yield Section(title=title, table=norms)


def _similarity(runs: Sequence[Run]) -> Iterator[Section]:
    from transfer.report.figures.training_curves import similarity_plot

    mine = [run for run in runs if run.record.details.get("layers")]
    if mine:
        plot = similarity_plot(mine)
        yield Section(title="Token similarity by layer", figure=plot.svg, data=plot.csv)


def _curves(runs: Sequence[Run]) -> Iterator[Section]:
    from transfer.report.figures.training_curves import histories

    for task in dict.fromkeys(run.record.task for run in runs):
        mine = [run for run in runs if run.record.task == task and (run.folder / HISTORY).exists()]
        if mine:
            plot = histories(mine[:CURVES])
            left = f"The first {CURVES} of {len(mine)} runs." if len(mine) > CURVES else ""
            yield Section(title=f"{task}: training", figure=plot.svg, data=plot.csv, note=left)


def _pictures(runs: Sequence[Run], pictures: bool) -> list[Section]:
    from transfer.report.page.galleries import picture_sections

    return picture_sections(runs, pictures=pictures)


def as_markdown(parts: Sequence[Section], *, ids: bool = False) -> str:
    """The tables of a report, titled, for a terminal or a paper; `ids` are the names of their runs."""
    return "\n\n".join(_text(part, ids) for part in parts if part.table is not None or part.figure is None)


def _text(part: Section, ids: bool) -> str:
    pieces, table = [f"## {part.title}"], part.table
    if table is not None:
        pieces.append(markdown(table_of(table).without(*(() if ids else RUN_COLUMNS))))
    return "\n\n".join([*pieces, *filter(str.strip, part.note.splitlines())])


def as_csv(parts: Sequence[Section]) -> str:
    """The tables of a report as comma-separated values, with a blank line between them.

    Lines of title and notes begin with #: pandas reads one table with `comment="#"`.
    """
    return "\n\n".join(
        "\n".join([*comments(part.table, part.title, part.note), csv(part.table)])
        for part in parts
        if part.table is not None
    )
