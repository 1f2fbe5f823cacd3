"""Published ratios of hours beside those of one's own pairs of runs. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transfer.published.rows import Cost
from transfer.records.protocol import configurations
from transfer.report.published.matching import Matcher, PublishedMatch
from transfer.report.tables.costs import hours, kind_of_hours

SAME = ("device", "world_size", "threads", "workers")
"""Of the environment: what two runs must share for their hours to be compared."""
COLUMNS = ("claim", "published", "own", "difference", "hours", "reading", "not comparable because", "runs")


@dataclass(frozen=True)
class Pair:
    """A run with the costly part, and one that is like it but for this part."""

    with_it: PublishedMatch
    without: PublishedMatch

    @property
    def more(self) -> float:
        """By how many percent the first took more hours."""
        return 100 * (hours(self.with_it.record) / hours(self.without.record) - 1)

    @property
    def reasons(self) -> list[str]:
        """Why the ratio is not the published one."""
        both = (self.with_it, self.without)
        found = [reason.text for match in both for reason in match.reasons]
        for name in SAME:
            first, second = (match.record.environment.get(name) for match in both)
            found += [f"{name} {first} against {second}"] if first != second else []
        return list(dict.fromkeys(found))


def cost_lines(cost: Cost, matcher: Matcher) -> list[dict[str, Any]]:
    """A line for each reading: of its pairs the most comparable one, of equals the one that was started last."""
    empty = dict.fromkeys(COLUMNS, "") | {"claim": cost.claim, "published": f"+{cost.more} %"}
    best: dict[str, Pair] = {}
    for pair in sorted(_pairs(cost, matcher), key=_rank):
        best[pair.with_it.reading] = pair
    return [empty | _shown(pair, float(cost.more)) for pair in best.values()] or [empty]


def _pairs(cost: Cost, matcher: Matcher) -> list[Pair]:
    arms = [_timed(matcher.of(row, cost.value)) for row in (cost.with_it, cost.without)]
    records = [match.record for arm in arms for match in arm]
    keys = dict(zip((one.run_id for one in records), configurations(records, matcher.exports, cost.parts), strict=True))
    found = {(keys[match.record.run_id], match.record.seed, kind_of_hours(match.record)): match for match in arms[1]}
    pairs = [
        (match, found.get((keys[match.record.run_id], match.record.seed, kind_of_hours(match.record))))
        for match in arms[0]
    ]
    return [Pair(match, other) for match, other in pairs if other is not None]


def _timed(matches: Sequence[PublishedMatch]) -> list[PublishedMatch]:
    """Those that ran to their end and say their hours, the ones started last behind."""
    timed = [match for match in matches if not match.record.training_failed and hours(match.record) > 0]
    return sorted(timed, key=lambda match: str(match.record.environment.get("started")))


def _rank(pair: Pair) -> tuple[int, str]:
    return -len(pair.reasons), str(pair.with_it.record.environment.get("started"))


def _shown(pair: Pair, published: float) -> dict[str, str]:
    took = [hours(match.record) for match in (pair.with_it, pair.without)]
    return {
        "own": f"{pair.more:+.1f} %",
        "difference": f"{pair.more - published:+.1f}",
        "hours": f"{took[0]:.4g} against {took[1]:.4g} {kind_of_hours(pair.with_it.record)}",
        "reading": pair.with_it.reading,
        "not comparable because": "; ".join(pair.reasons),
        "runs": f"{pair.with_it.record.run_id} {pair.without.record.run_id}",
    }
