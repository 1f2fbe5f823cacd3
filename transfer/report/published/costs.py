"""Published ratios of hours beside the operations of pairs of the user's own runs. Imports no torch.

Wall times of two runs are not compared: `--measure-cost` measures their models in turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transfer.published.reasons import Reason
from transfer.published.schema import Cost
from transfer.records.protocol import configurations
from transfer.report.published.matching import Matcher, PublishedMatch
from transfer.report.published.notes import REASONS
from transfer.report.published.option_readings import Reading
from transfer.report.tables.table import Row

COLUMNS = ("claim", "published", "own GMACs", "own", "reading", REASONS, "runs")


@dataclass(frozen=True)
class Pair:
    """A run with the costly part, and an otherwise equal run without it."""

    with_it: PublishedMatch
    without: PublishedMatch

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Reasons why the pair cannot be compared with the published one."""
        both = (self.with_it, self.without)
        return tuple(dict.fromkeys(reason for match in both for reason in match.reasons))


def cost_rows(cost: Cost, matcher: Matcher) -> list[Row]:
    """Return a row for each reading, with its most comparable pair; among equals the pair that started last."""
    empty: Row = dict.fromkeys(COLUMNS)
    empty |= {"claim": cost.claim, "published": f"+{cost.more} % hours"}
    best: dict[Reading, Pair] = {}
    for pair in sorted(_pairs(cost, matcher), key=lambda one: (-len(one.reasons), _start(one.with_it))):
        best[pair.with_it.reading] = pair
    return [empty | _shown(pair) for pair in best.values()] or [empty]


def _pairs(cost: Cost, matcher: Matcher) -> list[Pair]:
    variants = [_completed(matcher.matches(row, cost.value)) for row in (cost.with_it, cost.without)]
    records = [match.record for variant in variants for match in variant]
    keys = dict(
        zip((record.run_id for record in records), configurations(records, matcher.exports, cost.parts), strict=True)
    )
    without = {(keys[match.record.run_id], match.record.seed): match for match in variants[1]}
    pairs = [(match, without.get((keys[match.record.run_id], match.record.seed))) for match in variants[0]]
    return [Pair(match, other) for match, other in pairs if other is not None]


def _completed(matches: Sequence[PublishedMatch]) -> list[PublishedMatch]:
    """Return the completed runs with counted operations, in the order in which they started."""
    counted = [match for match in matches if not match.record.training_failed and match.record.cost.get("gflops")]
    return sorted(counted, key=_start)


def _start(match: PublishedMatch) -> str:
    return str(match.record.environment.get("started"))


def _shown(pair: Pair) -> Row:
    """Return the multiply-adds of an image with and without the costly part, and how many more there are."""
    with_it, without = (match.record.cost["gflops"] / 2 for match in (pair.with_it, pair.without))
    return {
        "own GMACs": f"{with_it:.4g} vs. {without:.4g}",
        "own": f"{100 * (with_it / without - 1):+.1f} % MACs",
        "reading": pair.with_it.reading,
        REASONS: pair.reasons,
        "runs": (pair.with_it.record.run_id, pair.without.record.run_id),
    }
