"""Choice of the user's own configurations that are shown beside a published cell. Imports no torch.

Every comparable configuration has a row. If none is comparable, the one with the fewest reasons is shown; of equals the
one with most runs, then the one that was started last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transfer.experiments.published_rows import Reason
from transfer.records.fields import content_label
from transfer.records.protocol import PRETRAINING, backbone_of, displayed_fields, distinguishing_fields, lineage
from transfer.records.record import Record
from transfer.report.published.differences import Reading
from transfer.report.published.matching import PublishedMatch

_SHORT = 8  # hex digits of a digest


@dataclass(frozen=True)
class OwnRuns:
    """The user's own runs of one configuration for a cell, which differ in their seeds alone.

    Attributes:
        matches: matches of the runs with the cell.
        others: number of configurations of the same cell that are not shown, none of them comparable.
        label: fields that distinguish it from other comparable configurations.
    """

    matches: tuple[PublishedMatch, ...]
    others: int = 0
    label: str = ""

    @property
    def records(self) -> list[Record]:
        """Records of the runs."""
        return [match.record for match in self.matches]

    @property
    def completed(self) -> list[Record]:
        """Records that have scores."""
        return [record for record in self.records if not record.training_failed]

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Reasons why their scores cannot be compared, equal for all runs."""
        return self.matches[0].reasons


def own_runs(
    matches: Iterable[PublishedMatch], keys: Mapping[str, str], exports: Mapping[str, Record]
) -> list[OwnRuns]:
    """Return the configurations of each reading that are shown.

    Runs of one configuration with different reasons, for instance a run of changed files, are kept apart, so that they
    do not make the others incomparable.

    Args:
        matches: runs that match a cell.
        keys: configuration of each run, by run id.
        exports: records of runs that exported weights, by the id of the weights.
    """
    readings: dict[Reading, dict[tuple[str, tuple[Reason, ...]], list[PublishedMatch]]] = {}
    for match in matches:
        groups = readings.setdefault(match.reading, {})
        groups.setdefault((keys[match.record.run_id], match.reasons), []).append(match)
    return [
        shown
        for groups in readings.values()
        for shown in _shown([OwnRuns(tuple(group)) for group in groups.values()], exports)
    ]


def _shown(groups: Sequence[OwnRuns], exports: Mapping[str, Record]) -> list[OwnRuns]:
    comparable = [runs for runs in groups if not runs.reasons]
    if comparable:
        labels = _labels(comparable, exports)
        left = len(groups) - len(comparable)
        return [replace(runs, others=left, label=label) for runs, label in zip(comparable, labels, strict=True)]
    return [replace(max(groups, key=_rank), others=len(groups) - 1)]


def _rank(runs: OwnRuns) -> tuple[int, int, str, str]:
    last = max(runs.records, key=lambda record: str(record.environment.get("started")))
    return -len(runs.reasons), len(runs.matches), str(last.environment.get("started")), last.run_id


def _labels(groups: Sequence[OwnRuns], exports: Mapping[str, Record]) -> list[str]:
    """Return labels that distinguish configurations; an empty one for a single configuration."""
    if len(groups) == 1:
        return [""]
    contents = [_content(runs.records[0], exports) for runs in groups]
    names = list(distinguishing_fields(contents))
    return [
        content_label({name: _short(value) for name, value in content.items()}, names) or runs.records[0].run_id
        for runs, content in zip(groups, contents, strict=True)
    ]


def _content(record: Record, exports: Mapping[str, Record]) -> dict[str, Any]:
    """Return all fields of a run and of its pretrainings that can distinguish configurations."""
    chain = lineage(record, exports)
    content = _run_content(record) | {"weights": (chain[-1] if chain else record).weights_id}
    for number, parent in enumerate(chain, 1):
        before = PRETRAINING if number == 1 else f"{PRETRAINING}{number}."
        content |= {f"{before}{name}": value for name, value in _run_content(parent).items()}
    return content


def _run_content(record: Record) -> dict[str, Any]:
    parts = {("backbone" if name == "name" else name): value for name, value in backbone_of(record).items()}
    return parts | displayed_fields(record)


def _short(value: Any) -> Any:
    """Return the first digits of a digest; any other value unchanged."""
    text = value.removeprefix("sha256:") if isinstance(value, str) else ""
    return text[:_SHORT] if len(text) == 64 and not set(text) - set("0123456789abcdef") else value
