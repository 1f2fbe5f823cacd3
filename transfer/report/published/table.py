"""A published table beside one's own numbers: `python -m transfer.report RUNS --paper scaled_relu --table 4`.

Own numbers are means over seeds, in percent. A verdict is given only where nothing but the seed differs from the full
tier of the table's sweep; everywhere else what differs is said.
`docs/concepts/statistics.md` says how verdicts are made.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from backbones.errors import UsageError, UserError
from transfer.published.rows import PublishedTable, Row, Value, paper_names, read_paper, rows_of, table_of
from transfer.published.verdicts import MARGIN, Counts, judged, sentence
from transfer.records.evidence import Arm, Evidence
from transfer.records.protocol import by_export, configurations
from transfer.records.record import Record
from transfer.records.store import Run
from transfer.report.published.costs import cost_lines
from transfer.report.published.matching import Matcher
from transfer.report.published.notes import REASONS, folded, rules_of, table_notes
from transfer.report.published.own_runs import Own, owns
from transfer.report.tables.costs import hours, kind_of_hours
from transfer.report.tables.render import IN_FULL
from transfer.sweep.definition.sweep_file import SweepFile, read_sweep

if TYPE_CHECKING:
    import pandas as pd

    from transfer.statistics.intervals import Estimate

__all__ = ["paper_names", "paper_table", "rows_of"]

DRAWS, AP_DRAWS = 2_000, 200
"""Of the bootstrap, for each cell; COCO's scores take some hundredths of a second for each."""
FEW = {
    1: "(1 seed): the interval is that of these models on other samples; other seeds are in neither it nor the verdict",
    2: "(2 seeds): two seeds are few, and the interval covers about 90 % where seeds vary",
}
"""What is to be said of an interval of so many seeds."""
COLUMNS = (
    *("row", "dataset", "metric", "published", "reading", "configuration", "own", "difference", "interval", "verdict"),
    *("device_hours", "pretraining_hours", REASONS, "others", "runs"),
)


def paper_table(
    runs: Sequence[Run],
    paper: str,
    table: str,
    known: Sequence[Run] | None = None,
    *,
    margin: float | None = None,
) -> "tuple[pd.DataFrame, list[str]]":
    """The cells of a published table, one row each, with one's own numbers where there are any; and notes.

    A cell whose printed option can be read in several ways has a row for each reading that was run, and one for each
    configuration that can be compared. Where none can, the one that differs least from the table's is shown; `others`
    says how many more there are. Of a figure the claims are listed.

    Columns, all text but `others`: row, dataset, metric, published (percent as printed, or crash), reading,
    configuration (what tells it apart where several can be compared), own (mean over seeds in percent, breakdowns),
    difference (own - published, points), interval (of the difference, 95 %), verdict, device_hours and
    pretraining_hours (core or GPU hours of all runs behind the number), `not comparable because`, runs.

    Args:
        known: all runs at hand, among which those are looked for that weights come from; by default `runs`.
        margin: in points, of what agrees; by default `published_verdicts.MARGIN`.

    Raises:
        UsageError: an unknown paper or table, a margin that is not above 0, or a file of published numbers that cannot
            be read.
    """
    import pandas as pd

    margin = MARGIN if margin is None else margin
    if not (margin > 0 and math.isfinite(margin)):
        raise UsageError(f"--margin {margin:g}: must be above 0, in points of percent")
    found = table_of(paper, table)
    records = [run.record for run in runs]
    exports = by_export(run.record for run in known or runs)
    if found.claims:
        return _figure(found, records, exports)
    at_hand = _AtHand(
        Matcher(_at_full_scale(found.sweep), read_paper(paper), exports, records),
        Evidence.of(records, _known(runs, known or runs)),
        dict(zip((record.run_id for record in records), configurations(records, exports), strict=True)),
        {run.record.run_id: run for run in runs},
        margin,
    )
    lines: list[dict[str, Any]] = []
    for row in found.rows:
        for value in row.values:
            shown: list[Own | None] = [*owns(at_hand.matcher.of(row, value), at_hand.keys, exports)]
            lines += [_line(row, value, own, at_hand) for own in shown or [None]]
    said = dict.fromkeys(note for line in lines for note in line["notes"])
    letters, in_full = folded(lines)
    frame = pd.DataFrame(lines, columns=list(COLUMNS))
    frame.attrs[IN_FULL] = {REASONS: in_full}
    return frame, [*table_notes(found), *rules_of(lines, margin), *said, *letters]


def _figure(
    figure: PublishedTable, records: Sequence[Record], exports: Mapping[str, Record]
) -> "tuple[pd.DataFrame, list[str]]":
    """What a figure claims, a ratio of hours beside one's own."""
    import pandas as pd

    notes = [*table_notes(figure), f"no legible numbers; `python -m transfer.sweep {figure.sweep}` makes one's own"]
    lines: list[dict[str, Any]] = [{"claim": claim} for claim in figure.claims]
    if figure.costs:
        matcher = Matcher(_at_full_scale(figure.sweep), read_paper(figure.paper), exports, records)
        lines += [line for cost in figure.costs for line in cost_lines(cost, matcher)]
    return pd.DataFrame(lines).fillna(""), notes


@dataclass(frozen=True)
class _AtHand:
    """What the cells of a table are looked up in."""

    matcher: Matcher
    evidence: Evidence
    keys: Mapping[str, str]
    """The configuration of each run, by its id"""
    runs: Mapping[str, Run]
    margin: float


def _known(runs: Sequence[Run], known: Sequence[Run]) -> list[Record]:
    """The records among which trainings are looked for; of those that broke down only the ones that are shown."""
    shown = {run.record.run_id for run in runs}
    return [run.record for run in known if not run.record.training_failed or run.record.run_id in shown]


@lru_cache
def _at_full_scale(sweep: str) -> SweepFile:
    return read_sweep(sweep, "full")


def _line(row: Row, value: Value, own: Own | None, at_hand: _AtHand) -> dict[str, Any]:
    mark = " (in doubt)" if value.doubt else " (for reference)" if row.reference else ""
    line: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    line |= {"row": row.label, "dataset": value.dataset, "metric": value.name, "others": 0}
    line |= {"published": value.printed + mark, "notes": [], "reasons": (), "judged": None}
    if own is None:
        return line | _blocked(row, value, at_hand, mark)
    target = value.percent if not row.reference else None
    estimate, problem = _estimate(own, value, at_hand) if target is not None and own.completed else (None, "")
    chains = {run.run_id: run for record in own.records for run in at_hand.evidence.lineage(record)}
    arm = at_hand.evidence.arm(own.records)
    counts = _counts(arm, bool(chains))
    reasons = [reason.text for reason in own.reasons]
    verdict = None if mark else judged(value, counts, estimate, reasons=reasons, margin=at_hand.margin)
    line |= {
        "reading": own.matches[0].reading,
        "configuration": own.label,
        "own": _own_text(arm, value, estimate, counts),
        "verdict": sentence(verdict) if verdict else "",
        "judged": verdict,
        "device_hours": _hours(own.records),
        "pretraining_hours": _hours(chains.values()) if chains else "",
        "reasons": own.reasons,
        "others": own.others,
        "runs": " ".join(record.run_id for record in own.records),
        "notes": own.notes,
    }
    if problem:
        said = f"{row.label}, {value.dataset}, {value.name}: no interval, since {problem}"
        line |= {"interval": "none", "notes": [*own.notes, said]}
    elif estimate and estimate.seeds[0] in FEW:
        line["notes"] = [*own.notes, FEW[estimate.seeds[0]]]
    return line | (_difference(value, estimate) if estimate else {})


def _counts(arm: Arm, pretrained: bool) -> Counts:
    return Counts(
        runs=len(arm.records),
        broken=sum(record.training_failed for record in arm.records),
        pretrainings=len(arm.lost) + len({record.weights_id for record in arm.records}) * pretrained,
        lost=len(arm.lost),
    )


def _estimate(own: Own, value: Value, at_hand: _AtHand) -> "tuple[Estimate | None, str]":
    """The mean score of the runs that completed, a fraction, with its interval.

    Where there is none, with the reason: no run has the score, it is no mean over samples, or outcomes are missing.
    """
    from transfer.comparison.estimates import mean_score
    from transfer.report.published.curves import mean_at

    if value.epoch is not None:
        try:
            return mean_at([at_hand.runs[record.run_id] for record in own.completed], value, DRAWS), ""
        except UserError as error:
            return None, str(error)
    runs, known = [at_hand.runs[record.run_id] for record in own.completed], at_hand.evidence.known
    if not any(value.metric in record.scores for record in own.completed):
        return None, f"no run has a score of this name: {' '.join(record.run_id for record in own.completed)}"
    try:
        found = mean_score(runs, value.metric, draws=DRAWS, ap_draws=AP_DRAWS, known=known)
    except UserError as error:
        return None, str(error)
    return found, "" if found else "outcomes do not add up to the score"


def _difference(value: Value, estimate: "Estimate") -> dict[str, str]:
    assert value.percent is not None
    points = [100 * number - value.percent for number in (estimate.estimate, estimate.low, estimate.high)]
    middle, low, high = (f"{number:+.{value.decimals}f}" for number in points)
    return {"difference": middle, "interval": f"{low} to {high}" + _few(estimate)}


def _few(estimate: "Estimate") -> str:
    (seeds,) = estimate.seeds
    return f" ({seeds} seed{'s' * (seeds > 1)})" if seeds in FEW else ""


def _blocked(row: Row, value: Value, at_hand: _AtHand, mark: str) -> dict[str, Any]:
    """Of a cell without runs: those of the trainings before it that broke down, of the most comparable kind.

    There is a verdict where all like them did, so that no run of the cell is left to wait for.
    """
    step = at_hand.matcher.sweep.steps.get(value.step)
    matches = at_hand.matcher.broken_before(row, step) if step else []
    if not matches:
        return {}
    reasons = min((match.reasons for match in matches), key=len)
    broken = [match.record for match in matches if match.reasons == reasons]
    kinds = {at_hand.keys[record.run_id] for record in broken}
    total = sum(at_hand.keys[record.run_id] in kinds for record in at_hand.matcher.records)
    counts = Counts(runs=0, pretrainings=total, lost=len(broken))
    judge = not mark and total == len(broken)
    verdict = judged(value, counts, None, reasons=[reason.text for reason in reasons]) if judge else None
    return {
        "own": f"blocked: {_statuses(broken, total)}",
        "verdict": sentence(verdict) if verdict else "",
        "pretraining_hours": _hours(broken),
        "reasons": reasons,
        "runs": " ".join(record.run_id for record in broken),
    }


def _own_text(arm: Arm, value: Value, estimate: "Estimate | None", counts: Counts) -> str:
    """The mean of what counts as one seed, how the other runs ended, and the mean with these at chance."""
    scores = arm.values(value.metric) if value.epoch is None else []
    mean = 100 * estimate.estimate if estimate else math.fsum(scores) / len(scores) if scores else None
    texts = [f"{mean:.{value.decimals}f}"] if mean is not None else []
    broken = [record for record in arm.records if record.training_failed]
    texts += [_statuses(broken, counts.runs)] if broken else []
    said = [", ".join(texts)]
    said += [f"{counts.lost} of {counts.pretrainings} pretrainings broke down"] if counts.lost else []
    if scores and arm.absent and (all_of_them := arm.with_breakdowns(value.metric)):
        said.append(f"with these at chance {math.fsum(all_of_them) / len(all_of_them):.{value.decimals}f}")
    return "; ".join(filter(None, said))


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
