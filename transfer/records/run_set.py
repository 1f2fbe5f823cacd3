"""`RunSet`: runs with what every part of a report needs to know of them, worked out once. Imports no torch."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transfer.records.evidence import Evidence
from transfer.records.grouping import Grouping, grouped, marks
from transfer.records.record import Record
from transfer.records.store import Run


@dataclass(frozen=True, eq=False)
class RunSet:
    """Some finished runs among all those at hand.

    Attributes:
        runs: what is shown or compared.
        known: all runs at hand, among which the trainings are looked for that weights come from.
    """

    runs: tuple[Run, ...]
    known: tuple[Run, ...]

    @classmethod
    def of(cls, runs: Iterable[Run], known: Iterable[Run] | None = None) -> "RunSet":
        """Args: known: by default the runs themselves."""
        runs = tuple(runs)
        return cls(runs, runs if known is None else tuple(known))

    @classmethod
    def of_records(cls, records: Iterable[Record], known: Iterable[Record] | None = None) -> "RunSet":
        """The same of records whose folders do not matter: they are named by the runs' ids."""
        whole = None if known is None else [Run(Path(record.run_id), record) for record in known]
        return cls.of([Run(Path(record.run_id), record) for record in records], whole)

    def __len__(self) -> int:
        """The number of runs."""
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        """The runs in order."""
        return iter(self.runs)

    def __getitem__(self, place: int) -> Run:
        """The run at a place, from 0."""
        return self.runs[place]

    @cached_property
    def records(self) -> list[Record]:
        """The runs' records."""
        return [run.record for run in self.runs]

    @cached_property
    def evidence(self) -> Evidence:
        """What the runs at hand say of each other: lineage, units, lost pretrainings."""
        return Evidence([run.record for run in self.known])

    @property
    def exports(self) -> dict[str, Record]:
        """The runs at hand that left weights, by the id of these."""
        return self.evidence.exports

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks of the runs, in order of appearance."""
        return list(dict.fromkeys(record.task for record in self.records))

    def select(self, runs: Iterable[Run]) -> "RunSet":
        """Some of the runs, with the same ones at hand."""
        part = RunSet(tuple(runs), self.known)
        part.__dict__["evidence"] = self.evidence  # what is at hand is the same, so it is worked out once
        return part

    def where(self, keep: Callable[[Record], object]) -> "RunSet":
        """The runs whose records `keep` accepts, with the same ones at hand."""
        return self.select(run for run in self.runs if keep(run.record))

    def of_task(self, task: str) -> "RunSet":
        """The runs of one task."""
        return self.where(lambda record: record.task == task)

    @cached_property
    def folders(self) -> dict[str, Path]:
        """The folders of the runs, by their ids."""
        return {run.record.run_id: run.folder for run in self.runs}

    @cached_property
    def grouping(self) -> Grouping:
        """The runs by configuration, in order of appearance: those of one differ in seeds alone."""
        return self.grouping_of(self.records)

    def grouping_of(self, records: Sequence[Record], without: Collection[str] = ()) -> Grouping:
        """The configurations among some of the records.

        Args:
            without: options or fields of the backbone that do not tell rows apart, as a map's axes.
        """
        return grouped(records, self.exports, without)

    @cached_property
    def backbone_names(self) -> dict[str, str]:
        """What each run's backbone is called beside the others, by the run's id."""
        return {record.run_id: group.backbone for group in self.grouping.groups for record in group.records}

    def marks(self, records: Sequence[Record]) -> list[str]:
        """What marks some of the records: "smoke", "dirty", "pretraining smoke" and so on."""
        return marks(records, self.exports)
