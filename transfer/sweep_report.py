"""The report of a sweep: what became of its cells, and the parts that its YAML asks for. Text, and OUT/report.html."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backbones.errors import UserError
from backbones.files import write_atomic
from transfer.html import Section, page
from transfer.results import Run, Store
from transfer.sweep_file import SweepFile
from transfer.sweeping import Progress, Sweeper
from transfer.views import Wanted, as_markdown, sections

if TYPE_CHECKING:
    from transfer.stability import Searches

PAGE = "report.html"


def report(sweep: SweepFile, sweeper: Sweeper, searches: "Searches | None") -> str:
    """Writes the page and returns the tables as text. A part that cannot be had says why, and stops no other."""
    store = Store(sweeper.out / "runs")
    records = [progress.record for progress in sweeper.cells.values() if progress.record]
    runs = [Run(store.folder(record.run_id), record) for record in records]
    extra = [_cells(sweeper)]
    if searches:
        extra.append(Section(title="Largest stable rates", table=searches.table()))
    asked, missing = _asked(sweep, runs)
    brief = [*extra, *asked, *(sections(runs, runs, Wanted()) if runs else [])]
    whole = [*extra, *asked, *(sections(runs, runs, Wanted(everything=True, pictures=True)) if runs else [])]
    title = f"{sweep.name}, {sweep.tier}: {sweep.about}"
    write_atomic(sweeper.out / PAGE, page(title, whole, runs).encode())
    lines = [as_markdown(brief), *missing, f"page: {sweeper.out / PAGE}"]
    return "\n\n".join(lines)


def _asked(sweep: SweepFile, runs: Sequence[Run]) -> tuple[list[Section], list[str]]:
    """The parts that the sweep asks for, and why some cannot be had."""
    found: list[Section] = []
    missing: list[str] = []
    for wanted in _wanted(sweep):
        try:
            found += sections(runs, runs, wanted)
        except UserError as error:
            missing.append(f"not shown: {error}")
    return found, missing


def _wanted(sweep: SweepFile) -> list[Wanted]:
    said: dict[str, Any] = sweep.report
    found = [Wanted(paper=sweep.paper)] if sweep.paper else []
    found += [Wanted(compare=[(str(a), str(b))]) for a, b in said.get("compare", ())]
    found += [Wanted(interaction=tuple(said["interaction"]))] if "interaction" in said else []
    found += [Wanted(map=tuple(said["map"]), by=tuple(said.get("by", ())))] if "map" in said else []
    return [*found, *([Wanted(cost=True)] if said.get("cost") else [])]


def _cells(sweeper: Sweeper) -> Section:
    """How the cells ended: counts, and a row for each one without a score."""
    import pandas as pd

    everything = list(sweeper.cells.values())
    counts = Counter(progress.status for progress in everything)
    note = f"{len(everything)} cells: " + ", ".join(f"{count} {status}" for status, count in counts.most_common())
    rows = [_row(progress) for progress in everything if progress.status != "completed"]
    return Section(title="Cells", table=pd.DataFrame(rows) if rows else None, note=note)


def _row(progress: Progress) -> dict[str, str]:
    return {"cell": progress.cell.name, "end": progress.status, "why": progress.reason}
