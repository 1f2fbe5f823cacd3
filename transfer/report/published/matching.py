"""Own runs for published cells: which run belongs to which row, and what keeps their numbers apart. Imports no torch.

A run belongs to a cell by its task, its data set or one that stands in for it, and the row's options; of the training
that its weights come from, the row's parts of the backbone must be the same. Whatever else differs from the full tier
of the table's sweep, and so from the recipe behind it, makes its number not comparable, and is named
(`transfer.report.published.differences`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from backbones.spec import FIELDS
from transfer.published.reasons import Reason, UnknownPretraining
from transfer.published.rows import Paper, Row, Value
from transfer.records.protocol import lineage
from transfer.records.record import Record
from transfer.report.published.differences import (
    marks,
    of_backbone,
    of_data,
    of_downloads,
    of_options,
    of_precision,
    of_processes,
    of_version,
    of_weights,
    unstated_processes,
)
from transfer.report.published.expected import expected_backbone, expected_options, expects_volo
from transfer.report.published.option_readings import Reading, is_volo, reading_of
from transfer.sweep.definition.step import Step
from transfer.sweep.definition.sweep_file import SweepFile


@dataclass(frozen=True)
class PublishedMatch:
    """A run that belongs to a cell.

    Attributes:
        record: of the run.
        reasons: why its number cannot be compared; empty where it can.
        reading: which reading of the row's printed options it has.
        processes: how many processes it had, where that matters and the table states none; None elsewhere.
    """

    record: Record
    reasons: tuple[Reason, ...]
    reading: Reading = ()
    processes: int | str | None = None


@dataclass(frozen=True)
class Matcher:
    """Finds the runs of a cell among records.

    Attributes:
        sweep: the table's, at its full tier.
        paper: what it says of data sets and options.
        exports: the runs that left weights, by the id of these.
        records: of the runs to choose from.
    """

    sweep: SweepFile
    paper: Paper
    exports: Mapping[str, Record]
    records: Sequence[Record] = field(repr=False)

    @cached_property
    def _by_task(self) -> dict[tuple[str, str], list[Record]]:
        records: dict[tuple[str, str], list[Record]] = {}
        for record in self.records:
            records.setdefault((record.task, str(record.dataset.get("name"))), []).append(record)
        return records

    @cached_property
    def _tasks(self) -> dict[str, str]:
        return {name: step.task for name, step in self.sweep.steps.items()}

    def of(self, row: Row, value: Value) -> list[PublishedMatch]:
        """Return the runs of one cell."""
        step = self.sweep.steps[value.step]
        names = (value.dataset, *self.paper.stand_ins.get(value.dataset, ()))
        records = [record for name in names for record in self._by_task.get((self._tasks[step.name], name), ())]
        matches = [self._match(record, row, step, value) for record in records if row.steps]
        return [match for match in matches if match is not None]

    def broken_before(self, row: Row, step: Step) -> list[PublishedMatch]:
        """Return the breakdowns of the training that a cell's weights would have come from."""
        parent = self.sweep.steps.get(step.after or "")
        if parent is None:
            return []
        records = [
            record
            for (task, _), of_task in self._by_task.items()
            if task == self._tasks[parent.name]
            for record in of_task
        ]
        matches = [
            self._broken(record, row, parent) for record in records if record.training_failed and record.backbone
        ]
        return [match for match in matches if match is not None]

    def _broken(self, record: Record, row: Row, parent: Step) -> PublishedMatch | None:
        reading, chain = reading_of(record, row.steps.get(parent.name, {})), lineage(record, self.exports)
        behind = self._behind(record, chain, row, parent) if reading is not None else None
        if reading is None or behind is None:
            return None
        reasons = [*marks([record, *chain]), *self._unlike(record, row, parent), *behind]
        return PublishedMatch(record, tuple(dict.fromkeys(reasons)), reading)

    def _match(self, record: Record, row: Row, step: Step, value: Value) -> PublishedMatch | None:
        given = row.steps.get(step.name, {})
        reading = reading_of(record, given)
        if reading is None or is_volo(record) != expects_volo(self.sweep, step):
            return None
        chain = lineage(record, self.exports)
        behind = self._behind(record, chain, row, step)
        if behind is None:
            return None
        reasons = marks([record, *chain]) + of_data(record, [value.dataset], self.paper.versions)
        reasons += self._not_as_run(record, row, step) + behind
        return PublishedMatch(record, tuple(dict.fromkeys(reasons)), reading, unstated_processes(record, step))

    def _not_as_run(self, record: Record, row: Row, step: Step) -> list[Reason]:
        """What a run has otherwise than a step of the table, but for its data set and its weights."""
        options, backbone = expected_options(step, row), expected_backbone(self.sweep, step, row.steps)
        needs, left_open = self.paper.needs.get(step.name, {}), self.paper.open.get(step.name, ())
        compared = {name: value for name, value in options.items() if name not in needs}
        reasons = of_version(record) + of_downloads(record, needs) + of_options(record, compared, left_open)
        reasons += of_backbone(record, backbone, frozenset(row.steps.get(step.name, ())))
        return reasons + of_precision(record, options) + of_processes(record, step)

    def _behind(self, record: Record, chain: Sequence[Record], row: Row, step: Step) -> list[Reason] | None:
        """Why the weights that a run starts from are not the table's; None where they belong to another row."""
        parent = self.sweep.steps.get(step.after or "")
        if parent is None:
            left_open = "weights" in self.paper.open.get(step.name, ())
            return of_weights(record, step, row, trained=bool(chain), left_open=left_open)
        given = row.steps.get(parent.name, {})
        parts = {name: option for name, option in given.items() if name in FIELDS}
        if not chain:
            return [UnknownPretraining(record.weights_id)] if reading_of(record, parts) is not None else None
        if chain[0].task != self._tasks[parent.name] or reading_of(chain[0], parts) is None:
            return None
        behind = self._behind(chain[0], chain[1:], row, parent)
        if behind is None:
            return None
        return self._unlike(chain[0], row, parent) + behind

    def _unlike(self, record: Record, row: Row, parent: Step) -> list[Reason]:
        """What a training behind a cell has otherwise than the table's."""
        reasons = of_data(record, parent.dataset, self.paper.versions) + self._not_as_run(record, row, parent)
        return [reason.of_step(parent.name) for reason in reasons]
