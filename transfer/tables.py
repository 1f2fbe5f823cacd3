"""Records as tables. Scores are printed in percent."""

import json
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from transfer.results import Record


def frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record: what it is, how it ended, its scores in percent, and what it cost."""
    rows: list[dict[str, Any]] = []
    for record in records:
        rows.append(
            {
                "task": record.task,
                "dataset": _dataset(record),
                "backbone": record.backbone.get("name"),
                "seed": record.seed,
                "outcome": record.outcome["status"],
                **_scores(record),
                "train_seconds": record.cost.get("train_seconds"),
                "run": record.run_id,
                "protocol": record.protocol,
            }
        )
    return pd.DataFrame(rows)


def _scores(record: Record) -> dict[str, float]:
    """In percent, each with the standard error over its draws, where it has several."""
    found: dict[str, float] = {}
    for name, value in record.scores.items():
        found[name] = 100 * value
        error = _standard_error(record, name)
        if error is not None:
            found[f"{name} se"] = 100 * error
    return found


def _standard_error(record: Record, name: str) -> float | None:
    details = record.details.get(name)
    return details.get("standard_error") if isinstance(details, dict) else None


def _dataset(record: Record) -> str:
    marks = ["smoke"] * record.smoke + [f"subset {record.subset}"] * (record.subset is not None)
    version, skipped = record.dataset.get("version"), record.dataset.get("skipped")
    marks += [f"version {version}"] * bool(version) + [f"{skipped} unreadable"] * bool(skipped)
    return record.dataset["name"] + (f" ({', '.join(marks)})" if marks else "")


def run_table(records: Sequence[Record]) -> str:
    """The table that `transfer.run` prints: a row per record, of the standard errors that of the primary score alone.

    Below it means over seeds and over data sets, where there are several.
    """
    rows = frame(records).drop(columns=["protocol", "train_seconds"])
    kept = {f"{record.primary} se" for record in records}
    tables = [rows.drop(columns=[name for name in map(str, rows) if name.endswith(" se") and name not in kept])]
    if len({record.seed for record in records}) > 1:
        tables.append(summary(records))
    tables.append(over_datasets(records))
    return "\n\n".join(markdown(table) for table in tables if len(table))


def over_datasets(records: Sequence[Record]) -> pd.DataFrame:
    """The unweighted mean over data sets of what differs in nothing else, where the scores are meant to be averaged.

    One row per backbone, seed and set of options. Of several records of a data set (it was stored in another form, or
    mended) the latest counts. Where a data set's run broke down there is no mean, and `data sets` says how many did.
    The standard error is that of the mean, the data sets' own being independent.
    """
    groups: dict[str, dict[str, Record]] = {}
    for record in sorted(records, key=lambda record: str(record.environment.get("started"))):
        if any(metric.get("averaged") for metric in record.metrics.values()):
            groups.setdefault(_all_but_dataset(record), {})[record.dataset["name"]] = record
    lines = []
    for group in (list(of_name.values()) for of_name in groups.values() if len(of_name) > 1):
        first, broken = group[0], sum(record.broke_down for record in group)
        names = " (smoke)" if first.smoke else ""
        line: dict[str, Any] = {"task": first.task, "backbone": first.backbone.get("name"), "seed": first.seed}
        line["data sets"] = f"mean of {len(group)}{names}" + (f", but {broken} broke down" if broken else "")
        for name in first.scores if not broken else ():
            if all(name in record.scores for record in group):
                line[name] = 100 * sum(record.scores[name] for record in group) / len(group)
        errors = [_standard_error(record, first.primary) for record in group]
        if first.primary in line and None not in errors:
            line[f"{first.primary} se"] = 100 * math.hypot(*(error or 0.0 for error in errors)) / len(group)
        lines.append(line)
    return pd.DataFrame(lines)


def _all_but_dataset(record: Record) -> str:
    from transfer.options import EXECUTION

    ignored = {*EXECUTION, "dataset", "config", "dry_run"}
    options = {name: value for name, value in record.options.items() if name not in ignored}
    parts = [record.task, record.task_version, record.backbone, record.weights_id, record.environment.get("precision")]
    return json.dumps([*parts, options], sort_keys=True)


def summary(records: Sequence[Record]) -> pd.DataFrame:
    """One row per protocol: mean and standard deviation over the seeds that completed, and the options that differ.

    A run that broke down has no score; `outcomes` counts each way of ending.
    """
    rows = frame(records)
    scores = list(dict.fromkeys(name for record in records for name in record.scores))
    differing = _differing_options(records)
    lines = []
    for protocol, group in rows.groupby("protocol", sort=False):
        first = next(record for record in records if record.protocol == protocol)
        line: dict[str, Any] = {name: group[name].iloc[0] for name in ("task", "dataset", "backbone")}
        options = {name: first.options.get(name) for name in differing}
        line |= {"options": ", ".join(f"{name}={value}" for name, value in options.items())} if differing else {}
        line |= {
            "seeds": len(group),
            "outcomes": ", ".join(f"{n} {s}" for s, n in group["outcome"].value_counts().items()),
        }
        for name in scores:
            values = group[name].dropna() if name in group else pd.Series(dtype=float)
            line[name] = values.mean() if len(values) else float("nan")
            line[f"{name} sd"] = values.std(ddof=1) if len(values) > 1 else float("nan")
            errors = group.get(f"{name} se", pd.Series(dtype=float)).dropna()
            if len(errors) == 1:
                line[f"{name} se"] = errors.iloc[0]
        lines.append(line)
    return pd.DataFrame(lines)


def _differing_options(records: Sequence[Record]) -> list[str]:
    """Options that belong to the protocol and are not the same in all records of a task."""
    from transfer.options import EXECUTION

    ignored = {*EXECUTION, "seeds", "dataset", "backbone", "config", "dry_run", "smoke", "subset"}
    names = dict.fromkeys(name for record in records for name in record.options if name not in ignored)
    return [name for name in names if len({str(record.options.get(name)) for record in records}) > 1]


def markdown(rows: pd.DataFrame) -> str:
    """A Markdown table; scores with two decimals, nothing where there is none."""
    text = rows.copy()
    for name in text.columns:
        if pd.api.types.is_float_dtype(text[name]):
            text[name] = [f"{value:.2f}" if pd.notna(value) else "" for value in text[name]]
    return text.to_markdown(index=False, disable_numparse=True)
