"""Records as tables. Scores are printed in percent."""

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
                **{name: 100 * value for name, value in record.scores.items()},
                "train_seconds": record.cost.get("train_seconds"),
                "run": record.run_id,
                "protocol": record.protocol,
            }
        )
    return pd.DataFrame(rows)


def _dataset(record: Record) -> str:
    marks = ["smoke"] * record.smoke + [f"subset {record.subset}"] * (record.subset is not None)
    version, skipped = record.dataset.get("version"), record.dataset.get("skipped")
    marks += [f"version {version}"] * bool(version) + [f"{skipped} unreadable"] * bool(skipped)
    return record.dataset["name"] + (f" ({', '.join(marks)})" if marks else "")


def run_table(records: Sequence[Record]) -> str:
    """The table that `transfer.run` prints: a row per record, with the mean over seeds where there are several."""
    rows = frame(records).drop(columns=["protocol", "train_seconds"])
    text = markdown(rows)
    if len({record.seed for record in records}) > 1:
        text += "\n\n" + markdown(summary(records))
    return text


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
