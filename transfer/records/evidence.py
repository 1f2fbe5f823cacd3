"""What runs are evidence of: which of them are independent, and which trainings never came to have a score.

Every table asks here what counts as one seed. Imports no torch.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transfer.cli.ignored_options import FROZEN
from transfer.records.protocol import by_export, configurations, lineage
from transfer.records.record import Record

RANDOM = "random"
Unit = tuple[str, Any]
"""What runs share that are not independent of each other: ("seed", 0), ("pretraining", 0) or ("weights", id)"""


@dataclass(frozen=True)
class Arm:
    """The runs of one configuration, or of one side of a comparison.

    Attributes:
        records: its runs, those that broke down as well.
        labels: the unit of each.
        lost: trainings like those that the runs start from, but for the seed, that broke down and left no weights.
        lost_labels: the unit of each.
    """

    records: list[Record]
    labels: list[Unit]
    lost: list[Record]
    lost_labels: list[Unit]

    @cached_property
    def units(self) -> dict[Unit, list[Record]]:
        """The runs of each unit that have a score; none where all that was tried broke down."""
        found: dict[Unit, list[Record]] = {label: [] for label in (*self.labels, *self.lost_labels)}
        for record, label in zip(self.records, self.labels, strict=True):
            found[label] += [] if record.training_failed else [record]
        return found

    @property
    def absent(self) -> list[Unit]:
        """A label for each training that broke down."""
        return [label for record, label in zip(self.records, self.labels) if record.training_failed] + self.lost_labels

    @property
    def broken(self) -> int:
        """Units without a score."""
        return sum(not runs for runs in self.units.values())

    @property
    def breakdowns(self) -> tuple[int, int]:
        """How many broke down, of how many: seeds, or trainings where some of a seed's have a score and some not."""
        partly = {label for label in self.absent if self.units[label]}
        return (len(self.absent), len(self.records) + len(self.lost)) if partly else (self.broken, len(self.units))

    def values(self, name: str) -> list[float]:
        """The score of each unit as tables print it: the mean over its runs."""
        found = ([run.shown(name) for run in runs if name in run.scores] for runs in self.units.values())
        return [math.fsum(scores) / len(scores) for scores in found if scores]

    def with_breakdowns(self, name: str) -> list[float]:
        """The same with each training that broke down at chance; empty where that is not known of the score."""
        level = chance(self.records[0], name, next((run.metrics for run in self.records if run.scores), {}))
        if level is None:
            return []
        found: dict[Unit, list[float]] = {label: [] for label in self.units}
        scale = self.records[0].scale(name)
        for label, runs in self.units.items():
            found[label] += [run.shown(name) for run in runs if name in run.scores]
        for label in self.absent:
            found[label].append(scale * level)
        return [math.fsum(scores) / len(scores) for scores in found.values() if scores]


@dataclass(frozen=True)
class Evidence:
    """All records at hand, with what each says of others."""

    known: Sequence[Record]

    @classmethod
    def of(cls, records: Sequence[Record], known: Iterable[Record] | None = None) -> "Evidence":
        """Args: known: where the runs are looked for that weights come from; by default `records`."""
        return cls(records if known is None else list(known))

    @cached_property
    def exports(self) -> dict[str, Record]:
        """See `transfer.records.protocol.by_export`."""
        return by_export(self.known)

    def lineage(self, record: Record) -> list[Record]:
        """The runs that a record's weights come from, the last one first."""
        return lineage(record, self.exports)

    def arm(self, records: Sequence[Record]) -> Arm:
        """Runs of one configuration with their units.

        The unit is the training that comes first among those of which there are several, looking from the weights that
        all began with: pretrainings if there are several (so that fine-tunings of one are one unit), else trainings
        that followed, else the task's own seeds. Seeds that change nothing make one unit.
        """
        lost = self.lost(records)
        paths = [self._path(record) for record in records]
        paths += [[*self._path(record), (f"lost {record.run_key}", record.seed)] for record in lost]
        labels = _of_trainings(paths) or [_of_seed(record) for record in records]
        return Arm(list(records), labels[: len(records)], lost, labels[len(records) :])

    def lost(self, records: Iterable[Record]) -> list[Record]:
        """Trainings like those that these runs start from, but for the seed, that broke down and left no weights.

        One of changed files of the suite counts where any of these runs, or of what they start from, is of such, too.
        """
        records = list(records)
        before = list({run.run_key: run for record in records for run in self.lineage(record)}.values())
        if not before or not self._breakdowns:
            return []
        alike = set(configurations(before, self.exports))
        own, dirty = {record.run_key for record in records}, any(record.dirty for record in (*records, *before))
        found = [one for one, key in self._breakdowns if key in alike and one.run_key not in own]
        return [one for one in found if dirty or not one.dirty]

    @cached_property
    def _breakdowns(self) -> list[tuple[Record, str]]:
        broken = [record for record in self.known if record.training_failed]
        return list(zip(broken, configurations(broken, self.exports), strict=True))

    def _path(self, record: Record) -> "list[_Step]":
        """The trainings that a run's weights come from, the first one first: their weights and their seeds."""
        if chain := self.lineage(record):
            return [(str(run.export), run.seed) for run in reversed(chain)]
        return [] if record.weights_id == RANDOM else [(record.weights_id, record.origin.get("seed"))]


_Step = tuple[str, Any]


def _of_trainings(paths: Sequence[Sequence[_Step]]) -> list[Unit]:
    """The units by the first step that is not the same in all; empty where there is none."""
    for depth in range(max(map(len, paths), default=0)):
        steps = [path[depth] if depth < len(path) else (RANDOM, None) for path in paths]
        weights = {name for name, _ in steps}
        if len(weights) < 2:
            continue
        seeds = {name: seed for name, seed in steps if seed is not None}
        told = len(seeds) == len(weights) == len({*seeds.values()})
        return [("pretraining", seed) if told else ("weights", name) for name, seed in steps]
    return []


def _of_seed(record: Record) -> Unit:
    return ("seed", record.seed) if is_seeded(record) else ("weights", record.weights_id)


def is_seeded(record: Record) -> bool:
    """Whether a run of another seed can have another score; what trains nothing draws nothing by the seed either."""
    return record.task not in FROZEN or record.weights_id == RANDOM or bool(record.untrained)


def chance(record: Record, name: str, metrics: dict[str, dict[str, Any]]) -> float | None:
    """What a score is worth where a training broke down: that of guessing among the classes; 0 where it is not known.

    None of scores that are no fractions, or of which less is better.

    Args:
        record: of the data set in question.
        metrics: of a record that has the score.
    """
    metric = metrics.get(name, {})
    if metric.get("unit", "fraction") != "fraction" or metric.get("direction", "higher") != "higher":
        return None
    counts = (record.dataset.get("counts") or {}).values()
    classes = [split["classes"] for split in counts if isinstance(split, dict) and split.get("classes")]
    top = re.fullmatch(r"(?:best_|knn_)?top(\d+)(?:_k\d+)?|accuracy_\w+", name)
    return min(int(top[1] or 1) / classes[-1], 1.0) if top and classes else 0.0
