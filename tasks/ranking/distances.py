"""Squared Euclidean distances of features, in blocks.

Shapes: Q queries, G gallery images, D channels, U distinct gallery features, b queries of one block.
"""

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transfer.engine.device import free_bytes

BLOCK_BYTES = 64 << 20
GPU_BLOCK_BYTES = 512 << 20  # sorting a block takes some five times as much
CACHED_ROWS = 256  # number of features that are summed at a time
PLACES_AT_ONCE = 256  # number of queries whose distances to their nearest images are computed at a time


def as_matrix(values: Tensor | NDArray[Any], name: str) -> Tensor:
    """Return `values` [rows, columns] as a detached float32 or float64 tensor, without a copy if they are one already.

    Raises:
        ValueError: naming `name`, if `values` is empty, not two-dimensional, not floating-point, or not finite.
    """
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind != "f" or array.itemsize > 8:
            raise ValueError(f"{name} must be float16, float32 or float64, not {array.dtype}")
        values = torch.from_numpy(array if array.flags.c_contiguous and array.flags.writeable else array.copy())
    if not values.is_floating_point():
        raise ValueError(f"{name} must be floating-point, not {values.dtype}")
    if values.ndim != 2 or not values.numel():
        raise ValueError(f"{name} must be [rows, columns] and not empty, not of shape {list(values.shape)}")
    values = values.detach().to(torch.promote_types(values.dtype, torch.float32))
    broken = ~torch.isfinite(values.sum(1))
    if broken.any():
        row = int(broken.int().argmax())
        fault = f"nan, infinity or numbers at the end of the range of {values.dtype}"
        raise ValueError(f"{name} hold {fault}, in row {row}")
    return values


class Distances:
    """Squared Euclidean distances of queries [Q, D] to a gallery [G, D], in float64, up to a constant per query.

    The gallery's mean is subtracted from all features, which changes no distance: nearly parallel features become as
    small as their differences, and so do the rounding errors of their products. It is rounded to the scale of these
    differences (a power of two), so that features of few bits keep few, and equal distances stay equal.
    |g|^2 - 2 q g orders the gallery as |q - g|^2 does. Equal gallery features get equal values.

    Raises:
        ValueError: if channels or devices differ, or squares overflow.
    """

    def __init__(self, query: Tensor, gallery: Tensor) -> None:
        if query.shape[1] != gallery.shape[1] or query.device != gallery.device:
            own, other = (f"{features.shape[1]} on {features.device}" for features in (query, gallery))
            raise ValueError(f"query and gallery must have the same channels and device, not {own} and {other}")
        self.original = query, gallery
        first, self.copies = distinct(gallery)
        self.all_differ = len(first) == len(gallery)
        unique = gallery if self.all_differ else gallery[first]
        mean = centre(unique)
        step = torch.maximum(unique.amax(0) - mean, mean - unique.amin(0)).max().log2().floor().exp2()
        mean = (mean / step).round() * step if step > 0 else mean
        self.query, self.unique = (part.to(torch.float64, copy=True).sub_(mean) for part in (query, unique))
        parts = (*self.query.split(CACHED_ROWS), *self.unique.split(CACHED_ROWS))
        squares = torch.cat([part.square().sum(1) for part in parts])
        self.norms = squares[len(query) :]
        if squares.max() > torch.finfo(torch.float64).max / 16:
            raise ValueError("squared distances of the features overflow float64: normalise them")

    def block(self, rows: slice) -> Tensor:
        """Return the values [b, G] of a block of queries, which the caller may overwrite."""
        values = torch.addmm(self.norms, self.query[rows], self.unique.T, alpha=-2)
        return values if self.all_differ else values.index_select(1, self.copies)

    def of_places(self, rows: slice, places: NDArray[Any]) -> NDArray[Any]:
        """Return the squared distances [b, k] of a block of queries to gallery columns [b, k]."""
        query, gallery = self.original
        columns = torch.from_numpy(places).to(gallery.device)
        found = [
            (gallery[chosen].double() - one.double()[:, None]).square_().sum(2).float()
            for one, chosen in zip(query[rows].split(PLACES_AT_ONCE), columns.split(PLACES_AT_ONCE), strict=True)
        ]
        return torch.cat(found).cpu().numpy()


class ExactDistances:
    """Distances [Q, G] that are given, on any device."""

    def __init__(self, distances: Tensor, device: torch.device) -> None:
        self.distances, self.device = distances, device

    def block(self, rows: slice) -> Tensor:
        """Return a copy of the distances [b, G] on the device of the ranking."""
        return self.distances[rows].to(self.device, copy=True)

    def of_places(self, rows: slice, places: NDArray[Any]) -> NDArray[Any]:
        """Return the distances [b, k] of a block of queries to gallery columns [b, k]."""
        columns = torch.from_numpy(places).to(self.distances.device)
        return self.distances[rows].gather(1, columns).float().cpu().numpy()


def centre(features: Tensor) -> Tensor:
    """Return the mean [D], in float64, of features [G, D]."""
    sums = [rows.double().sum(0) for rows in features.split(CACHED_ROWS)]
    return torch.stack(sums).sum(0) / len(features)


def blocks(rows: int, row_bytes: int, device: torch.device) -> list[slice]:
    """Return slices of about equal length and at most BLOCK_BYTES, but of at least 32 of `rows` if there are as many.

    On a GPU they are of at most GPU_BLOCK_BYTES, and of a sixteenth of the memory that is left. BLAS may round the
    product of a few rows differently from that of many; from 32 rows on the length has no effect.
    """
    most = min(GPU_BLOCK_BYTES, free_bytes(device) // 16) if device.type == "cuda" else BLOCK_BYTES
    count = -(-rows // max(most // row_bytes, 64))
    edges = [rows * block // count for block in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def distinct(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first row of each distinct feature [U], and the index [G] of each row's feature among them.

    BLAS may round the same product differently at the edge of a matrix than inside it (5 equal gallery rows against
    16,000 queries gave unequal distances), so ties of equal features are only sure if each is multiplied once.
    """
    rows = np.ascontiguousarray(features.cpu().numpy() + 0.0)  # -0.0, an equal number with other bits, becomes 0.0
    first_of: dict[bytes, int] = {}
    sources = [first_of.setdefault(hashlib.blake2b(row).digest(), index) for index, row in enumerate(rows)]
    first, copies = np.unique(sources, return_inverse=True)
    return torch.from_numpy(first).to(features.device), torch.from_numpy(copies.reshape(-1)).to(features.device)
