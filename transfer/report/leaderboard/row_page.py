"""The page of one row of a leaderboard: its result, the command that repeats each run, and how it was verified."""

import shlex
from collections.abc import Iterator, Mapping

from backbones.errors import UserError
from backbones.settings import read_yaml, write_yaml
from transfer.records.store import OPTIONS, Run
from transfer.report.answer.sentences import interval_text as difference_text
from transfer.report.leaderboard.board import Board, arm_label, interval_text, pair_text, tie_text
from transfer.report.leaderboard.submissions import Submission
from transfer.report.page.section_types import Section
from transfer.report.tables.cell_values import Link
from transfer.report.tables.table import RUN, Column, Table
from transfer.share.strip_paths import PLACES, short_values

PRETRAIN = "pretrain-"


def row_sections(board: Board, place: int, submissions: Mapping[str, Submission]) -> list[Section]:
    """Return the sections of a row's page.

    Args:
        board: the board that has the row.
        place: of the row, from 0.
        submissions: each run's, by its id.
    """
    return [_result(board, place), _repeat(board, place), *_others(board, place), *_verified(board, place, submissions)]


def _result(board: Board, place: int) -> Section:
    row = board.rows[place]
    score = (
        f"{board.first.primary} {row.score:.2f} {interval_text(row)}".strip() if row.score == row.score else "no score"
    )
    seeds = len(row.arm.units)
    tie = tie_text(board, place)
    rank = f"Rank {row.rank} of {len(board.rows)}." if row.rank else f"No rank: {tie}." if tie else ""
    broken, of = row.arm.breakdowns
    lines = [f"{arm_label(row)}: {score}, {seeds} seed{'s' * (seeds != 1)}.", rank]
    lines += [f"{broken} of {of} trainings broke down."] * bool(broken)
    return Section(title=board.title, note="\n".join(filter(None, lines)), lead=True)


def _repeat(board: Board, place: int) -> Section:
    rows = []
    for run in sorted(board.rows[place].runs, key=lambda run: run.record.seed):
        record = run.record
        rows.append(
            {
                "seed": str(record.seed),
                board.first.primary: record.shown(record.primary) if record.primary in record.scores else None,
                "outcome": record.outcome["status"],
                "command": command(run),
                "options": Link(options_name(run), options_name(run)),
                RUN: (record.run_id,),
            }
        )
    files = [name for run in board.rows[place].runs for name in _needed(run)]
    needs = f"It needs {', '.join(dict.fromkeys(files))} of whoever made the run." if files else ""
    note = f"Download the options, then run the command; data is found as the guide says. {needs}"
    return Section(title="Repeat it", table=Table.from_rows(rows, [Column(board.first.primary)]), note=note)


def command(run: Run) -> str:
    """Return the command that repeats a run with its options; nothing of it is a text that its maker wrote."""
    task = run.record.task
    if task.startswith(PRETRAIN):
        return f"python -m transfer.pretrain {shlex.quote(options_name(run))}"
    name = run.record.user_code.get("task", {}).get("file", task)
    return f"python -m transfer.run {shlex.quote(name)} --config {shlex.quote(options_name(run))}"


def options_name(run: Run) -> str:
    """Return the name of the file with a run's options."""
    return f"{run.record.run_id}.yaml"


def options_file(run: Run) -> bytes:
    """Return the options that repeat a run, without paths and comments; those of the record if the file is missing."""
    try:
        options = read_yaml(run.folder / OPTIONS)
    except (UserError, OSError):
        options = run.record.options
    return write_yaml(short_values({name: value for name, value in options.items() if name not in PLACES})).encode()


def _needed(run: Run) -> Iterator[str]:
    """Yield the files of users that a run was made with, by their digests."""
    for part, sha in (run.record.backbone.get("files") or {}).items():
        yield f"the file of its {part} (sha256 {sha[:12]})"
    for part, code in run.record.user_code.items():
        yield f"the file of its {part} (sha256 {code['sha256'][:12]})"


def _others(board: Board, place: int) -> Iterator[Section]:
    """Yield the comparisons with the other rows."""
    rows = []
    for other, pair in sorted(board.rows[place].comparisons.items()):
        difference = difference_text(pair.row) if pair.row.estimate is not None else ""
        against = board.rows[other]
        first, second = (place, other) if pair.sign > 0 else (other, place)
        rows.append(
            {
                "against": Link(arm_label(against), f"{board.names[other]}.html"),
                "this row is": pair_text(pair),
                "difference": difference,
                "of": f"{arm_label(board.rows[first])} less {arm_label(board.rows[second])}" if difference else "",
                "p": pair.row.p,
            }
        )
    if rows:
        table = Table.from_rows(rows, [Column("p", significant_digits=2)]).without_empty()
        yield Section(title="Against the other rows", table=table)


def _verified(board: Board, place: int, submissions: Mapping[str, Submission]) -> Iterator[Section]:
    rows = []
    for run in board.rows[place].runs:
        submission = submissions[run.record.run_id]
        rows.append(
            {
                "verified": submission.status.value,
                "sources": ", ".join(submission.sources),
                "remarks": "; ".join(submission.notes),
                "started": str(run.record.environment.get("started") or ""),
                "device": str(run.record.environment.get("device") or ""),
                RUN: (run.record.run_id,),
            }
        )
    yield Section(title="Where it is from", table=Table.from_rows(rows).without_empty())
