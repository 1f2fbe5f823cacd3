"""The report of a sweep as text and as OUT/report.html: how its jobs ended, and the sections that its YAML names."""

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from transfer.core.errors import UserError
from transfer.core.files import write_atomic
from transfer.experiments.grid import result_file
from transfer.experiments.sweep_file import SweepFile
from transfer.measure.ratios import CostRatios
from transfer.records.baselines import NOTE, copied_from
from transfer.records.record import Record
from transfer.records.run_set import StoredRuns
from transfer.records.store import Store, StoredRun, read_result
from transfer.report.formats import as_text
from transfer.report.page.html import Section, page
from transfer.report.sections import ReportRequest, sections
from transfer.report.tables.pivot import pivot_tables
from transfer.report.tables.table import Table
from transfer.report.tables.text import terminal
from transfer.sweep.earlier_results import read_record
from transfer.sweep.lr_search import Searches
from transfer.sweep.runner import Sweeper

PAGE = "report.html"
EQUAL = "All variants have the same images, epochs and learning rates, not the same cost:"
EQUAL_FLOPS = "All variants have the same images, learning rates and FLOPs in pretraining, not the same epochs ({}):"
ENOUGH = 3
"""Seeds from which on the intervals say how training runs vary."""


@dataclass
class SweepReport:
    """The report of a sweep, as text and as a page. A section that cannot be made is replaced by the reason."""

    sweep: SweepFile
    sweeper: Sweeper
    searches: Searches | None
    ratios: CostRatios
    """Costs of the variants that are compared; kept in the folder of the sweep, so that none is measured twice."""
    missing: list[str] = field(default_factory=list)

    @cached_property
    def runs(self) -> StoredRuns:
        """Runs of the jobs, without duplicates."""
        out, records = self.sweeper.out, dict[str, Record]()
        for progress in self.sweeper.jobs.values():
            if progress.record:
                records[progress.record.run_id] = progress.record
                result = read_result(result_file(out, progress.job.name))
                for name in result.runs if result else ():  # those of `--test-dataset`, too
                    if name not in records and (record := read_record(out, name)):
                        records[name] = record
        store = Store(out / "runs")
        return StoredRuns.of(StoredRun(store.folder(name), record) for name, record in records.items())

    @cached_property
    def of_jobs(self) -> list[Section]:
        """Sections on the jobs: how they ended, and results of searches."""
        parts = [_jobs(self.sweeper), *_origins(self.sweeper)]
        return parts + ([Section(title="Largest stable rates", table=self.searches.table())] if self.searches else [])

    @cached_property
    def requested(self) -> list[tuple[dict[str, Any], list[Section]]]:
        """The requests of the sweep's YAML that can be met, with their sections; `missing` says why others cannot."""
        met = []
        for options in _requests(self.sweep) if len(self.runs) or self.sweep.paper else ():
            try:
                met.append((options, sections(self.runs, ReportRequest(**options, ratios=self.ratios, brief=True))))
            except UserError as error:
                self.missing.append(f"not shown: {error}")
        return met

    def text(self) -> str:
        """Return the result for a terminal.

        Of variants that the command compares these are the verdict and the cost of each comparison, the means, and how
        to add seeds; of other sweeps the sections that their YAML names, or else the means.
        """
        parts = list(chain.from_iterable(shown for _, shown in self.requested))
        compares = self.sweep.vary is not None
        tables = pivot_tables(self.runs, cost=compares) if len(self.runs) else []
        means = [Section(title="Means", table=table) for table in tables]
        if not compares:
            shown = [*self.of_jobs, *(parts or ([] if self.searches else means))]
            return "\n\n".join([as_text(shown, "terminal"), *self.missing])
        sentences = list[str]()
        for first, *others in (part.note.splitlines() for part in parts if part.lead):
            sentences += [first, *(line for line in others if line.startswith(("- ", "Cost:")))]
        equal = EQUAL_FLOPS.format(self.sweep.epochs_text) if self.sweep.epochs else EQUAL
        ended = f"{self.of_jobs[0].note}."
        lines = [f"{ended} {equal}" if tables else ended, *sentences, *self.missing]
        lines += [*map(terminal, tables), self.more_seeds]
        return "\n".join(filter(None, lines))

    @property
    def more_seeds(self) -> str:
        """Advice to train every variant with more seeds; empty where they have enough."""
        seeds = next((step.seeds for step in self.sweep.steps.values() if step.after is None), None) or (0,)
        if self.sweep.vary is None or len(seeds) >= ENOUGH:
            return ""
        return f"For intervals over training runs, add --seeds {' '.join(map(str, range(ENOUGH)))} to the command."

    def write_page(self) -> Path:
        """Write everything that can be shown to OUT/report.html. Raises UserError."""
        options: dict[str, Any] = {"compare": ()}
        for of_request, _ in self.requested:
            options |= of_request | {"compare": (*options["compare"], *of_request.get("compare", ()))}
        request = ReportRequest(**options, everything=True, pictures=True, ratios=self.ratios)
        parts = sections(self.runs, request) if len(self.runs) else []
        if self.more_seeds and parts:
            parts[0] = replace(parts[0], reading="\n".join([parts[0].reading, self.more_seeds]))
        folded = [part for part in parts if part.folded]
        parts = [*(part for part in parts if not part.folded), *self.of_jobs, *folded]
        parts += [Section(title="Not shown", note="\n".join(self.missing))] if self.missing else []
        tier = f", {self.sweep.tier}" if self.sweep.tiers else ""
        content = page(f"{self.sweep.name}{tier}: {self.sweep.about}", parts, self.runs)
        self.ratios.write(self.sweeper.out)
        write_atomic(self.sweeper.out / PAGE, content.encode())
        return self.sweeper.out / PAGE


def _requests(sweep: SweepFile) -> list[dict[str, Any]]:
    """Return the fields of a `ReportRequest` for each section that the sweep's YAML names."""
    options: dict[str, Any] = sweep.report
    requests: list[dict[str, Any]] = [dict(zip(("paper", "table"), sweep.paper, strict=True))] if sweep.paper else []
    requests += [{"compare": (str(a), str(b))} for a, b in options.get("compare", ())]
    if "interaction" in options:
        requests.append({"interaction": tuple(options["interaction"])})
    if "heatmap" in options:
        requests.append({"heatmap": tuple(options["heatmap"]), "by": tuple(options.get("by", ()))})
    if options.get("cost"):
        requests.append({"cost": True})
    return requests


def _origins(sweeper: Sweeper) -> list[Section]:
    """Return a section on a sweep with baselines: where each variant's runs come from, and why some were not copied."""
    rows, notes = Counter[tuple[str, ...]](), dict[str, None]()
    for progress in sweeper.jobs.values():
        if record := progress.record:
            source = copied_from(sweeper.out / "runs" / record.run_id)
            environment = record.environment
            versions = f"torch {environment['versions']['torch']}, suite {str(environment['git'])[:8]}"
            facts = (str(environment["device"]), versions, str(environment["started"])[:10])
            rows[(progress.job.title.rpartition(", seed")[0], source or "this sweep", *facts)] += 1
            notes |= dict.fromkeys(note for note in record.notes if note.startswith(NOTE) and not source)
    if not notes and all(source == "this sweep" for _, source, *_ in rows):
        return []
    names = ("job", "from", "device", "versions", "started")
    table = Table.from_rows([dict(zip(names, row, strict=True)) | {"runs": count} for row, count in rows.items()])
    return [Section(title="Where the runs come from", table=table, note="\n".join(notes))]


def _jobs(sweeper: Sweeper) -> Section:
    """Return a section with counts of how the jobs ended and a row for each one without a result."""
    jobs = list(sweeper.jobs.values())
    counts = Counter(progress.status for progress in jobs)
    note = f"{len(jobs)} jobs: " + ", ".join(f"{count} {status}" for status, count in counts.most_common())
    without = [progress for progress in jobs if progress.status != "completed"]
    rows = [{"job": progress.job.title, "status": progress.status, "reason": progress.reason} for progress in without]
    return Section(title="Jobs", table=Table.from_rows(rows) if rows else None, note=note)
