"""The tables of a leaderboard: one per protocol and data set, whose rows are configurations. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transfer.comparison.paired_intervals import Bootstrap
from transfer.records.comparability import Comparability, comparable_with
from transfer.records.grouping import Group, marks
from transfer.records.labels import value_label
from transfer.records.protocol import configurations, digest
from transfer.records.record import Record
from transfer.records.run_set import RunSet
from transfer.report.leaderboard.standings import MOST_ROWS, Pair, Standing, standings
from transfer.report.leaderboard.submissions import Status, Submission, Submissions
from transfer.report.page.section_types import Section
from transfer.report.tables.cell_text import comparability_text
from transfer.report.tables.cell_values import Link
from transfer.report.tables.columns import run_ids
from transfer.report.tables.table import SIGNIFICANT, Column, Note, NoteKind, Row, Table

ROWS = "rows"
"""Folder of the pages of rows."""
_HEX = 12
READING = (
    "Numbers of one table were made under one protocol and may be compared. A row has a rank only where it is told "
    "apart from every other row on the same samples, p values adjusted over all pairs; order alone says nothing."
)


@dataclass(frozen=True)
class Board:
    """The rows of one protocol.

    Attributes:
        title: task, data set, and the fields of the protocol in which tables differ.
        rows: configurations, the best mean first.
        names: a name for the page of each row.
    """

    title: str
    rows: list[Standing]
    names: list[str]

    @property
    def first(self) -> Record:
        """Return a record; the protocol is the same for all."""
        return self.rows[0].group.first


def boards(runs: RunSet, options: Bootstrap | None = None) -> list[Board]:
    """Return a board for each protocol, by task and data set."""
    by_protocol: dict[tuple[Any, ...], list[Group]] = {}
    keys = comparable_with([group.first for group in runs.grouping.groups])
    for key, group in zip(keys, runs.grouping.groups, strict=True):
        by_protocol.setdefault(key, []).append(group)
    titles: set[str] = set()
    made = []
    for groups in by_protocol.values():
        title = _title(groups[0])
        title = f"{title}, protocol {digest(groups[0].first)[:_HEX]}" if title in titles else title
        titles.add(title)
        rows = standings(groups, runs, options)
        digests = configurations([row.group.first for row in rows], runs.exports)
        made.append(
            Board(title, rows, [f"{_plain(row.group.backbone)}-{key[:_HEX]}" for row, key in zip(rows, digests)])
        )
    return sorted(made, key=lambda board: (board.first.task, str(board.first.dataset.get("name")), board.title))


def _plain(text: str) -> str:
    """Return a text as part of a file's name."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in text)[:40]


def _title(group: Group) -> str:
    record = group.first
    subset = [f"subset {record.subset}"] * (record.subset is not None)
    remarks = ["smoke"] * record.smoke + subset
    text = f"{record.task} on {record.dataset.get('name')}" + (f" ({', '.join(remarks)})" if remarks else "")
    return text + _protocol(group.protocol)


def _protocol(group: Comparability | None) -> str:
    return f", {comparability_text(group)}" if group is not None else ""


def board_section(board: Board, submissions: Mapping[str, Submission], runs: RunSet) -> Section:
    """Return the table of a board.

    Args:
        board: the board.
        submissions: each run's, by its id.
        runs: all runs, with their lineage.
    """
    score = board.first.primary
    rows = [_row(board, place, submissions, runs) for place in range(len(board.rows))]
    unit = board.first.metrics.get(score, {}).get("unit", "fraction")
    columns = [Column(score, "percent" if unit == "fraction" else unit)]
    columns += [Column(name, significant_digits=SIGNIFICANT) for name in ("GFLOPs", "params (M)")]
    table = Table.from_rows(rows, columns, _notes(board)).without_empty()
    return Section(title=board.title, table=table, note=standing_text(board), reading=READING)


def standing_text(board: Board) -> str:
    """Return who is first, or that nobody is."""
    rows = board.rows
    best = rows[0]
    if len(rows) == 1:
        return f"One configuration: nothing to hold {arm_label(best)} against."
    if best.rank == 1:
        return f"{arm_label(best)} is first: told apart from all {len(rows) - 1} others."
    tied = [arm_label(rows[place]) for place in best.tied()]
    if not tied:  # of many rows, or without a score
        return "No order is shown: no row has a score." if best.score != best.score else ""
    shown = ", ".join(tied[:5]) + (f" and {len(tied) - 5} more" if len(tied) > 5 else "")
    return f"No row is first: {arm_label(best)} has the best mean, but is not told apart from {shown}."


def arm_label(row: Standing) -> str:
    """Return the name of a row in sentences."""
    return row.group.backbone + (f" after {row.group.pretraining}" if row.group.pretraining else "")


def _row(board: Board, place: int, submissions: Mapping[str, Submission], runs: RunSet) -> Row:
    row = board.rows[place]
    first = row.group.first
    mine = [submissions[run.record.run_id] for run in row.runs]
    status = max((submission.status for submission in mine), key=list(Status).index)
    return {
        "rank": row.rank,
        "arm": Link(row.group.backbone, f"{ROWS}/{board.names[place]}.html"),
        board.first.primary: row.score,
        "interval": interval_text(row),
        "ties": tie_text(board, place),
        "stem": part_label(first, "stem"),
        "attention": part_label(first, "attention"),
        "pretraining": row.group.pretraining,
        "seeds": len(row.arm.values(first.primary)),
        "broke down": _broken(row),
        "verified": status.value,
        "source": ", ".join(sorted({name for submission in mine for name in submission.sources})),
        "GFLOPs": _mean(row, "gflops", 1.0),
        "params (M)": _mean(row, "params", 1e-6),
        "marks": ", ".join(marks(row.group.records, runs.exports)),
        **run_ids(row.group.records),
    }


def part_label(record: Record, part: str) -> str:
    """Return a part of a backbone; a user's with the start of its file's digest."""
    value = record.backbone.get(part)
    if value is None:
        return ""
    sha = (record.backbone.get("files") or {}).get(part)
    return value_label(value) + (f" {sha[:8]}" if sha else "")


def interval_text(row: Standing) -> str:
    """Return the interval of a row's mean in the unit of the table: "[44.0, 46.2]"; empty where there is none."""
    if row.interval is None:
        return ""
    scale = row.group.first.scale(row.group.first.primary)
    digits = ".1f" if scale > 1 else ".3g"
    return f"[{scale * row.interval.low:{digits}}, {scale * row.interval.high:{digits}}]"


def tie_text(board: Board, place: int) -> str:
    """Return what a row is not told apart from; empty where it is told apart from all."""
    row, rows = board.rows[place], board.rows
    if len(rows) == 1:
        return "the only row"
    if row.score != row.score:
        return "no score"
    tied = row.tied()
    if 0 in tied and place:
        return "not told apart from the first"
    return f"not told apart from {len(tied)} of {len(rows) - 1} others" if tied else ""


def _broken(row: Standing) -> str:
    broken, of = row.arm.breakdowns
    return f"{broken} of {of}" if broken else ""


def _mean(row: Standing, name: str, scale: float) -> float | None:
    values = [run.record.cost[name] for run in row.runs if run.record.cost.get(name)]
    return scale * sum(values) / len(values) if values else None


def _notes(board: Board) -> list[Note]:
    notes = []
    if any(len(row.arm.units) == 1 for row in board.rows) and len(board.rows) > 1:
        text = "rows of one seed are told apart as these models are, not as other trainings of them would be"
        notes.append(Note(NoteKind.SEEDS, text))
    if len(board.rows) > MOST_ROWS:
        notes.append(Note(NoteKind.MULTIPLICITY, "each row is compared with the first alone, as there are many"))
    if any(row.interval is None and row.score == row.score for row in board.rows):
        notes.append(Note(NoteKind.INTERVALS, "rows without an interval have per-sample results that cannot be used"))
    return notes


def sources_section(submissions: Submissions) -> Section:
    """Return who sent what."""
    rows = []
    for source in submissions.sources:
        taken, refused = submissions.of_source(source)
        rows.append({"source": source.name, "runs": taken, "refused": refused, "sha256": source.sha256[:16]})
    columns = [Column(name, digits=0) for name in ("runs", "refused")]
    return Section(title="Sources", table=Table.from_rows(rows, columns).without_empty())


def refused_section(submissions: Submissions) -> Section | None:
    """Return what is not shown, and why; None if nothing was refused."""
    rows = [
        {"source": refused.source, "what": refused.run or "the whole bundle", "why": "; ".join(refused.reasons)}
        for refused in submissions.refused
    ]
    return Section(title="Refused", table=Table.from_rows(rows)) if rows else None


def overview(submissions: Submissions, made: Sequence[Board]) -> Section:
    """Return the section that a leaderboard begins with."""
    counts = dict.fromkeys(Status, 0)
    for submission in submissions.taken:
        counts[submission.status] += 1
    sources, tables = len(submissions.sources), len(made)
    lines = [
        f"{_count(len(submissions.taken), 'run')} from {_count(sources, 'source')}, in {_count(tables, 'table')}: "
        "one for each protocol and data set.",
        f"Verified when this site was made: {counts[Status.RECOMPUTED]} recomputed (scores follow to the bit from "
        f"per-sample results), {counts[Status.SEALED]} sealed (unchanged, but not computed anew), "
        f"{counts[Status.UNVERIFIED]} unverified (too old to tell). None of these proves that a model made the "
        "results; the command on a row's page does.",
    ]
    if submissions.refused:
        lines.append(f"{_count(len(submissions.refused), 'run or bundle', 'runs or bundles')} refused; see Refused.")
    left_out = [f"{count} of {mark}" for mark, count in submissions.left_out.items() if count]
    lines += [f"Left out: {', '.join(left_out)}."] * bool(left_out)
    return Section(title="In short", note="\n".join(lines), lead=True)


def _count(number: int, name: str, several: str = "") -> str:
    return f"{number} {name if number == 1 else several or name + 's'}"


def pair_text(pair: Pair) -> str:
    """Return what a comparison concludes of the row it is seen from."""
    if pair.better is None:
        return "not told apart"
    return "better" if pair.better else "worse"
