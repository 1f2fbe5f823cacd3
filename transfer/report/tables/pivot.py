"""The table of a paper: variants as rows, tasks as columns, means with their 95 % intervals. Imports no torch."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from transfer.comparison.compare_arms import PERCENT
from transfer.core.errors import UsageError, did_you_mean
from transfer.measure.ratios import recorded_image_size
from transfer.records.fields import NAMED_BY_VALUE, differing, fewest, is_baseline, parts_label, values_label
from transfer.records.grouping import NO_PRETRAINING, Group, differing_parts, origin_label
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.report.tables.columns import chance_level, interval, significant, unjudged_note
from transfer.report.tables.costs import mean_costs
from transfer.report.tables.scores import image_notes
from transfer.report.tables.table import Column, MeanInterval, Note, Row, Table, comparability_text
from transfer.statistics.intervals import mean_and_deviation

MOST_COLUMNS = 3
"""Columns of scores in one table, which 100 characters and one column of a paper hold; costs take the place of one."""
VARIANT = "variant"
UNSHOWN = ("load", "weights_key", "weights_size")
"""Fields of a backbone that say how its weights were loaded, not what was built."""
LEGEND = {
    "*": "one seed: the interval reflects test samples, not training runs",
    "!": "failed training runs excluded",
    "?": "no interval: per-sample results are missing, or do not add up to the score",
    "failed": "all training runs failed",
    "no weights": "after all pretraining runs failed, so the task was not run",
    "-": "no run, or the score was not computed",
}
"""What the marks of cells mean."""


@dataclass
class _Column:
    """Heading, score, protocol (where a variant has several) and the configuration of each variant."""

    heading: str
    score: str
    protocol: str
    groups: dict[str, Group] = field(default_factory=dict)


def pivot_tables(runs: StoredRuns, scores: Sequence[str] = (), *, cost: bool = False) -> list[Table]:
    """Return the means of variants over seeds with their 95 % intervals, a row for each variant, the baseline first.

    A column is a score of a task on a dataset, in percent if it is a fraction; where a variant has several protocols,
    that of most variants is in the first tables, each other one in tables of its own. Pretraining runs are shown only
    if there are no others; a variant whose pretraining runs all failed has a row that says so.

    Args:
        runs: the runs.
        scores: names of scores; by default the primary one of each task.
        cost: whether the tables have columns of costs, see `_with_costs`.

    Raises:
        UsageError: no run has one of the scores.
    """
    known = list(dict.fromkeys(chain.from_iterable(record.scores for record in runs.records)))
    for name in scores:
        if name not in known:
            raise UsageError(f"--scores must be among {', '.join(known)}, got '{name}'{did_you_mean(name, known)}")
    after = runs.where(lambda record: not record.task.startswith("pretrain-"))
    before = runs.select(run for run in runs if run not in after.runs).groups if len(after) else []
    runs = after if len(after) else runs
    groups = sorted(runs.groups, key=lambda group: (runs.tasks.index(group.first.task), group.dataset))
    lost = [group for group in before if all(record.training_failed for record in group.records)]
    short = variant_names([*groups, *(before if lost else [])])
    names, before_names = short[: len(groups)], zip(short[len(groups) :], before)
    lost_names = [(name, group) for name, group in before_names if group in lost]
    failed = {_with_setting(name, group) if name in names else name: group for name, group in lost_names}
    pretrained = [f"{name}, {group.pretraining}" for name, group in zip(names, groups)]
    origins = {group.pretraining for group in groups}
    if len({*pretrained}) > len({*names}) or (NO_PRETRAINING in origins and len(origins) > 1):
        names = pretrained
    parents = {run.run_id for record in runs.records for run in runs.evidence.lineage(record)[:1]}
    used = [group for group in before if parents.intersection(record.run_id for record in group.records)]
    common = dict.fromkeys([*origins, *(comparability_text(group.protocol) for group in used if group.protocol)])
    of_variant = dict(zip(names[::-1], groups[::-1])) | failed  # the first of each variant
    order = sorted(of_variant, key=lambda name: (not is_baseline(of_variant[name].first), name))
    tables = []
    for protocol, columns in _parts(_columns(groups, names, scores), MOST_COLUMNS - cost):
        having = set(chain.from_iterable(column.groups for column in columns)) if protocol else {*order}
        tables.append(_table(runs, [name for name in order if name in having], columns, failed))
        text = f"pretraining of rows with scores: {', '.join(common)}"
        tables[-1].notes += [Note(text)] if len(origins) == 1 and all(common) else []
    return [_with_costs(table, runs, of_variant) for table in tables] if cost else tables


def variant_names(groups: Sequence[Group]) -> list[str]:
    """Return a short name for the variant of each configuration: "patchify + softmax", "LapStem + relu", "depth 4".

    All have the same fields: those that differ between variants, without one that varies only together with others.
    """
    if not groups:
        return []
    parts = [part | {"name": group.name} for part, group in zip(differing_parts(groups, UNSHOWN), groups, strict=True)]
    used = sorted(parts[0], key=lambda name: [*NAMED_BY_VALUE, name].index(name))
    used = fewest(parts, used, reversed(used))
    labels = (parts_label({name: part.get(name) for name in used}, " + ") for part in parts)
    return [label or group.name for label, group in zip(labels, groups, strict=True)]


def _with_setting(name: str, group: Group) -> str:
    """Return the name of a variant with a pretraining of it: its method, its dataset, and what differs from others."""
    setting = comparability_text(group.protocol) if group.protocol else ""
    return ", ".join(filter(None, (name, origin_label(group.records, group.records[:1]), setting)))


def names_of_runs(runs: StoredRuns) -> dict[str, str]:
    """Return the short name of the variant of each run, by its id."""
    variants = zip(variant_names(runs.groups), runs.groups, strict=True)
    return {record.run_id: name for name, group in variants for record in group.records}


def _columns(groups: Sequence[Group], names: Sequence[str], scores: Sequence[str]) -> list[_Column]:
    """Return the columns in order of tasks and datasets; one for each protocol where a variant has several."""
    cells: dict[tuple[str, str, str], list[tuple[str, Group]]] = {}
    # a failed run names no scores
    known = defaultdict[str, set[str]](set)
    for record in chain.from_iterable(group.records for group in groups):
        known[record.task] |= record.scores.keys()
    for name, group in zip(names, groups):
        task_scores = [score for score in scores if score in known[group.first.task]]
        for score in task_scores if scores else [_primary(group)]:
            cells.setdefault((group.first.task, group.dataset, score), []).append((name, group))
    short = [(task, score, "on", dataset.partition(" (")[0]) for task, dataset, score in cells]
    columns: dict[tuple[str, str], _Column] = {}
    for (task, dataset, score), words, variants in zip(cells, short, cells.values(), strict=True):
        heading = " ".join(words if short.count(words) == 1 else (task, score, "on", dataset))
        several = len({name for name, _ in variants}) < len(variants)
        for name, group in variants:
            protocol = comparability_text(group.protocol) if several and group.protocol else ""
            columns.setdefault((heading, protocol), _Column(heading, score, protocol)).groups[name] = group
    return list(columns.values())


def _parts(columns: Sequence[_Column], most: int) -> Iterator[tuple[str, list[_Column]]]:
    """Yield the columns of each table, first those of the protocol that most variants have, under an empty name."""
    of_protocol: dict[str, list[_Column]] = {"": []}
    for column in columns:
        namesakes = (other for other in columns if other.heading == column.heading)
        usual = max(namesakes, key=lambda other: len(other.groups))
        of_protocol.setdefault("" if column is usual else column.protocol, []).append(column)
    for protocol, part in of_protocol.items():
        yield from ((protocol, part[start : start + most]) for start in range(0, len(part), most))


def _primary(group: Group) -> str:
    """Return the primary score; where no run computed it, the one of theirs with most shots."""
    names = list(chain.from_iterable(record.scores for record in group.records))
    if not names or group.first.primary in names:
        return group.first.primary
    return max(names, key=lambda name: [*map(int, re.findall(r"\d+", name))])


def _table(runs: StoredRuns, names: Sequence[str], columns: Sequence[_Column], failed: Collection[str]) -> Table:
    notes, records = list[Note](), list[Record]()
    cells: dict[str, dict[str, MeanInterval]] = {}
    for column in columns:
        cells[column.heading] = {name: _cell(runs, group, column.score) for name, group in column.groups.items()}
        notes += _notes(column)
        levels = {chance_level(group.first, column.score) for group in column.groups.values()}
        notes += [Note(f"chance level {level}", column.heading) for level in levels if level]
        records += chain.from_iterable(group.records for group in column.groups.values())
    notes += [replace(note, rows=()) for note in image_notes([records])]
    rows, marks = list[Row](), set[str]()
    for name in names:
        no_run = MeanInterval(mark="no weights" if name in failed else "-")
        row = {heading: of_column.get(name, no_run) for heading, of_column in cells.items()}
        marks |= {cell.mark for cell in row.values()}
        rows.append({VARIANT: name, **row})
    legend = [f"{mark} {text}" for mark, text in LEGEND.items() if mark in " ".join(marks)]
    notes.insert(0, Note("; ".join(["mean over seeds with its 95 % interval", *legend])))
    return Table.from_rows(rows, [Column(heading, detail=-1) for heading in cells], notes)


def _with_costs(table: Table, runs: StoredRuns, of_variant: Mapping[str, Group]) -> Table:
    """Return a table of variants with their costs before the scores, and a note that says which runs cost that.

    They are those of the last training of a variant's weights, which all its tasks share whatever their image sizes; of
    a variant without a known training those of its runs of the first task. Columns: `params (M)`; `GFLOPs`, of a
    forward pass of one image, two per multiply-add; `GPU hours` or `core hours` of that training and all before it.
    """
    costs, sources = list[Row](), dict[str, None]()
    for row in table.rows:
        group = of_variant[row[VARIANT]]
        lineages = filter(None, map(runs.evidence.lineage, group.records))
        before = [last for last, *_ in lineages]
        records = list({record.run_id: record for record in before or group.records}.values())
        means = mean_costs(records, runs.evidence)
        costs.append({VARIANT: row[VARIANT], "params (M)": means["params_million"], "GFLOPs": means["gflops"]})
        costs[-1][f"{means['hours_of']} hours"] = means["total_hours"]
        for record in records:
            sources[f"{record.task} at {'x'.join(map(str, recorded_image_size(record)))} px"] = None
    note = Note(f"costs are those of {', '.join(sources)}; two FLOPs per multiply-add")
    names = dict.fromkeys(chain.from_iterable(costs))
    rows = [{**dict.fromkeys(names), **cost, **row} for cost, row in zip(costs, table.rows, strict=True)]
    return Table.from_rows(rows, [*significant(names), *table.columns], [*table.notes, note])


def _cell(runs: StoredRuns, group: Group, score: str) -> MeanInterval:
    """Return the mean of a score over the seeds of a configuration, with its interval where samples have results."""
    variant = runs.evidence.variant(group.records)
    if not (values := variant.values(score)):
        return MeanInterval(mark="failed" if all(record.training_failed for record in group.records) else "-")
    low, high = interval(runs, group.records, score)
    facts = {"*": len(values) == 1, "!": variant.absent, "?": low is None}
    mark = "".join(mark for mark, holds in facts.items() if holds)
    percent = next(record.scale(score) for record in group.records if score in record.scores) == PERCENT
    return MeanInterval(mean_and_deviation(values)[0], low, high, mark, ".1f" if percent else ".3g")


def _notes(column: _Column) -> list[Note]:
    """Return the notes on a column: marks of its runs, which are not checked for failure, how protocols differ."""
    groups = list(column.groups.values())
    marks = dict.fromkeys(group.dataset.partition(" (")[2].removesuffix(")") for group in groups)
    machines = " or ".join(dict.fromkeys(group.machines for group in groups if group.machines))
    unjudged = [note.text for note in unjudged_note([*chain.from_iterable(group.records for group in groups)])]
    protocol = f"{column.protocol}; other protocols have tables of their own" if column.protocol else ""
    notes = [Note(text, column.heading) for text in (protocol, *marks, machines, *unjudged) if text]
    if fields := differing(dict(group.protocol.fields) for group in groups if group.protocol):
        text = f"variants differ in {values_label(fields)}; compare only variants with equal values"
        notes.append(Note(text, column.heading))
    return notes
