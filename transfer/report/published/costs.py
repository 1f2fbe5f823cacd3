"""Published ratios of hours beside the ratios of pairs of the user's own runs. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from transfer.published.reasons import Reason
from transfer.published.schema import Cost
from transfer.records.protocol import configurations
from transfer.report.published.matching import Matcher, PublishedMatch
from transfer.report.published.notes import REASONS
from transfer.report.published.option_readings import Reading
from transfer.report.tables.costs import hours, kind_of_hours
from transfer.report.tables.table import Row

SAME = ("device", "world_size", "threads", "workers")
"""Entries of the environment in which two runs must agree for their hours to be comparable."""
COLUMNS = ("claim", "published", "own", "difference", "hours", "reading", REASONS, "runs")


@dataclass(frozen=True)
class Pair:
    """A run with the costly part, and an otherwise equal run without it."""

    with_it: PublishedMatch
    without: PublishedMatch

    @property
    def percent_more(self) -> float:
        """Percentage of additional hours of the run with the costly part."""
        return 100 * (hours(self.with_it.record) / hours(self.without.record) - 1)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Reasons why the ratio cannot be compared with the published one."""
        both = (self.with_it, self.without)
        reasons: list[Reason] = [reason for match in both for reason in match.reasons]
        for name in SAME:
            first, second = (match.record.environment.get(name) for match in both)
            reasons += [Reason(f"{name} {first} against {second}")] if first != second else []
        return tuple(dict.fromkeys(reasons))


def cost_rows(cost: Cost, matcher: Matcher) -> list[Row]:
    """Return a row for each reading, with its most comparable pair; among equals the pair that started last."""
    empty: Row = dict.fromkeys(COLUMNS)
    empty |= {"claim": cost.claim, "published": f"+{cost.more} %"}
    best: dict[Reading, Pair] = {}
    for pair in sorted(_pairs(cost, matcher), key=_rank):
        best[pair.with_it.reading] = pair
    return [empty | _shown(pair, float(cost.more)) for pair in best.values()] or [empty]


def _pairs(cost: Cost, matcher: Matcher) -> list[Pair]:
    arms = [_timed(matcher.matches(row, cost.value)) for row in (cost.with_it, cost.without)]
    records = [match.record for arm in arms for match in arm]
    keys = dict(
        zip((record.run_id for record in records), configurations(records, matcher.exports, cost.parts), strict=True)
    )
    without = {(keys[match.record.run_id], match.record.seed, kind_of_hours(match.record)): match for match in arms[1]}
    pairs = [
        (match, without.get((keys[match.record.run_id], match.record.seed, kind_of_hours(match.record))))
        for match in arms[0]
    ]
    return [Pair(match, other) for match, other in pairs if other is not None]


def _timed(matches: Sequence[PublishedMatch]) -> list[PublishedMatch]:
    """Return the completed runs with recorded hours, in the order in which they started."""
    timed = [match for match in matches if not match.record.training_failed and hours(match.record) > 0]
    return sorted(timed, key=lambda match: str(match.record.environment.get("started")))


def _rank(pair: Pair) -> tuple[int, str]:
    return -len(pair.reasons), str(pair.with_it.record.environment.get("started"))


def _shown(pair: Pair, published: float) -> Row:
    with_it, without = (hours(match.record) for match in (pair.with_it, pair.without))
    return {
        "own": f"{pair.percent_more:+.1f} %",
        "difference": f"{pair.percent_more - published:+.1f}",
        "hours": f"{with_it:.4g} against {without:.4g} {kind_of_hours(pair.with_it.record)}",
        "reading": pair.with_it.reading,
        REASONS: pair.reasons,
        "runs": (pair.with_it.record.run_id, pair.without.record.run_id),
    }
