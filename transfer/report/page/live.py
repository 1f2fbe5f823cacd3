"""What is not finished on a page that is served: the cells of a sweep, and runs with their loss and time left."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from transfer.records.progress import training_progress
from transfer.records.store import Unfinished
from transfer.report.figures.training_curves import loss_curves
from transfer.report.page.section_types import Section
from transfer.report.tables.table import Column, Row, Table
from transfer.sweep.definition.cell_states import CellState, is_running, read_states


def live_sections(unfinished: Sequence[Unfinished]) -> Iterator[Section]:
    """Yield the section of the runs without a record, and the losses of those under way."""
    if not unfinished:
        return
    counts = Counter(run.state for run in unfinished)
    note = ", ".join(f"{count} {state}" for state, count in counts.items())
    columns = [Column("loss", significant_digits=4), Column("minutes left", digits=0)]
    table = Table.from_rows(map(_row, unfinished), columns).without_empty()
    yield Section(title="Not finished", table=table, note=f"{note}.")
    under_way = [run.folder for run in unfinished if run.state == "under way"]
    if plot := loss_curves(under_way):
        yield Section(title="Under way: loss", plot=plot)


def _row(run: Unfinished) -> Row:
    cells: Row = {"run of": run.folder.name, "state": run.state}
    cells |= dict.fromkeys(("step", "epoch", "loss", "minutes left"))
    progress = training_progress(run.folder) if run.state == "under way" else None
    if progress is not None:
        of = f" of {progress.epochs:g}" if progress.epochs else ""
        left = None if progress.seconds_left is None else progress.seconds_left / 60
        cells |= {"step": progress.step, "loss": progress.loss, "epoch": f"{progress.epoch:.1f}{of}" if of else None}
        cells["minutes left"] = left
    return cells | {"reason": (run.reason.splitlines() or [""])[0]}


def sweep_section(out: Path) -> Section | None:
    """Return the cells of the sweep in a folder that are not completed; None if it holds no sweep."""
    states = read_states(out)
    if not states:
        return None
    running = is_running(out)
    shown = [state if running or state.status != "running" else _stopped(state) for state in states]
    counts = Counter(_word(state) for state in shown)
    told = ", ".join(f"{count} {word}" for word, count in counts.most_common())
    note = f"{len(states)} cells: {told}." + ("" if running else " No process runs the sweep now.")
    rows = [{"cell": cell.name, "state": _word(cell), "reason": cell.reason} for cell in shown if not _done(cell)]
    table = Table.from_rows(rows).without_empty() if rows else None
    return Section(title="Cells of the sweep", table=table, note=note)


def _stopped(state: CellState) -> CellState:
    return CellState(state.name, "interrupted", state.reason, state.run)


def _word(state: CellState) -> str:
    return {"waiting": "planned"}.get(state.status, state.status)


def _done(state: CellState) -> bool:
    return state.status == "completed"
