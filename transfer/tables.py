"""Records as tables. Scores are printed in percent. pandas is imported where a table is made, as it takes long."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from csv import QUOTE_NONNUMERIC
from typing import TYPE_CHECKING, Any

from transfer.groups import Group, dataset_label, grouped, marks
from transfer.protocols import OF_DATA, backbone_of, by_export, digest_of, pretraining, protocol
from transfer.results import Record

if TYPE_CHECKING:
    import pandas as pd

RUN = "run"
"""Column of the ids of a row's runs, separated by blanks."""
NOTES = "notes"
"""Key of `DataFrame.attrs` under which a table carries what is to be said below it: a list of texts."""
SIGNIFICANT = "significant"
"""Key of `DataFrame.attrs` for the columns, of any size, that are printed with four significant digits."""
IN_FULL = "in full"
"""Key of `DataFrame.attrs` under which a table has, by column, the full texts of those that a note explains."""


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
    if len({record.seed for record in records}) > 1:
        tables.append(summary(records).drop(columns=RUN))
    tables.append(over_datasets(records).drop(columns=RUN, errors="ignore"))
    return "\n\n".join(markdown(table) for table in tables if len(table))


def summary(records: Sequence[Record], known: Sequence[Record] | None = None) -> "pd.DataFrame":
    """One row per configuration (backbone, pretraining, protocol): mean and standard deviation over its seeds.

    Seeds are those of the task and, where the weights' runs are known, those of pretraining. A run that broke down has
    no score: `outcomes` counts each way of ending, `broke down` gives the rate with its 95 % Wilson interval. Rows of a
    task with unlike protocols have letters, which `attrs["notes"]` explains.

    `run` has the ids of its runs.

    Args:
        known: all records at hand, among which the runs are looked for that weights come from; by default `records`.
    """
    import pandas as pd

    groups, notes = grouped(records, known)
    scores = list(dict.fromkeys(name for record in records for name in record.scores))
    several = any(len(group.records) > 1 for group in groups)
    rates = several and any(record.broke_down for record in records)
    table = without_unsaid(pd.DataFrame([_line(group, scores, rates) for group in groups]))
    table.attrs[NOTES] = [f"protocol {note}" for note in notes]
    return table


def without_unsaid(table: "pd.DataFrame") -> "pd.DataFrame":
    """Without pretraining and protocol where no row says any, and without deviations where no row has several seeds."""
    unsaid = [name for name in ("pretraining", "protocol") if name in table and not table[name].any()]
    unsaid += [name for name in map(str, table) if name.endswith(" sd") and table[name].isna().all()]
    return table.drop(columns=unsaid)


def _line(group: Group, scores: Sequence[str], rates: bool) -> dict[str, Any]:
    counts = Counter(record.outcome["status"] for record in group.records)
    line: dict[str, Any] = {
        "task": group.first.task,
        "dataset": group.dataset,
        "backbone": group.backbone,
        "pretraining": group.pretraining,
        "protocol": group.protocol,
        "seeds": len(group.records),
        "outcomes": ", ".join(f"{count} {status}" for status, count in counts.most_common()),
    }
    if rates:
        line["broke down"] = breakdown_rate(sum(record.broke_down for record in group.records), len(group.records))
    for name in scores:
        values = [record.shown(name) for record in group.records if name in record.scores]
        line[name], line[f"{name} sd"] = mean_and_deviation(values)
        errors = [error for record in group.records if (error := _standard_error(record, name)) is not None]
        if len(errors) == 1:
            line[f"{name} se"] = group.first.scale(name) * errors[0]
    return line | {RUN: " ".join(record.run_id for record in group.records)}


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the standard deviation (n - 1) of a sample; nan where there are too few."""
    if not values:
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def breakdown_rate(broken: int, runs: int) -> str:
    """How many of several runs broke down, with the 95 % Wilson interval of their rate in percent."""
    if runs < 2:
        return f"{broken} of {runs}"
    from transfer.statistics import wilson

    interval = wilson(broken, runs)
    return f"{broken} of {runs} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def over_datasets(records: Sequence[Record], known: Sequence[Record] | None = None) -> "pd.DataFrame":
    """The unweighted mean over data sets of what differs in nothing else, where the scores are meant to be averaged.

    One row per backbone, seed and set of options. Of several records of a data set (it was stored in another form, or
    mended) the latest counts. Where a data set's run broke down there is no mean, and `data sets` says how many did.
    The standard error is that of the mean, the data sets' own being independent. `known` is that of `summary`.
    """
    import pandas as pd

    groups: dict[str, dict[str, Record]] = {}
    for record in sorted(records, key=lambda record: str(record.environment.get("started"))):
        if any(metric.get("averaged") for metric in record.metrics.values()):
            groups.setdefault(_all_but_dataset(record), {})[record.dataset["name"]] = record
    several = [list(of_name.values()) for of_name in groups.values() if len(of_name) > 1]
    exports = by_export(records if known is None else known)
    labels, notes = grouped([group[0] for group in several], records if known is None else known)
    named = {id(record): group for group in labels for record in group.records}
    lines = [_mean_line(group, named[id(group[0])], exports) for group in several]
    table = without_unsaid(pd.DataFrame(lines).dropna(axis="columns", how="all"))
    if "pretraining seed" in table and table["pretraining seed"].nunique() == 1:
        table = table.drop(columns="pretraining seed")
    table.attrs[NOTES] = [f"protocol {note}" for note in notes]
    return table


def _mean_line(group: Sequence[Record], labels: Group, exports: Mapping[str, Record]) -> dict[str, Any]:
    first, broken = group[0], sum(record.broke_down for record in group)
    parent, marked = pretraining(first, exports), ", ".join(marks(group, exports))
    line: dict[str, Any] = {"task": first.task, "backbone": labels.backbone, "pretraining": labels.pretraining}
    line |= {"protocol": labels.protocol, "pretraining seed": parent.seed if parent else None, "seed": first.seed}
    line["data sets"] = f"mean of {len(group)}" + (f" ({marked})" if marked else "")
    line["data sets"] += f", but {broken} broke down" if broken else ""
    for name in first.scores if not broken else ():
        if all(name in record.scores for record in group):
            line[name] = 100 * sum(record.scores[name] for record in group) / len(group)
    errors = [_standard_error(record, first.primary) for record in group]
    if first.primary in line and None not in errors:
        line[f"{first.primary} se"] = 100 * math.hypot(*(error or 0.0 for error in errors)) / len(group)
    return line | {RUN: " ".join(record.run_id for record in group)}


def _all_but_dataset(record: Record) -> str:
    content = protocol(record)
    content = {name: value for name, value in content.items() if name not in ("dataset", "skipped")}
    content = {name: value for name, value in content.items() if not name.startswith(OF_DATA)}
    return digest_of([content, backbone_of(record), record.weights_id, record.seed])


def markdown(rows: "pd.DataFrame") -> str:
    """A Markdown table with what its notes say below; scores with two decimals, nothing where there is none."""
    columns = []
    significant = rows.attrs.get(SIGNIFICANT, ())
    for place, name in enumerate(rows.columns):
        form = ".4g" if name in significant else ".2f"
        texts = [_one_line(str(name)), *(_one_line(_text(value, form)) for value in rows.iloc[:, place].tolist())]
        width = max(len(texts[0]) + 2, *map(len, texts))
        columns.append([f" {texts[0]:{width}} ", ":" + "-" * (width + 1), *(f" {text:{width}} " for text in texts[1:])])
    lines = [f"|{'|'.join(cells)}|" for cells in zip(*columns, strict=True)]
    notes = [f"- {_one_line(note)}" for note in rows.attrs.get(NOTES, [])]
    return "\n".join([*lines, "", *notes] if notes else lines)


def csv(rows: "pd.DataFrame") -> str:
    """Comma-separated values with all digits; in the place of letters stands what they stand for.

    With a # in a value all texts are quoted, so that readers who take it for the start of a comment do not there.
    """
    lettered = (note.removeprefix("protocol ") for note in rows.attrs.get(NOTES, []) if note.startswith("protocol "))
    stands = dict(mark.split(": ", 1) for mark in lettered)
    if stands and "protocol" in rows:
        rows = rows.assign(protocol=[stands.get(mark, mark) for mark in rows["protocol"]])
    for name, texts in rows.attrs.get(IN_FULL, {}).items():
        rows = rows.assign(**{name: [texts.get(text, text) for text in rows[name]]})
    text = str(rows.to_csv(index=False))
    return (str(rows.to_csv(index=False, quoting=QUOTE_NONNUMERIC)) if "#" in text else text).rstrip("\n")


def comments(rows: "pd.DataFrame", title: str, note: str = "") -> list[str]:
    """Title and notes of a table as comment lines above its `csv`, but for letters that this writes out."""
    said = [*rows.attrs.get(NOTES, []), *filter(str.strip, note.splitlines())]
    if "protocol" in rows:
        said = [line for line in said if not line.startswith("protocol ")]
    return [f"# {' '.join(line.splitlines())}" for line in (title, *said)]


def _text(value: Any, form: str) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else format(value, form)
    return "" if value is None else str(value)


def _one_line(text: str) -> str:
    """Text that cannot leave its cell."""
    return " ".join(text.splitlines()).replace("|", "\\|")
