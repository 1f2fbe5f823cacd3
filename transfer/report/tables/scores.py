"""Records as tables. Scores are printed in percent. pandas is imported where a table is made, as it takes long."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transfer.records.evidence import Arm, Evidence, is_seeded
from transfer.records.grouping import Group, dataset_label, grouped, marks
from transfer.records.protocol import OF_DATA, backbone_of, by_export, digest_of, pretraining, protocol
from transfer.records.store import Record
from transfer.report.tables.render import NOTES, RUN, markdown
from transfer.statistics.intervals import breakdown_rate, mean_and_deviation

if TYPE_CHECKING:
    import pandas as pd

AT_CHANCE = "with breakdowns"
"""Ends the name of the column in which trainings that broke down count as guessing."""


def frame(records: Sequence[Record], known: Sequence[Record] | None = None) -> "pd.DataFrame":
    """One row per record: what it is, how it ended, its scores in percent, what it cost.

    Backbone, pretraining and protocol are said as in `summary`, with its notes; the last two only where rows differ in
    them. `known` as in `summary`.
    """
    import pandas as pd

    exports = by_export(records if known is None else known)
    groups, notes = grouped(records, known)
    labels = {id(record): group for group in groups for record in group.records}
    scores = dict.fromkeys(name for record in records for name in _scores(record))
    rows: list[dict[str, Any]] = []
    for record in records:
        group, own = labels[id(record)], _scores(record)
        rows.append(
            {
                "task": record.task,
                "dataset": dataset_label([record], exports),
                "backbone": group.backbone,
                "pretraining": group.pretraining,
                "protocol": group.protocol,
                "seed": record.seed,
                "outcome": record.outcome["status"],
                **{name: own.get(name) for name in scores},
                "train_seconds": record.cost.get("train_seconds"),
                RUN: record.run_id,
            }
        )
    table = without_unsaid(pd.DataFrame(rows))
    table.attrs[NOTES] = [f"protocol {note}" for note in notes]
    return table


def _scores(record: Record) -> dict[str, float]:
    """In percent, each with the standard error over its draws, where it has several."""
    found: dict[str, float] = {}
    for name in record.scores:
        found[name] = record.shown(name)
        error = _standard_error(record, name)
        if error is not None:
            found[f"{name} se"] = record.scale(name) * error
    return found


def _standard_error(record: Record, name: str) -> float | None:
    details = record.details.get(name)
    return details.get("standard_error") if isinstance(details, dict) else None


def run_table(records: Sequence[Record]) -> str:
    """The table that `transfer.run` prints: a row per record, of the standard errors that of the primary score alone.

    Below it means over seeds and over data sets, where there are several.
    """
    rows = frame(records).drop(columns="train_seconds")
    kept = {f"{record.primary} se" for record in records}
    tables = [rows.drop(columns=[name for name in map(str, rows) if name.endswith(" se") and name not in kept])]
    if len({record.seed for record in records}) > 1 and any(map(is_seeded, records)):
        tables.append(summary(records).drop(columns=RUN))
    tables.append(over_datasets(records).drop(columns=RUN, errors="ignore"))
    return "\n\n".join(markdown(table) for table in tables if len(table))


def summary(records: Sequence[Record], known: Sequence[Record] | None = None) -> "pd.DataFrame":
    """One row per configuration (backbone, pretraining, protocol): mean and standard deviation over its seeds.

    What counts as one seed is said by `transfer.records.evidence.Evidence.arm`; fine-tunings of one pretraining are
    averaged where there are several pretrainings. A run that broke down has no score: `outcomes` counts each way of
    ending, and that of trainings that the row's weights would have come from; `broke down` gives the rate of seeds
    without a score with its 95 % Wilson interval, and the score's mean with these at chance stands beside that of the
    survivors. Rows of a task with unlike protocols have letters, which `attrs["notes"]` explains.

    `run` has the ids of its runs.

    Args:
        known: all records at hand, among which the runs are looked for that weights come from; by default `records`.
    """
    import pandas as pd

    groups, notes = grouped(records, known)
    evidence = Evidence.of(records, known)
    arms = [evidence.arm(group.records) for group in groups]
    scores = list(dict.fromkeys(name for record in records for name in record.scores))
    rates = any(len(arm.units) > 1 for arm in arms) and any(arm.absent for arm in arms)
    lines = [_line(group, arm, scores, rates) for group, arm in zip(groups, arms, strict=True)]
    table = without_unsaid(pd.DataFrame(lines))
    table.attrs[NOTES] = [f"protocol {note}" for note in notes] + _notes_on_units(groups, arms, rates)
    return table


def _notes_on_units(groups: Sequence[Group], arms: Sequence[Arm], rates: bool) -> list[str]:
    notes = []
    for group, arm in zip(groups, arms, strict=True):
        where = f"{group.first.task} on {group.dataset}, {group.backbone}"
        scored = sum(map(len, arm.units.values()))
        if scored > len(arm.units) - arm.broken:
            notes.append(f"{where}: {scored} runs count as {len(arm.units) - arm.broken}: {_why(arm)}")
    if rates:
        notes.append(f"{AT_CHANCE}: with trainings that broke down at chance, or at 0 where chance is not known")
    return notes


def _why(arm: Arm) -> str:
    if all(kind == "weights" for kind, _ in arm.labels) and len(arm.units) == 1:
        return "seeds change nothing here"
    return "those that start from one pretraining are averaged"


def without_unsaid(table: "pd.DataFrame") -> "pd.DataFrame":
    """Without pretraining and protocol where no row says any, and without deviations where no row has several seeds."""
    unsaid = [name for name in ("pretraining", "protocol") if name in table and not table[name].any()]
    ends = (" sd", f" {AT_CHANCE}")
    unsaid += [name for name in map(str, table) if name.endswith(ends) and table[name].isna().all()]
    return table.drop(columns=unsaid)


def _line(group: Group, arm: Arm, scores: Sequence[str], rates: bool) -> dict[str, Any]:
    counts = Counter(record.outcome["status"] for record in group.records)
    before = Counter(record.outcome["status"] for record in arm.lost)
    line: dict[str, Any] = {
        "task": group.first.task,
        "dataset": group.dataset,
        "backbone": group.backbone,
        "pretraining": group.pretraining,
        "protocol": group.protocol,
        "seeds": len(arm.units),
        "outcomes": ", ".join(
            [f"{count} {status}" for status, count in counts.most_common()]
            + [f"{count} {status} in pretraining" for status, count in before.most_common()]
        ),
    }
    if rates:
        line["broke down"] = breakdown_rate(*arm.breakdowns)
        counted = arm.with_breakdowns(group.first.primary)
        line[f"{group.first.primary} {AT_CHANCE}"] = mean_and_deviation(counted)[0]
    for name in scores:
        line[name], line[f"{name} sd"] = mean_and_deviation(arm.values(name))
        errors = [error for record in group.records if (error := _standard_error(record, name)) is not None]
        if len(errors) == 1:
            line[f"{name} se"] = group.first.scale(name) * errors[0]
    return line | {RUN: " ".join(record.run_id for record in group.records)}


def over_datasets(records: Sequence[Record], known: Sequence[Record] | None = None) -> "pd.DataFrame":
    """The unweighted mean over data sets of what differs in nothing else, where the scores are meant to be averaged.

    One row per backbone, seed and set of options; of seeds that change nothing the first. The mean is over the data
    sets that all rows of its protocol have, which `attrs["notes"]` names with those that are left out. Of several
    records of a data set (it was stored in another form, or mended) the latest counts. Where a data set's run broke
    down there is no mean, and `data sets` says how many did. The standard error is that of the mean, the data sets'
    own being independent. `known` is that of `summary`.
    """
    import pandas as pd

    groups: dict[tuple[str, str], dict[str, Record]] = {}
    for record in sorted(records, key=lambda record: (str(record.environment.get("started") or ""), -record.seed)):
        if any(metric.get("averaged") for metric in record.metrics.values()):
            groups.setdefault(_all_but_dataset(record), {})[record.dataset["name"]] = record
    several = {key: of_name for key, of_name in groups.items() if len(of_name) > 1}
    common = _common(several)
    evidence = Evidence.of(records, known)
    firsts = [next(iter(of_name.values())) for of_name in several.values()]
    labels, notes = grouped(firsts, records if known is None else known)
    named = {id(record): group for group in labels for record in group.records}
    alone = [name for (key, _), of_name in groups.items() if len(of_name) == 1 and key in common for name in of_name]
    lines, left_out = [], [f"not in the means, since a row has it alone: {name}" for name in alone]
    for (protocol_of, _), of_name, first in zip(several, several.values(), firsts, strict=True):
        names = common[protocol_of]
        lines.append(_mean_line([of_name[name] for name in names], first, named[id(first)], evidence))
        lines[-1]["data sets"] += f": {', '.join(names)}" if len({*map(tuple, common.values())}) > 1 else ""
        more = [name for name in of_name if name not in names]
        left_out += [f"not in the means, since other rows lack it: {name}" for name in more]
    table = without_unsaid(pd.DataFrame(lines).dropna(axis="columns", how="all"))
    if "pretraining seed" in table and table["pretraining seed"].nunique() == 1:
        table = table.drop(columns="pretraining seed")
    said = [f"means are over {', '.join(names)}" for names in {*map(tuple, common.values())} if names]
    table.attrs[NOTES] = [f"protocol {note}" for note in notes] + (said if len(said) == 1 else [])
    table.attrs[NOTES] += dict.fromkeys(left_out)
    return table


def _common(groups: Mapping[tuple[str, str], Mapping[str, Record]]) -> dict[str, list[str]]:
    """For each protocol the data sets that all of its rows have, in order of name."""
    found: dict[str, set[str]] = {}
    for (protocol_of, _), of_name in groups.items():
        found[protocol_of] = found.get(protocol_of, {*of_name}) & {*of_name}
    return {key: sorted(names) for key, names in found.items()}


def _mean_line(group: Sequence[Record], first: Record, labels: Group, evidence: Evidence) -> dict[str, Any]:
    """Args: group: the records of the data sets in common. first: any of the row's, which these need not be among."""
    broken, lost = sum(record.training_failed for record in group), len(evidence.lost(group))
    parent, marked = pretraining(first, evidence.exports), ", ".join(marks(group, evidence.exports))
    line: dict[str, Any] = {"task": first.task, "backbone": labels.backbone, "pretraining": labels.pretraining}
    line |= {"protocol": labels.protocol, "pretraining seed": parent.seed if parent else None, "seed": first.seed}
    if len(group) < 2:
        return line | {"data sets": f"{len(group) or 'none'} in common with the other rows"}
    line["data sets"] = f"mean of {len(group)}" + (f" ({marked})" if marked else "")
    line["data sets"] += f", but {broken} broke down" if broken else ""
    line["data sets"] += f", of survivors: {lost} pretrainings like its own broke down" if lost else ""
    for name in first.scores if not broken else ():
        if all(name in record.scores for record in group):
            line[name] = 100 * sum(record.scores[name] for record in group) / len(group)
    errors = [_standard_error(record, first.primary) for record in group]
    if first.primary in line and None not in errors:
        line[f"{first.primary} se"] = 100 * math.hypot(*(error or 0.0 for error in errors)) / len(group)
    return line | {RUN: " ".join(record.run_id for record in group)}


def _all_but_dataset(record: Record) -> tuple[str, str]:
    """What the rows of one protocol have in common, and what tells them apart."""
    content = protocol(record)
    content = {name: value for name, value in content.items() if name not in ("dataset", "skipped")}
    content = {name: value for name, value in content.items() if not name.startswith(OF_DATA)}
    seed = record.seed if is_seeded(record) else None
    return digest_of(content), digest_of([content, backbone_of(record), record.weights_id, seed])
