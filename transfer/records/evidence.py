"""Counts independent runs: which runs share a seed or a pretraining, and which training runs failed without a score.

Every table takes its units from here. Imports no torch.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from typing import Any, NamedTuple

from transfer.core.grouped import grouped_by, values_by_key
from transfer.engine import outcome
from transfer.records.fields import value_of
from transfer.records.protocol import PRETRAINING, by_export, configurations, lineage, trains
from transfer.records.record import STATUSES, Record

RANDOM = "random"
SCORE_AT_CHANCE = "score_at_chance"
"""What maps and searches call a training that completed with a score that is not above chance."""
BREAKDOWNS: tuple[str, ...] = (*(status for status in STATUSES if status not in outcome.SCORED), SCORE_AT_CHANCE)
"""Outcomes of trainings that did not train, the worst first."""
Unit = tuple[str, Any]
"""The source of randomness that dependent runs share: ("seed", 0), ("pretraining", 0) or ("weights", id)."""


@dataclass(frozen=True)
class Arm:
    """The runs of one configuration, or of one variant of a comparison.

    Attributes:
        records: the records of all runs, including those that failed.
        labels: the unit of each run.
        lost: pretrainings of the same configuration that failed and left no weights to start from.
        lost_labels: the unit of each lost pretraining.
    """

    records: list[Record]
    labels: list[Unit]
    lost: list[Record]
    lost_labels: list[Unit]

    @cached_property
    def units(self) -> dict[Unit, list[Record]]:
        """The runs with a score of each unit; an empty list if all trainings of the unit failed."""
        units: dict[Unit, list[Record]] = {label: [] for label in (*self.labels, *self.lost_labels)}
        for record, label in zip(self.records, self.labels, strict=True):
            units[label] += [] if record.training_failed else [record]
        return units

    @property
    def absent(self) -> list[Unit]:
        """The unit of each training run that failed."""
        return [label for record, label in zip(self.records, self.labels) if record.training_failed] + self.lost_labels

    @property
    def broken(self) -> int:
        """Units without a score."""
        return sum(not runs for runs in self.units.values())

    @property
    def above_chance(self) -> bool:
        """Whether some run of the variant scores above chance, or may."""
        return any(ending(run) in outcome.SCORED and scores_above_chance(run) is not False for run in self.records)

    @property
    def breakdowns(self) -> tuple[int, int, int]:
        """How many failed, how many were judged, and how many were not.

        They are units, or trainings if a unit has both some that failed and some that did not.
        """
        if any(self.units[label] for label in self.absent):
            unjudged = sum(record.not_judged for record in self.records)
            return len(self.absent), len(self.records) + len(self.lost) - unjudged, unjudged
        with_runs = filter(None, self.units.values())
        unjudged = sum(all(run.not_judged for run in runs) for runs in with_runs)
        return self.broken, len(self.units) - unjudged, unjudged

    @property
    def endings(self) -> dict[Unit, str]:
        """How each unit ended, those that were lost with their pretraining, too."""
        labelled = zip(self.labels + self.lost_labels, map(ending, self.records + self.lost), strict=True)
        return {label: commonest(of_label) for label, of_label in values_by_key(labelled).items()}

    def of_units(self, units: Iterable[Unit]) -> "Arm":
        """Return the runs of some units."""
        kept, kept_lost = ([label in units for label in labels] for labels in (self.labels, self.lost_labels))
        runs, lost = [*compress(self.records, kept)], [*compress(self.lost, kept_lost)]
        return Arm(runs, [*compress(self.labels, kept)], lost, [*compress(self.lost_labels, kept_lost)])

    def values(self, name: str) -> list[float]:
        """Return the score of each unit in the unit that tables print: the mean over its runs."""
        return list(self.by_unit(_shown(name)).values())

    def with_breakdowns(self, name: str) -> dict[Unit, float]:
        """Return `values` by unit with training runs that failed scored at chance; empty if that level is not known."""
        record = next((run for run in self.records if run.scores), self.records[0])
        level = chance(record, name)
        return {} if level is None else self.by_unit(_shown(name), [record.scale(name) * level])

    def by_unit(self, value: Callable[[Record], float | None], of_absent: Sequence[float] = ()) -> dict[Unit, float]:
        """Return the mean of a value over each unit's runs, and over `of_absent` for each of its runs that failed."""
        means, absent = dict[Unit, float](), self.absent
        for label, runs in self.units.items():
            values = [known for known in map(value, runs) if known is not None]
            values += absent.count(label) * [*of_absent]
            if values:
                means[label] = math.fsum(values) / len(values)
        return means


def _shown(name: str) -> Callable[[Record], float | None]:
    return lambda record: record.shown(name) if name in record.scores else None


class Cell(NamedTuple):
    """The runs of one configuration with one value of some fields.

    Attributes:
        values: value of each field.
        variant: the runs with their units; the lost pretrainings are among these where a field is one of theirs.
        lost: lost pretrainings that are no units of the cell.
    """

    values: tuple[Any, ...]
    variant: Arm
    lost: list[Record]


@dataclass(frozen=True)
class Evidence:
    """All loaded records (`known`), with their lineage and the units that they form."""

    known: Sequence[Record]

    @cached_property
    def exports(self) -> dict[str, Record]:
        """The runs that left weights by the id of these; see `transfer.records.protocol.by_export`."""
        return by_export(self.known)

    def lineage(self, record: Record) -> list[Record]:
        """Return the trainings that a record's weights come from, the last one first."""
        return lineage(record, self.exports)

    def variant(self, records: Sequence[Record]) -> Arm:
        """Return the runs of one configuration with their units.

        The units are the first trainings, counted from the earliest weights, of which there are several: pretrainings
        if there are several (fine-tunings of one pretraining are one unit), else the trainings that followed, else
        the seeds of the task. Seeds that change nothing form one unit; of a user's task those that changed no score.
        """
        lost = self.lost(records)
        paths = [self._path(record) for record in records]
        paths += [[*self._path(record), (f"lost {record.run_key}", record.seed)] for record in lost]
        by_users_task = any("task" in record.user_code for record in records)
        varies = by_users_task and any(record.scores != records[0].scores for record in records)
        labels = _units_of_paths(paths) or [
            ("seed", record.seed) if varies or is_seeded(record) else ("weights", record.weights_id)
            for record in records
        ]
        return Arm(list(records), labels[: len(records)], lost, labels[len(records) :])

    def cells(self, records: Sequence[Record], names: Sequence[str]) -> list[Cell]:
        """Return the runs of one configuration by their values of some fields.

        Units are those of all these runs together; where a field is one of the backbone or of its pretraining, which
        it may have caused to fail, those of each cell.
        """
        parts = set(chain.from_iterable(record.backbone for record in records))
        of_before = any(name.startswith(PRETRAINING) or name in parts for name in names)
        whole, cells = self.variant(records), list[Cell]()
        label_of = {id(record): label for record, label in zip(records, whole.labels, strict=True)}

        def values_of(record: Record) -> tuple[Any, ...]:
            return tuple(value_of(record, name, self.exports) for name in names)

        for values, members in grouped_by(records, values_of).items():
            labels = [label_of[id(record)] for record in members]
            lost = [record for record, label in zip(whole.lost, whole.lost_labels) if label not in labels]
            by_whole = Cell(values, Arm(members, labels, [], []), lost)
            cells.append(Cell(values, self.variant(members), []) if of_before else by_whole)
        return cells

    def lost(self, records: Iterable[Record]) -> list[Record]:
        """Return the trainings in the configurations that these runs start from that failed and left no weights.

        A training by modified code counts only if one of these runs, or of their pretrainings, is by modified code.
        """
        records = list(records)
        parents = {run.run_key: run for record in records for run in self.lineage(record)}
        if not parents or not self._breakdowns:
            return []
        parent_configurations = set(configurations([*parents.values()], self.exports))
        run_keys = {record.run_key for record in records}
        failed = [run for run, configuration in self._breakdowns if configuration in parent_configurations]
        lost = [run for run in failed if run.run_key not in run_keys]
        dirty = any(record.dirty for record in (*records, *parents.values()))
        return lost if dirty else [run for run in lost if not run.dirty]

    @cached_property
    def _breakdowns(self) -> list[tuple[Record, str]]:
        broken = [record for record in self.known if record.training_failed]
        return list(zip(broken, configurations(broken, self.exports), strict=True))

    def _path(self, record: Record) -> "list[_Step]":
        """Return the weights and the seed of each training that a run's weights come from, the earliest one first."""
        if chain := self.lineage(record):
            return [(str(run.export), run.seed) for run in reversed(chain)]
        return [] if record.weights_id == RANDOM else [(record.weights_id, record.origin.get("seed"))]


_Step = tuple[str, Any]


def _units_of_paths(paths: Sequence[Sequence[_Step]]) -> list[Unit]:
    """Return the units by the first step that differs between the paths; empty if none does."""
    for depth in range(max(map(len, paths), default=0)):
        steps = [path[depth] if depth < len(path) else (RANDOM, None) for path in paths]
        weights = {name for name, _ in steps}
        if len(weights) < 2:
            continue
        seeds = {name: seed for name, seed in steps if seed is not None}
        named_by_seed = len(seeds) == len(weights) == len({*seeds.values()})
        return [("pretraining", seed) if named_by_seed else ("weights", name) for name, seed in steps]
    return []


def is_seeded(record: Record) -> bool:
    """Return whether another seed can change the score; a task that trains nothing draws nothing by the seed."""
    return trains(record.options) or record.weights_id == RANDOM or bool(record.untrained)


def is_untrained(record: Record) -> bool:
    """Return whether a run starts from random weights in the place of pretrained ones."""
    return record.weights_id == RANDOM and not record.task.startswith("pretrain-")


def ending(record: Record) -> str:
    """Return how maps and searches count a training: its status, or `SCORE_AT_CHANCE` for one that completed so."""
    return SCORE_AT_CHANCE if record.status == "completed" and scores_above_chance(record) is False else record.status


def commonest(endings: Iterable[str]) -> str:
    """Return the commonest failure if at least half of the training runs checked failed, otherwise `completed`.

    Of equally common ones it is the worst. `not_judged` if none was judged.
    """
    counts = Counter(endings)
    if not (judged := counts.total() - counts["not_judged"]):
        return "not_judged"
    if 2 * counts["completed"] > judged:
        return "completed"
    return max(BREAKDOWNS, key=lambda kind: counts[kind])


def scores_above_chance(record: Record) -> bool | None:
    """Return whether the primary score is above that of guessing, see `transfer.engine.outcome.above_chance`.

    If the number of test images is not recorded, the scores alone are compared. None without a score
    or a chance level (mAP, a single class).
    """
    level, score = chance(record, record.primary), record.scores.get(record.primary)
    if score is None or not level or level >= 1:
        return None
    images = _test_set(record).get("images")
    return outcome.above_chance(score, level, images) if images else score > level


def chance(record: Record, name: str) -> float | None:
    """Return the score of guessing among the classes, for a training run that failed; 0 if that is not known.

    None is returned for scores that are no fractions, or of which less is better.

    Args:
        record: a record on the dataset in question, with the score if any has it.
        name: the name of the score.
    """
    metric = record.metrics.get(name, {})
    if metric.get("unit", "fraction") != "fraction" or metric.get("direction", "higher") != "higher":
        return None
    classes = _test_set(record).get("classes")
    top = re.fullmatch(r"(?:best_|knn_|macro_)?top(\d+)(?:_k\d+)?|(?:macro_)?accuracy(?:_\w+)?", name)
    return min(int(top[1] or 1) / classes, 1.0) if top and classes else 0.0


def informative(record: Record) -> list[str]:
    """Return the scores of a run without those that are always 1, as top5 of five classes, and without a macro average
    that equals the score, as where all classes have as many images.
    """
    always_1 = {name for name in record.scores if chance(record, name) == 1} - {record.primary}
    names = [name for name in record.scores if name not in always_1]
    plain = {f"macro_{name}": score for name, score in record.scores.items()}
    return [name for name in names if not math.isclose(plain.get(name, -1), record.scores[name], abs_tol=1e-9)]


def _test_set(record: Record) -> dict[str, int]:
    """Return the recorded numbers of images and classes of the last split with classes; empty if there is none."""
    counts = (record.dataset.get("counts") or {}).values()
    splits = [split for split in counts if isinstance(split, dict)]
    return next((split for split in reversed(splits) if split.get("classes")), {})
