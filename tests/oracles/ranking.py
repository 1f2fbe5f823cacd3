"""One query's ranked list: average precision, CMC and inverse negative penalty, ties as expectations over their orders.

Market-1501's protocol (Zheng et al., ICCV 2015): gallery images of the query's identity under its own camera are junk.
mINP: Ye et al., arXiv 2001.04193, section 4. Shapes: G gallery images that are no junk, P of them matches.
"""

from math import comb
from typing import Any, NamedTuple

from numpy.typing import NDArray

RANKS = (1, 5, 10)


class ListScores(NamedTuple):
    """Scores of one ranked list, each in [0, 1]."""

    ap: float
    inp: float
    cmc: tuple[float, ...]
    """Chances of a match at rank 1, 5, 10 or before."""


class TieGroup(NamedTuple):
    """Counts of a group of gallery images at one distance, with a match among them."""

    before: int
    """Number of images nearer than the group."""
    size: int
    matches_before: int
    matches: int


def junk(query_id: object, query_camera: object, ids: NDArray[Any], cameras: NDArray[Any]) -> NDArray[Any]:
    """Return a mask [G] of the gallery images that do not count for a query."""
    return (ids == query_id) & (cameras == query_camera)


def score_list(distances: NDArray[Any], match: NDArray[Any], rule: str) -> ListScores | None:
    """Score a list by distances [G] with a mask [G] of matches; return None without a match.

    Args:
        rule: "rectangle": precision at each match; "trapezoid": its mean with the precision one rank earlier, which is
            1 before the first (the code published with Market-1501).
    """
    groups = _groups(distances, match)
    if not groups:
        return None
    total = int(match.sum())
    ap = sum(_precisions(group, rule) for group in groups) / total
    return ListScores(ap, _inp(groups[-1], total), tuple(expected_cmc(groups[0], rank) for rank in RANKS))


def _groups(distances: NDArray[Any], match: NDArray[Any]) -> list[TieGroup]:
    """Return the tie groups that hold a match, nearest first."""
    groups = []
    for value in sorted({*distances[match].tolist()}):
        at, nearer = distances == value, distances < value
        groups.append(TieGroup(int(nearer.sum()), int(at.sum()), int((nearer & match).sum()), int((at & match).sum())))
    return groups


def _precisions(group: TieGroup, rule: str) -> float:
    """Return the expected sum of precisions at the matches of a group.

    A match stands at each place u = 1 ... size with the same chance; (u - 1) (matches - 1) / (size - 1) of the group's
    other matches are then expected before it.
    """
    total = 0.0
    for u in range(1, group.size + 1):
        others = (u - 1) * (group.matches - 1) / (group.size - 1) if group.size > 1 else 0.0
        hits, rank = group.matches_before + others, group.before + u
        here = (hits + 1) / rank
        if rule == "trapezoid":
            here = (here + (hits / (rank - 1) if rank > 1 else 1.0)) / 2
        total += here
    return total * group.matches / group.size


def expected_cmc(first: TieGroup, rank: int) -> float:
    """Return the chance of a match up to a rank, from the tie group of the first match."""
    places = min(max(rank - first.before, 0), first.size)
    return 1 - comb(first.size - first.matches, places) / comb(first.size, places)


def _inp(last: TieGroup, total: int) -> float:
    """Return the matches over the expected inverse rank of the last of them.

    It stands at place x of its group with the chance C(x - 1, matches - 1) / C(size, matches).
    """
    ways = comb(last.size, last.matches)
    places = range(last.matches, last.size + 1)
    return total * sum(comb(x - 1, last.matches - 1) / ways / (last.before + x) for x in places)
