"""Re-identification scores of a gallery ranked by distance: mAP, CMC and mINP, exact, in bounded memory.

The protocol is that of Market-1501 (Zheng et al. 2015): gallery images of the query's identity under the query's own
camera are left out, and queries without another match do not count. Equal distances score the expectation over their
orders (`tasks.ranking.ties`), never the luck of a sort.
Shapes: Q queries, G gallery images, D channels, b queries of one block, M gallery images of a query's identity.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasks.ranking.distances import Distances, ExactDistances, as_matrix, blocks
from tasks.ranking.ties import expected_ap, expected_cmc, expected_inp

Labels = Sequence[int] | Sequence[str] | NDArray[Any] | Tensor


class Matches:
    """Positions in the gallery of the matches and the left-out (junk) images of each query."""

    def __init__(self, labels: Sequence[Labels], sizes: tuple[int, int], device: torch.device) -> None:
        """Take the identities of queries and gallery, then their cameras."""
        self.sizes = sizes
        ids, gallery_ids = _codes(labels[0], labels[1], sizes, "ids")
        cameras, gallery_cameras = _codes(labels[2], labels[3], sizes, "cameras")
        by_id = np.argsort(gallery_ids, kind="stable")
        start = np.searchsorted(gallery_ids[by_id], ids)
        self.counts = np.searchsorted(gallery_ids[by_id], ids, side="right") - start
        self.by_id, self.start, self.count, self.query_cameras, self.gallery_cameras = (
            torch.from_numpy(array).to(device) for array in (by_id, start, self.counts, cameras, gallery_cameras)
        )

    def block(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gallery columns [b, M] of each query's identity, and masks of matches and left-out images."""
        count = self.count[rows, None]
        place = torch.arange(max(int(count.max()), 1), device=count.device)
        columns = self.by_id[(self.start[rows, None] + place).clamp_(max=len(self.by_id) - 1)]
        same_camera = self.gallery_cameras[columns] == self.query_cameras[rows, None]
        is_entry = place < count
        return columns, is_entry & ~same_camera, is_entry & same_camera


def _codes(query: Labels, gallery: Labels, sizes: tuple[int, int], name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both arrays of labels as integers that are equal where the labels are equal.

    Raises:
        ValueError: if labels are of the wrong number or type.
    """
    arrays = [np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels) for labels in (query, gallery)]
    for side, array, size in zip(("query", "gallery"), arrays, sizes):
        if array.shape != (size,) or array.dtype.kind not in "iuU":
            wanted = f"{size} integers or strings, one per {side} image"
            raise ValueError(f"{side}_{name} must be {wanted}, not {array.dtype} of shape {list(array.shape)}")
    if (arrays[0].dtype.kind == "U") != (arrays[1].dtype.kind == "U"):
        raise ValueError(f"query_{name} and gallery_{name} must both be integers or both be strings")
    codes = np.unique(np.concatenate(arrays), return_inverse=True)[1].reshape(-1)
    return codes[: sizes[0]], codes[sizes[0] :]


def top_ranked(distances: Tensor, keep: int) -> Tensor:
    """Return the columns [b, k] of the smallest distances [b, G], k = min(keep, G).

    Of equal distances it is the first columns; -1 stands for infinite ones, which are left out.
    """
    k, smallest = min(keep, distances.shape[1]), []
    for block in distances.split(max(2**20 // distances.shape[1], 1)):
        last = block.topk(k, largest=False).values[:, -1:]
        rows, places = (block <= last).nonzero(as_tuple=True)  # in the gallery's order, which stable sorts keep
        order = block[rows, places].argsort(stable=True)
        order = order[rows[order].argsort(stable=True)]
        start = torch.searchsorted(rows, torch.arange(len(block), device=rows.device))
        first = places[order[start[:, None] + torch.arange(k, device=rows.device)]]
        smallest.append(first.masked_fill_(block.gather(1, first) == torch.inf, -1))
    return torch.cat(smallest)


def tie_groups(
    distances: Tensor, own: tuple[Tensor, Tensor, Tensor], keep: int
) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """Return the tie group of each match of a block of queries, in the order of the distances, and the first places.

    A rank is a count of nearer values, so sorting values suffices: no argsort, no order of ties.

    Args:
        distances: [b, G]; overwritten.
        own: columns, matches and left-out images [b, M] from `Matches.block`.
        keep: the number of first places to return.

    Returns:
        b, n, m, k of `tasks.ranking.ties`, each [b, M], a row's matches first and the rest undefined; and gallery
        columns [b, k], -1 behind the last.
    """
    columns, match, left_out = own
    distances[left_out.nonzero()[:, 0], columns[left_out]] = torch.inf
    nearest = top_ranked(distances, keep).cpu().numpy() if keep else np.empty((len(distances), 0))
    ordered = distances.gather(1, columns).masked_fill(~match, np.inf).sort(dim=1).values
    below, within = counts(distances, ordered.masked_fill(ordered == np.inf, -np.inf))
    first, last = (torch.searchsorted(ordered, ordered, right=right).cpu().numpy() for right in (False, True))
    return [below, within - below, first, last - first], nearest


def counts(distances: Tensor, edges: Tensor) -> list[NDArray[Any]]:
    """Count in each row of `distances` [b, G] those below each of `edges` [b, M], and those up to each."""
    if distances.is_cuda:
        ordered = distances.sort(dim=1).values
        return [torch.searchsorted(ordered, edges, right=right).cpu().numpy() for right in (False, True)]
    values, limits, found = distances.numpy(), edges.numpy(), np.zeros((2, *edges.shape), dtype=np.int64)

    def count(rows: NDArray[Any]) -> None:
        for row in rows.tolist():
            ordered = np.sort(values[row][values[row] <= limits[row].max()])
            found[:, row] = ordered.searchsorted(limits[row]), ordered.searchsorted(limits[row], "right")

    # numpy sorts bare values with vector instructions and without the interpreter's lock
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(count, np.array_split(np.arange(len(values)), threads)))
    return list(found)


AP_RULES = ("rectangle", "trapezoid")


@dataclass(frozen=True, eq=False)
class Ranking:
    """Scores of the ranked lists of Q queries, kept per query, so that any score can be recomputed bit-exact.

    Raises:
        ValueError: if no query has a match.
    """

    ap: NDArray[Any]
    """Average precision [Q] in [0, 1]; nan without a match."""
    inp: NDArray[Any]
    """Inverse negative penalty [Q] in [0, 1]; nan without a match."""
    before: NDArray[Any]
    """Number [Q] of entries nearer than the first match."""
    tied: NDArray[Any]
    """Number [Q] of entries at the first match's distance, itself included; 0 without a match."""
    hits: NDArray[Any]
    """Number [Q] of matches among the tied entries; 0 without a match."""
    kept: NDArray[Any]
    """Number [Q] of ranked gallery entries, without those of the same identity and camera."""
    max_rank: int = 50
    """Number of ranks of the CMC curve."""
    nearest: NDArray[Any] | None = None
    """Gallery indices [Q, k] at the first k places, -1 if fewer are ranked; ties in the gallery's order. None unless
    `keep` was given; no score depends on it."""
    nearest_distances: NDArray[Any] | None = None
    """Distances [Q, k] of `nearest` in float32, nan where it has -1; for display."""

    def __post_init__(self) -> None:
        if not self.valid.any():
            raise ValueError("no query has a match under another camera in the gallery: check identities and cameras")

    @cached_property
    def valid(self) -> NDArray[Any]:
        """Return the mask [Q] of the queries with a match."""
        return self.hits > 0

    @property
    def mAP(self) -> float:
        """Return the mean average precision over valid queries, in [0, 1]."""
        return float(self.ap[self.valid].mean())

    @property
    def mINP(self) -> float:
        """Return the mean inverse negative penalty over valid queries, in [0, 1]."""
        return float(self.inp[self.valid].mean())

    @cached_property
    def cmc_of_queries(self) -> NDArray[Any]:
        """Return the chances [Q, max_rank] of a match at rank 1, 2, ... or before; nan without a match."""
        curves = expected_cmc(self.before, self.tied, self.hits, self.max_rank)
        return np.where(self.valid[:, None], curves, np.nan)

    @cached_property
    def cmc(self) -> NDArray[Any]:
        """Return the cumulative matching characteristic [max_rank] over valid queries, in [0, 1]."""
        return self.cmc_of_queries[self.valid].mean(axis=0)

    @property
    def degenerate(self) -> bool:
        """Return whether every valid query is equally far from its whole gallery, so that the order is random."""
        return bool((self.tied == self.kept)[self.valid].all() and (self.kept[self.valid] > 1).any())

    def scores(self) -> dict[str, float]:
        """Return the scores of task `reid`, in [0, 1], without ranks beyond `max_rank`."""
        ranks = {f"rank{rank}": float(self.cmc[rank - 1]) for rank in (1, 5, 10) if rank <= self.max_rank}
        return {"mAP": self.mAP, **ranks, "mINP": self.mINP}

    def outcomes(self) -> dict[str, NDArray[Any]]:
        """Return the arrays [Q] per query that `from_outcomes` reads."""
        return {name: getattr(self, name) for name in RANKING_ARRAYS}

    @classmethod
    def from_outcomes(cls, outcomes: dict[str, NDArray[Any]], max_rank: int = 50) -> "Ranking":
        """Rebuild a ranking from its `outcomes`; scores are bit-exact."""
        return cls(**{name: np.asarray(outcomes[name]) for name in RANKING_ARRAYS}, max_rank=max_rank)


RANKING_ARRAYS = ("ap", "inp", "before", "tied", "hits", "kept")


def rank(
    query: Tensor | NDArray[Any],
    gallery: Tensor | NDArray[Any],
    query_ids: Labels,
    gallery_ids: Labels,
    query_cameras: Labels,
    gallery_cameras: Labels,
    *,
    max_rank: int = 50,
    ap: str = "rectangle",
    keep: int = 0,
) -> Ranking:
    """Rank the gallery for each query by the squared Euclidean distance of the features.

    Products are taken of centred features, in float64, blocks of queries at a time, on the features' device. Two images
    tie if these distances are equal.

    Args:
        query: features [Q, D].
        gallery: features [G, D].
        query_ids, gallery_ids, query_cameras, gallery_cameras: integers or strings [Q] or [G].
        max_rank: the number of ranks of the CMC curve.
        ap: "rectangle" (torchreid, TransReID, fast-reid) or "trapezoid" (the code published with Market-1501).
        keep: the number of places of each list to keep in `Ranking.nearest`.

    Raises:
        ValueError: if shapes, types or values do not fit, features are not finite, or no query has a match.
    """
    query, gallery = as_matrix(query, "query features"), as_matrix(gallery, "gallery features")
    labels = query_ids, gallery_ids, query_cameras, gallery_cameras
    matches = Matches(labels, (len(query), len(gallery)), query.device)
    with torch.inference_mode():
        return _rank(Distances(query, gallery), matches, max_rank, ap, keep)


def rank_distances(
    distances: Tensor | NDArray[Any],
    query_ids: Labels,
    gallery_ids: Labels,
    query_cameras: Labels,
    gallery_cameras: Labels,
    *,
    max_rank: int = 50,
    ap: str = "rectangle",
    keep: int = 0,
    device: torch.device | None = None,
) -> Ranking:
    """Rank the gallery by distances [Q, G] of any scale and sign, the smallest first; otherwise like `rank`.

    Blocks of queries are ranked on `device`; None is that of the distances.
    """
    matrix = as_matrix(distances, "distances")
    labels, device = (query_ids, gallery_ids, query_cameras, gallery_cameras), device or matrix.device
    matches = Matches(labels, (matrix.shape[0], matrix.shape[1]), device)
    return _rank(ExactDistances(matrix, device), matches, max_rank, ap, keep)


def _rank(source: Distances | ExactDistances, matches: Matches, max_rank: int, ap: str, keep: int) -> Ranking:
    """Score the queries block by block."""
    if ap not in AP_RULES:
        raise ValueError(f"ap must be one of {', '.join(AP_RULES)}, not {ap!r}")
    if max_rank < 1:
        raise ValueError(f"max_rank must be at least 1, not {max_rank}")
    queries, gallery = matches.sizes
    scored_blocks = []
    for rows in blocks(queries, 16 * gallery + 64 * int(matches.counts.max()), matches.count.device):
        own = matches.block(rows)
        groups, nearest = tie_groups(source.block(rows), own, keep)
        kept = (gallery - own[2].sum(1)).cpu().numpy()
        scores = _score(groups, own[1].sum(1).cpu().numpy(), ap) | {"kept": kept}
        if keep:
            of_places = source.of_places(rows, np.maximum(nearest, 0))
            scores |= {"nearest": nearest, "nearest_distances": np.where(nearest >= 0, of_places, np.float32(np.nan))}
        scored_blocks.append(scores)
    return Ranking(
        **{name: np.concatenate([block[name] for block in scored_blocks]) for name in scored_blocks[0]},
        max_rank=max_rank,
    )


def _score(groups: list[NDArray[Any]], matches: NDArray[Any], ap: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of `Ranking` except `kept` for a block of queries, from the tie groups of their matches."""
    valid = np.flatnonzero(matches)
    rows, places = np.nonzero(np.arange(groups[0].shape[1]) < matches[:, None])
    flat = [group[rows, places] for group in groups]
    scores = {name: np.full(len(matches), np.nan) for name in ("ap", "inp")}
    # bincount adds in the order of the matches, so the padding of the block changes no bit
    shares = np.bincount(rows, expected_ap(*flat, rule=ap), len(matches))
    scores["ap"][valid] = shares[valid] / matches[valid]
    b, n, _, k = (group[valid, matches[valid] - 1] for group in groups)
    scores["inp"][valid] = expected_inp(b, n, k, matches[valid])
    b, n, _, k = (np.where(matches > 0, group[:, 0], 0) for group in groups)
    return scores | {"before": b, "tied": n, "hits": k}
