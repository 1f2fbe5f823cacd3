"""Writes the site of a leaderboard: an index, a page and an options file per row, a CSV per table."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from backbones.errors import UserError
from backbones.runtime.files import check_writable, parse_json, scraps_in, write_atomic
from backbones.runtime.scratch import remove_left
from transfer.comparison.paired_intervals import Bootstrap
from transfer.records.run_set import RunSet
from transfer.report.leaderboard.board import (
    ROWS,
    Board,
    board_section,
    boards,
    overview,
    refused_section,
    sources_section,
)
from transfer.report.leaderboard.row_page import options_file, options_name, row_sections
from transfer.report.leaderboard.submissions import Submission, Submissions, submissions
from transfer.report.page.html import page
from transfer.report.page.section_types import Section
from transfer.report.render.text import csv

FILES = "files.json"
"""Names of the files of a site, so that the next one removes those that it has no more."""
_NAME = re.compile(r"[A-Za-z0-9_+@,][A-Za-z0-9_.+@,-]*")


def write_site(
    paths: Sequence[Path],
    folder: Path,
    *,
    smoke: bool = False,
    dirty: bool = False,
    options: Bootstrap | None = None,
) -> Submissions:
    """Write the site of some bundles and folders of runs, and return what is on it.

    Args:
        paths: see `transfer.report.leaderboard.submissions.submissions`.
        folder: of the site; it is made, or holds an earlier site.
        smoke: whether smoke runs are shown.
        dirty: whether runs made with changed files of the suite are shown.
        options: settings of the intervals.

    Raises:
        UserError: a path holds no runs, no run can be shown, or the folder holds other files.
    """
    before = _files_before(folder)
    check_writable(folder, "--output")
    with ExitStack() as opened:
        sent = submissions(paths, opened)
        if not smoke:
            sent.leave_out("smoke", lambda record: record.smoke)
        if not dirty:
            sent.leave_out("dirty", lambda record: record.dirty)
        content = _site(sent, options)
        _list_files(folder, before | content.keys())  # first, so that a site which is cut short is known as one
        for name, data in content.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            remove_left(folder / name)
            write_atomic(folder / name, data, flag="--output")
    for name in before - content.keys():
        (folder / name).unlink(missing_ok=True)
    _list_files(folder, content.keys())
    return sent


def _list_files(folder: Path, names: Iterable[str]) -> None:
    remove_left(folder / FILES)
    write_atomic(folder / FILES, json.dumps(sorted(names), indent=1).encode(), flag="--output")


def _files_before(folder: Path) -> set[str]:
    """Return the files of the site that a folder holds. Raises UserError if it holds anything but a site."""
    if not folder.exists() or (folder.is_dir() and not {*folder.iterdir()} - {*scraps_in(folder)}):
        return set()
    try:
        names = parse_json((folder / FILES).read_text(encoding="utf-8"))
        return {name for name in names if ".." not in Path(name).parts and not Path(name).is_absolute()}
    except (OSError, ValueError, TypeError):
        raise UserError(
            f"--output {folder}: holds something else than a leaderboard of this command; name an empty folder"
        ) from None


def _site(sent: Submissions, options: Bootstrap | None) -> dict[str, bytes]:
    """Return the files of the site by their names."""
    by_run = {submission.run.record.run_id: submission for submission in sent.taken}
    runs = RunSet.of(submission.run for submission in by_run.values())
    made = boards(runs, options)
    sections = [overview(sent, made)]
    files: dict[str, bytes] = {}
    for board in made:
        section = board_section(board, by_run, runs)
        sections.append(section)
        if section.table is not None:
            files[f"{section.slug}.csv"] = f"{csv(section.table)}\n".encode()
        files |= _row_files(board, by_run, runs)
    refused = refused_section(sent)
    sections += [*([refused] if refused else []), sources_section(sent)]
    return {"index.html": _page("Leaderboard", sections, runs), **files}


def _row_files(board: Board, by_run: dict[str, Submission], runs: RunSet) -> dict[str, bytes]:
    files = {}
    for place, (row, name) in enumerate(zip(board.rows, board.names, strict=True)):
        parts = row_sections(board, place, by_run)
        title = f"{row.group.backbone} on the leaderboard"
        files[f"{ROWS}/{name}.html"] = _page(title, parts, runs.select(row.runs))
        for run in row.runs:
            if _NAME.fullmatch(run.record.run_id):
                files[f"{ROWS}/{options_name(run)}"] = options_file(run)
    return files


def _page(title: str, sections: Sequence[Section], runs: RunSet) -> bytes:
    return page(title, sections, runs).encode()
