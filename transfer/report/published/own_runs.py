"""Which of one's own configurations stand beside a published cell. Imports no torch.

Every comparable one has a row. Where none is comparable, the one with the fewest reasons is shown; of equals the one
with most runs, then the one that was started last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transfer.records.labels import content_label
from transfer.records.protocol import PRETRAINING, backbone_of, displayed_fields, distinguishing_fields, lineage
from transfer.records.record import Record
from transfer.report.published.differences import Reason
from transfer.report.published.matching import PublishedMatch

RULE = (
    "others: further configurations of the same cell that are not comparable; every comparable one has a row. Where "
    "none is, the one with the fewest reasons is shown, of equals the one with most runs, then the one started last."
)
_SHORT = 8  # hex digits of a digest


@dataclass(frozen=True)
class Own:
    """One's own runs for a cell: those of one configuration, which differ in seeds alone."""

    matches: tuple[PublishedMatch, ...]
    others: int = 0
    """Configurations of the same cell that are not shown, all of them not comparable."""
    label: str = ""
    """What tells it apart from others that are comparable, too."""

    @property
    def records(self) -> list[Record]:
        """Their records."""
        return [match.record for match in self.matches]

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why their number cannot be compared; the same for all of them."""
        return self.matches[0].reasons

    @property
    def notes(self) -> list[str]:
        """What is to be said of them below the table."""
        said = (
            *(note for reason in self.reasons for note in reason.notes),
            *(n for m in self.matches for n in m.notes),
        )
        return list(dict.fromkeys(said))

    @property
    def completed(self) -> list[Record]:
        """Those with scores."""
        return [record for record in self.records if not record.training_failed]


def owns(matches: Iterable[PublishedMatch], keys: Mapping[str, str], exports: Mapping[str, Record]) -> list[Own]:
    """The configurations of each reading that are to be shown.

    Runs of one configuration that have other reasons, as one of changed files, stand apart: they spoil no others.

    Args:
        keys: the configuration of each run, by its id.
    """
    readings: dict[str, dict[tuple[str, tuple[Reason, ...]], list[PublishedMatch]]] = {}
    for match in matches:
        groups = readings.setdefault(match.reading, {})
        groups.setdefault((keys[match.record.run_id], match.reasons), []).append(match)
    return [
        own for groups in readings.values() for own in _shown([Own(tuple(one)) for one in groups.values()], exports)
    ]


def _shown(groups: Sequence[Own], exports: Mapping[str, Record]) -> list[Own]:
    comparable = [own for own in groups if not own.reasons]
    if comparable:
        labels = _labels(comparable, exports)
        left = len(groups) - len(comparable)
        return [replace(own, others=left, label=label) for own, label in zip(comparable, labels, strict=True)]
    return [replace(max(groups, key=_rank), others=len(groups) - 1)]


def _rank(own: Own) -> tuple[int, int, str, str]:
    last = max(own.records, key=lambda record: str(record.environment.get("started")))
    return -len(own.reasons), len(own.matches), str(last.environment.get("started")), last.run_id


def _labels(groups: Sequence[Own], exports: Mapping[str, Record]) -> list[str]:
    """What tells configurations apart; nothing where there is one."""
    if len(groups) == 1:
        return [""]
    contents = [_content(own.records[0], exports) for own in groups]
    names = list(distinguishing_fields(contents))
    return [
        content_label({name: _short(value) for name, value in content.items()}, names) or own.records[0].run_id
        for own, content in zip(groups, contents, strict=True)
    ]


def _content(record: Record, exports: Mapping[str, Record]) -> dict[str, Any]:
    """All that can tell its configuration from another one, in one dict."""
    chain = lineage(record, exports)
    found = _of_one(record) | {"weights": (chain[-1] if chain else record).weights_id}
    for number, parent in enumerate(chain, 1):
        before = PRETRAINING if number == 1 else f"{PRETRAINING}{number}."
        found |= {f"{before}{name}": value for name, value in _of_one(parent).items()}
    return found


def _of_one(record: Record) -> dict[str, Any]:
    parts = {("backbone" if name == "name" else name): value for name, value in backbone_of(record).items()}
    return parts | displayed_fields(record)


def _short(value: Any) -> Any:
    """The start of a digest; any other value as it is."""
    text = value.removeprefix("sha256:") if isinstance(value, str) else ""
    return text[:_SHORT] if len(text) == 64 and not set(text) - set("0123456789abcdef") else value
