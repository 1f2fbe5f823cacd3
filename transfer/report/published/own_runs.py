"""Which of one's own configurations stand beside a published cell. Imports no torch.

Every comparable one has a row. Where none is comparable, the one with the fewest reasons is shown; of equals the one
with most runs, then the one that was started last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transfer.published.reasons import OtherTaskVersion, Reason
from transfer.records.labels import content_label
from transfer.records.protocol import PRETRAINING, backbone_of, displayed_fields, distinguishing_fields, lineage
from transfer.records.record import Record
from transfer.records.task_versions import between
from transfer.report.published.matching import PublishedMatch
from transfer.report.published.option_readings import Reading

_SHORT = 8  # hex digits of a digest


@dataclass(frozen=True)
class OwnRuns:
    """One's own runs for a cell: those of one configuration, which differ in seeds alone.

    Attributes:
        matches: the runs.
        others: how many configurations of the same cell are not shown, all of them not comparable.
        label: what tells it apart from others that are comparable, too.
    """

    matches: tuple[PublishedMatch, ...]
    others: int = 0
    label: str = ""

    @property
    def records(self) -> list[Record]:
        """The records of the runs."""
        return [match.record for match in self.matches]

    @property
    def completed(self) -> list[Record]:
        """The records that have scores."""
        return [record for record in self.records if not record.training_failed]

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why their number cannot be compared; the same for all of them."""
        return self.matches[0].reasons

    @property
    def task_changes(self) -> list[str]:
        """What changed between the versions of tasks where these are a reason, a sentence each."""
        versions = [reason for reason in self.reasons if isinstance(reason, OtherTaskVersion)]
        return [text for reason in versions for text in between(reason.task, (reason.own, reason.published))]


def own_runs(
    matches: Iterable[PublishedMatch], keys: Mapping[str, str], exports: Mapping[str, Record]
) -> list[OwnRuns]:
    """Return the configurations of each reading that are to be shown.

    Runs of one configuration that have other reasons, as one of changed files, stand apart: they spoil no others.

    Args:
        matches: the runs of a cell.
        keys: the configuration of each run, by its id.
        exports: the runs that left weights, by the id of these.
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
    """What tells configurations apart; nothing where there is one."""
    if len(groups) == 1:
        return [""]
    contents = [_content(runs.records[0], exports) for runs in groups]
    names = list(distinguishing_fields(contents))
    return [
        content_label({name: _short(value) for name, value in content.items()}, names) or runs.records[0].run_id
        for runs, content in zip(groups, contents, strict=True)
    ]


def _content(record: Record, exports: Mapping[str, Record]) -> dict[str, Any]:
    """All that can tell its configuration from another one, in one dict."""
    chain = lineage(record, exports)
    content = _of_one(record) | {"weights": (chain[-1] if chain else record).weights_id}
    for number, parent in enumerate(chain, 1):
        before = PRETRAINING if number == 1 else f"{PRETRAINING}{number}."
        content |= {f"{before}{name}": value for name, value in _of_one(parent).items()}
    return content


def _of_one(record: Record) -> dict[str, Any]:
    parts = {("backbone" if name == "name" else name): value for name, value in backbone_of(record).items()}
    return parts | displayed_fields(record)


def _short(value: Any) -> Any:
    """The start of a digest; any other value as it is."""
    text = value.removeprefix("sha256:") if isinstance(value, str) else ""
    return text[:_SHORT] if len(text) == 64 and not set(text) - set("0123456789abcdef") else value
