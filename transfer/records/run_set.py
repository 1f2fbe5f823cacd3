"""Runs with the facts that every part of a report needs, computed once: lineage, marks, configurations. No torch."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from transfer.records.evidence import Evidence
from transfer.records.fields import is_baseline
from transfer.records.grouping import Group, grouped
from transfer.records.record import Record
from transfer.records.store import Run


@dataclass(frozen=True, eq=False)
class RunSet:
    """Some finished runs among all loaded runs.

    Attributes:
        runs: the runs that are shown or compared.
        known: all loaded runs, in which the training runs of weights are looked up.
    """

    runs: tuple[Run, ...] = ()
    known: tuple[Run, ...] = ()

    @classmethod
    def of(cls, runs: Iterable[Run], known: Iterable[Run] | None = None) -> "RunSet":
        """Return a set of runs; `known` is by default the runs themselves."""
        runs = tuple(runs)
        return cls(runs, runs if known is None else tuple(known))

    @classmethod
    def of_records(cls, records: Iterable[Record], known: Iterable[Record] | None = None) -> "RunSet":
        """Return a set of the runs of records whose folders do not matter; they get the runs' ids as names."""
        known_runs = None if known is None else [Run(Path(record.run_id), record) for record in known]
        return cls.of([Run(Path(record.run_id), record) for record in records], known_runs)

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        """Iterate over the runs in order."""
        return iter(self.runs)

    def __getitem__(self, index: int) -> Run:
        """Return the run at an index from 0."""
        return self.runs[index]

    @cached_property
    def records(self) -> list[Record]:
        """The runs' records."""
        return [run.record for run in self.runs]

    @cached_property
    def evidence(self) -> Evidence:
        """Lineage, units and lost pretrainings among all loaded runs."""
        return Evidence([run.record for run in self.known])

    @property
    def exports(self) -> dict[str, Record]:
        """The loaded runs that exported weights, by the id of the weights."""
        return self.evidence.exports

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks of the runs, in order of appearance."""
        return list(dict.fromkeys(record.task for record in self.records))

    def select(self, runs: Iterable[Run]) -> "RunSet":
        """Return a set of some of the runs, with the same loaded runs."""
        selected = RunSet(tuple(runs), self.known)
        selected.__dict__["evidence"] = self.evidence  # depends only on the loaded runs, so it is computed once
        return selected

    def where(self, keep: Callable[[Record], object]) -> "RunSet":
        """Return the runs whose records `keep` accepts, with the same loaded runs."""
        return self.select(run for run in self.runs if keep(run.record))

    def of_task(self, task: str) -> "RunSet":
        """Return the runs of one task, with the same loaded runs."""
        return self.where(lambda record: record.task == task)

    @cached_property
    def by_id(self) -> dict[str, Run]:
        """The runs by their ids."""
        return {run.record.run_id: run for run in self.runs}

    @cached_property
    def groups(self) -> list[Group]:
        """The configurations of the runs, the baseline first; runs of one configuration differ only in seeds."""
        groups = self.groups_of(self.records)
        return sorted(groups, key=lambda group: (group.dataset, not is_baseline(group.first), group.backbone))

    def groups_of(self, records: Sequence[Record], without: Collection[str] = ()) -> list[Group]:
        """Return the configurations among some of the records.

        Args:
            records: the records.
            without: options or fields of the backbone that do not separate rows, such as the axes of a map.
        """
        return grouped(records, self.exports, without)

    @cached_property
    def backbone_names(self) -> dict[str, str]:
        """The label of each run's backbone among the others, by the run's id."""
        return {record.run_id: group.backbone for group in self.groups for record in group.records}
