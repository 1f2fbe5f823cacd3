"""A published table beside one's own numbers: `python -m transfer.report RUNS --paper scaled_relu --table 4`.

Own numbers are means over seeds, in percent. A verdict is given only where nothing but the seed differs from the full
tier of the table's sweep; everywhere else what differs is said.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from backbones.errors import UserError
from transfer.costs import hours, kind_of_hours
from transfer.groups import letter
from transfer.protocols import by_export, configurations, lineage
from transfer.published_matching import Match, Matcher
from transfer.published_rows import Row, Table, Value, paper_names, read_paper, rows_of, table_of
from transfer.records import Record
from transfer.results import Run
from transfer.sweep_file import SweepFile, read_sweep
from transfer.tables import IN_FULL

if TYPE_CHECKING:
    import pandas as pd

    from transfer.statistics import Estimate

__all__ = ["paper_names", "paper_table", "rows_of"]

DRAWS, AP_DRAWS = 2_000, 200
"""Of the bootstrap, for each cell; COCO's scores take some hundredths of a second for each."""
MOST_REASONS = 4
"""In a line of the table; more of them go into a note."""
FEW = {
    1: "(1 seed): the interval is that of these models on other samples; other seeds are not in it",
    2: "(2 seeds): two seeds are few, and the interval covers about 90 % where seeds vary",
}
"""What is to be said of an interval of so many seeds."""
COLUMNS = (
    *("row", "dataset", "metric", "published", "reading", "own", "difference", "interval", "verdict"),
    *("device_hours", "pretraining_hours", "not comparable because", "others", "runs"),
)


@dataclass(frozen=True)
class Own:
    """One's own runs for a cell: those of one configuration, which differ in seeds alone."""

    matches: tuple[Match, ...]
    others: int = 0
    """Other configurations of the same cell, all less comparable."""

    @property
    def records(self) -> list[Record]:
        """Their records."""
        return [match.record for match in self.matches]

    @property
    def reasons(self) -> list[str]:
        """Why their number cannot be compared."""
        return list(dict.fromkeys(reason for match in self.matches for reason in match.reasons))

    @property
    def completed(self) -> list[Record]:
        """Those with scores."""
        return [record for record in self.records if not record.broke_down]


def paper_table(
    runs: Sequence[Run], paper: str, table: str, known: Sequence[Run] | None = None
) -> "tuple[pd.DataFrame, list[str]]":
    """The cells of a published table, one row each, with one's own numbers where there are any; and notes.

    A cell whose printed option can be read in several ways has a row for each reading that was run. Of several
    configurations the one that differs least from the table's counts; `others` says how many more there are. Of a
    figure the claims are listed.

    Columns, all text but `others`: row, dataset, metric, published (percent as printed, or crash), reading, own (mean
    over seeds in percent, breakdowns), difference (own - published, points), interval (of the difference, 95 %),
    verdict, device_hours and pretraining_hours (core or GPU hours of all runs behind the number), `not comparable
    because`, runs.

    Args:
        known: all runs at hand, among which those are looked for that weights come from; by default `runs`.

    Raises:
        WrongWords: an unknown paper or table, or a file of published numbers that cannot be read.
    """
    import pandas as pd

    found = table_of(paper, table)
    if found.claims:
        notes = [f"{found.title}: no legible numbers; `python -m transfer.sweep {found.sweep}` makes one's own"]
        return pd.DataFrame({"claim": found.claims}), notes
    records = [run.record for run in runs]
    exports = by_export(run.record for run in known or runs)
    matcher = Matcher(_at_full_scale(found.sweep), read_paper(paper).stand_ins, exports, records)
    keys = dict(zip((record.run_id for record in records), configurations(records, exports), strict=True))
    folders = {run.record.run_id: run for run in runs}
    lines: list[dict[str, Any]] = []
    for row in found.rows:
        for value in row.values:
            owns = _owns(matcher.of(row, value), keys)
            lines += [_line(row, value, own, matcher, folders) for own in owns] or [
                _line(row, value, None, matcher, {})
            ]
    notes = [*_notes(found), *dict.fromkeys(line["note"] for line in lines if "note" in line)]
    folded, in_full = _fold(lines)
    frame = pd.DataFrame(lines, columns=list(COLUMNS))
    frame.attrs[IN_FULL] = {"not comparable because": in_full}
    return frame, [*notes, *folded]


def _fold(lines: Sequence[dict[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """Puts long lists of what differs into notes, under letters that stay in the lines.

    Returns the notes, and the texts of lines with letters in full.
    """
    letters: dict[str, str] = {}
    in_full: dict[str, str] = {}
    for line in lines:
        reasons = str(line["not comparable because"]).split("; ")
        options = [reason for reason in reasons if reason.endswith(")")]
        if len(reasons) > MOST_REASONS and options:
            text = "; ".join(options)
            name = letters.setdefault(text, letter(len(letters)))
            others = [reason for reason in reasons if not reason.endswith(")")]
            short = "; ".join([*others, f"{len(options)} options: {name}"])
            in_full[short], line["not comparable because"] = "; ".join([*others, text]), short
    return [f"{name}: {text} (in brackets the table's)" for text, name in letters.items()], in_full


@lru_cache
def _at_full_scale(sweep: str) -> SweepFile:
    return read_sweep(sweep, "full")


def _owns(matches: Iterable[Match], keys: Mapping[str, str]) -> list[Own]:
    """The most comparable configuration of each reading."""
    readings: dict[str, dict[str, list[Match]]] = {}
    for match in matches:
        groups = readings.setdefault(match.reading, {})
        groups.setdefault(keys[match.record.run_id], []).append(match)
    found = []
    for groups in readings.values():
        owns = sorted(
            (Own(tuple(group)) for group in groups.values()), key=lambda own: (len(own.reasons), -len(own.matches))
        )
        found.append(Own(owns[0].matches, len(owns) - 1))
    return found


def _line(row: Row, value: Value, own: Own | None, matcher: Matcher, folders: Mapping[str, Run]) -> dict[str, Any]:
    mark = " (in doubt)" if value.doubt else " (for reference)" if row.reference else ""
    line: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    line |= {"row": row.label, "dataset": value.dataset, "metric": value.metric, "others": 0}
    line["published"] = value.printed + mark
    if own is None:
        step = matcher.sweep.steps.get(value.step)
        return line | _blocked(matcher.broken_before(row, step) if step else [])
    target = value.percent if not row.reference else None
    estimate, problem = _estimate(own, value, folders) if target is not None and own.completed else (None, "")
    chains = {run.run_id: run for record in own.records for run in lineage(record, matcher.exports)}
    lost = matcher.siblings_that_broke_down(own.records)
    without = f"{len(lost)} of {len(lost) + len({r.weights_id for r in own.records})} pretrainings broke down"
    line |= {
        "reading": own.matches[0].reading,
        "own": _own_text(own, value) + (f"; {without}" if lost else ""),
        "verdict": "" if own.reasons or mark else verdict(value, own, estimate) + (f"; {without}" if lost else ""),
        "device_hours": _hours(own.records),
        "pretraining_hours": _hours(chains.values()) if chains else "",
        "not comparable because": "; ".join(own.reasons),
        "others": own.others,
        "runs": " ".join(record.run_id for record in own.records),
    }
    if problem:
        line |= {
            "interval": "none",
            "note": f"{row.label}, {value.dataset}, {value.metric}: no interval, since {problem}",
        }
    elif estimate and estimate.seeds[0] in FEW:
        line["note"] = FEW[estimate.seeds[0]]
    return line | (_difference(value, estimate) if estimate else {})


def verdict(value: Value, own: Own, estimate: "Estimate | None") -> str:
    """In words, how one's own runs stand to a published cell that they can be compared with.

    A score agrees where the interval of its mean holds the printed number, which may be off by half its last digit.
    """
    broken = len(own.records) - len(own.completed)
    if value.crash:
        if not broken:
            return "not here"
        return "both break down" if not own.completed else f"breaks down in {broken} of {len(own.records)} here"
    if not own.completed:
        return "breaks down here only"
    if estimate is None or value.percent is None:
        return ""
    slack = 0.5 * 10**-value.decimals
    low, high = 100 * estimate.low - value.percent, 100 * estimate.high - value.percent
    said = "agrees" if low <= slack and high >= -slack else "higher" if low > 0 else "lower"
    return said + (f"; breaks down in {broken} of {len(own.records)} here" if broken else "")


def _estimate(own: Own, value: Value, folders: Mapping[str, Run]) -> "tuple[Estimate | None, str]":
    """The mean score of the runs that completed, a fraction, with its interval.

    None where it cannot be resampled; with the reason where that is for missing or damaged outcomes.
    """
    from transfer.estimating import mean_score

    runs = [folders[record.run_id] for record in own.completed]
    try:
        return mean_score(runs, value.metric, draws=DRAWS, ap_draws=AP_DRAWS), ""
    except UserError as error:
        return None, str(error)


def _difference(value: Value, estimate: "Estimate") -> dict[str, str]:
    assert value.percent is not None
    points = [100 * number - value.percent for number in (estimate.estimate, estimate.low, estimate.high)]
    middle, low, high = (f"{number:+.{value.decimals}f}" for number in points)
    return {"difference": middle, "interval": f"{low} to {high}" + _few(estimate)}


def _few(estimate: "Estimate") -> str:
    (seeds,) = estimate.seeds
    return f" ({seeds} seed{'s' * (seeds > 1)})" if seeds in FEW else ""


def _blocked(matches: Sequence[Match]) -> dict[str, str]:
    """Of a cell without runs: those of the trainings before it that broke down, of the most comparable kind."""
    if not matches:
        return {}
    reasons = min((match.reasons for match in matches), key=len)
    broken = [match.record for match in matches if match.reasons == reasons]
    return {
        "own": f"blocked: {_statuses(broken)}",
        "pretraining_hours": _hours(broken),
        "not comparable because": "; ".join(reasons),
        "runs": " ".join(record.run_id for record in broken),
    }


def _own_text(own: Own, value: Value) -> str:
    scores = [100 * record.scores[value.metric] for record in own.completed if value.metric in record.scores]
    texts = [f"{sum(scores) / len(scores):.{value.decimals}f}"] if scores else []
    broken = [record for record in own.records if record.broke_down]
    return ", ".join(texts + ([_statuses(broken, len(own.records))] if broken else []))


def _statuses(broken: Sequence[Record], total: int | None = None) -> str:
    """ "nonfinite 2/3": how runs ended, of how many."""
    counts = Counter(str(record.outcome["status"]) for record in broken)
    return ", ".join(f"{status} {count}/{total or len(broken)}" for status, count in sorted(counts.items()))


def _hours(records: Iterable[Record]) -> str:
    """ "6 GPU" or "0.02 core", each kind by itself; nothing where a run does not say its hours."""
    found: dict[str, float] = {}
    for record in records:
        kind = kind_of_hours(record)
        found[kind] = found.get(kind, 0.0) + hours(record)
    return (
        "" if any(map(math.isnan, found.values())) else " + ".join(f"{took:.3g} {kind}" for kind, took in found.items())
    )


def _notes(table: Table) -> list[str]:
    paper = read_paper(table.paper)
    notes = [f"{paper.title} ({paper.source}), table {table.name}: {table.title}. In percent."]
    notes += [*paper.notes, *table.notes]
    for row in table.rows:
        notes += [f"{row.label}: for reference only: {row.reference}"] if row.reference else []
        notes += [
            f"{row.label}, {value.dataset}, {value.metric}: printed {value.printed}, never compared: {value.doubt}"
            for value in row.values
            if value.doubt
        ]
    return notes
