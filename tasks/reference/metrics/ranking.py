"""One query's ranked list: average precision, CMC and inverse negative penalty, ties as expectations over their orders.

Market-1501's protocol (Zheng et al., ICCV 2015): gallery images of the query's identity under its own camera are junk.
mINP: Ye et al., arXiv 2001.04193, section 4. Letters: G gallery images that are no junk, P of them matches.
"""

from math import comb
from typing import Any, NamedTuple

from numpy.typing import NDArray

RANKS = (1, 5, 10)


class Listed(NamedTuple):
    """What one ranked list scores; each in [0, 1]."""

    ap: float
    inp: float
    cmc: tuple[float, ...]
    """The chance of a match at rank 1, 5, 10 or before."""


class Group(NamedTuple):
    """The gallery images at one distance that hold a match."""

    before: int
    """Images nearer than these."""
    size: int
    matches_before: int
    matches: int


def junk(query_id: object, query_camera: object, ids: NDArray[Any], cameras: NDArray[Any]) -> NDArray[Any]:
    """bool: which gallery images do not count for a query."""
    junk: NDArray[Any] = (ids == query_id) & (cameras == query_camera)
    return junk


def listed(distances: NDArray[Any], match: NDArray[Any], rule: str) -> Listed | None:
    """Scores of a list by distances [G], with bool [G] matches; None without a match.

    Args:
        rule: "rectangle": precision at each match; "trapezoid": its mean with the precision one rank earlier, which is
            1 before the first (the code published with Market-1501).
    """
    groups = _groups(distances, match)
    if not groups:
        return None
    total = int(match.sum())
    ap = sum(_precisions(group, rule) for group in groups) / total
    return Listed(ap, _inp(groups[-1], total), tuple(chance_by(groups[0], rank) for rank in RANKS))


def _groups(distances: NDArray[Any], match: NDArray[Any]) -> list[Group]:
    """The gallery in order of distance."""
    found = []
    for value in sorted({*distances[match].tolist()}):
        at, nearer = distances == value, distances < value
        found.append(Group(int(nearer.sum()), int(at.sum()), int((nearer & match).sum()), int((at & match).sum())))
    return found


def _precisions(group: Group, rule: str) -> float:
    """The expected sum of precisions at the matches of a group.

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


def chance_by(first: Group, rank: int) -> float:
    """The chance of a match up to a rank, from the group of the first: 1 less that of none before it."""
    places = min(max(rank - first.before, 0), first.size)
    return 1 - comb(first.size - first.matches, places) / comb(first.size, places)


def _inp(last: Group, total: int) -> float:
    """Matches over the expected inverse rank of the last of them.

    It stands at place x of its group with the chance C(x - 1, matches - 1) / C(size, matches).
    """
    ways = comb(last.size, last.matches)
    places = range(last.matches, last.size + 1)
    return total * sum(comb(x - 1, last.matches - 1) / ways / (last.before + x) for x in places)
