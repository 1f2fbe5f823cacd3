"""Squared Euclidean distances of features, in blocks and in the full precision of their type.

Letters: Q queries, G gallery images, D channels, U distinct gallery features, b queries of one block.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backbones.runtime.precision import scoring_precision

BLOCK_BYTES = 64 << 20
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
        raise ValueError(
            f"{name} hold nan, infinity or numbers at the end of the range of {values.dtype}, in row {row}"
        )
    return values


class Distances:
    """Squared Euclidean distances of queries [Q, D] to a gallery [G, D], up to a constant per query.

    The gallery's mean, computed in float64, is subtracted from all features, which changes no distance. Nearly parallel
    features become as small as their differences, and so do the rounding errors of their products.
    |g|^2 - 2 q g orders the gallery as |q - g|^2 does. Equal gallery features get equal values.

    Error: with u = 2^-24 (2^-53 for float64 features), norms of the centred features, and c = sqrt(D) + 8,
    a value is off by less than u max|g| (2 c |q| + 6 (|q| + max|g|)): D roundings of random sign of partial sums that
    are as large as |q| |g| at most. `slack` takes less where the product itself is small, for its partial sums are,
    too. The largest of 800,000 errors of products of 64 to 2,048 channels was a third of that bound. Images closer
    than `slack` are ordered by `exact`, from the original features.

    Raises:
        ValueError: if channels or devices differ, or squares overflow.
    """

    def __init__(self, query: Tensor, gallery: Tensor) -> None:
        if query.shape[1] != gallery.shape[1] or query.device != gallery.device:
            raise ValueError(
                f"query and gallery must have the same channels and device, not {query.shape[1]} on {query.device} "
                f"and {gallery.shape[1]} on {gallery.device}"
            )
        dtype = torch.promote_types(query.dtype, gallery.dtype)
        self.original = query.to(dtype), gallery.to(dtype)
        self.first, self.copies = distinct(self.original[1])
        self.all_differ = len(self.first) == len(gallery)
        unique = self.original[1] if self.all_differ else self.original[1][self.first]
        self.mean = centre(unique)
        self.query, self.unique = (features - self.mean.to(dtype) for features in (self.original[0], unique))
        self.norms = self.unique.square().sum(1)
        self.query_norms, self.largest = self.query.norm(dim=1), self.norms.max().sqrt()
        if max(self.largest, self.query_norms.max()) > torch.finfo(dtype).max ** 0.5 / 4:
            raise ValueError(f"squared distances of the features overflow {dtype}: normalise them")

    def block(self, rows: slice) -> Tensor:
        """Return the values [b, G] of a block of queries, which the caller may overwrite."""
        return self._spread(torch.addmm(self.norms, self.query[rows], self.unique.T, alpha=-2))

    def slack(self, rows: slice, columns: Tensor, values: Tensor) -> Tensor:
        """Return the differences [b, M] up to which the order of a value and those of `columns` [b, M] is uncertain.

        It is twice the largest error of a value.
        """
        u, root, query = torch.finfo(values.dtype).eps / 2, self.query.shape[1] ** 0.5, self.query_norms[rows, None]
        scale = query * self.largest
        products = (self.norms[self.copies[columns]] - values).abs() / 2
        shares = (products / scale.clamp(min=torch.finfo(values.dtype).tiny)).nan_to_num(posinf=1)
        c = (3 * root * shares + 9).clamp(max=root + 8)
        bound: Tensor = 2 * u * (2 * c * scale + 6 * self.largest * (query + self.largest))
        return bound

    def exact(self, row: int, columns: NDArray[Any]) -> NDArray[Any]:
        """Return the squared distances, in float64, of one query to gallery columns, from the original features."""
        query, gallery = self.original
        chosen = torch.from_numpy(columns).to(gallery.device)
        squared: NDArray[Any] = (gallery[chosen].double() - query[row].double()).square_().sum(1).cpu().numpy()
        return squared

    def of_places(self, rows: slice, places: NDArray[Any]) -> NDArray[Any]:
        """Return the squared distances [b, k] of a block of queries to gallery columns [b, k]."""
        query, gallery = self.original
        columns = torch.from_numpy(places).to(gallery.device)
        found = [
            (gallery[chosen].double() - one.double()[:, None]).square_().sum(2).float()
            for one, chosen in zip(query[rows].split(PLACES_AT_ONCE), columns.split(PLACES_AT_ONCE), strict=True)
        ]
        distances: NDArray[Any] = torch.cat(found).cpu().numpy()
        return distances

    def rows_in_float64(self, rows: list[int]) -> Tensor:
        """Return the values [len(rows), G] of queries by products in float64.

        The mean is rounded to the scale of the features' differences (a power of two), so that features of few bits
        keep few, and equal distances stay equal.
        """
        query, (unique, norms) = self.original[0][rows].double() - self._coarse_mean, self._unique_in_float64
        return self._spread(torch.addmm(norms, query, unique.T, alpha=-2))

    def _spread(self, values: Tensor) -> Tensor:
        return values if self.all_differ else values.index_select(1, self.copies)

    @cached_property
    def _coarse_mean(self) -> Tensor:
        step = torch.exp2(self.unique.abs().max().double().log2().floor())
        return (self.mean / step).round() * step if step > 0 else self.mean

    @cached_property
    def _unique_in_float64(self) -> tuple[Tensor, Tensor]:
        unique = self.original[1][self.first].double() - self._coarse_mean
        return unique, unique.square().sum(1)


def centre(features: Tensor) -> Tensor:
    """Return the mean [D], in float64, of features [G, D]."""
    sums = [rows.double().sum(0) for rows in features.split(CACHED_ROWS)]
    return torch.stack(sums).sum(0) / len(features)


def blocks(rows: int, row_bytes: int) -> list[slice]:
    """Return slices of about equal length and at most BLOCK_BYTES, but of at least 32 of `rows` if there are as many.

    BLAS may round the product of a few rows differently from that of many; from 32 rows on the length has no effect.
    """
    count = -(-rows // max(BLOCK_BYTES // row_bytes, 64))
    edges = [rows * block // count for block in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def distinct(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first row of each distinct feature [U], and the index [G] of each row's feature among them.

    BLAS may round the same product differently at the edge of a matrix than inside it (5 equal gallery rows against
    16,000 queries gave unequal distances), so ties of equal features are only sure if each is multiplied once.
    """
    # + 0.0 turns -0.0, an equal number with other bytes, into 0.0
    rows = np.ascontiguousarray(features.cpu().numpy() + 0.0)
    hashes = _row_hashes(rows)
    _, candidate, copies = np.unique(hashes, return_index=True, return_inverse=True)
    candidate = candidate[copies.reshape(-1)]  # the first row of the same hash
    same = candidate == np.arange(len(rows))
    others = np.flatnonzero(~same)
    same[others] = [np.array_equal(rows[index], rows[candidate[index]]) for index in others.tolist()]
    source = np.where(same, candidate, np.arange(len(rows)))  # a row of another content stays by itself
    first, copies = np.unique(source, return_inverse=True)
    copies = torch.from_numpy(copies.reshape(-1)).to(features.device)
    return torch.from_numpy(first).to(features.device), copies


def _row_hashes(rows: NDArray[Any]) -> NDArray[Any]:
    """Return a hash [G] of the bytes of each row, equal for equal rows."""
    words = rows.view(np.uint32)
    factors = np.random.default_rng(0).integers(1, 2**63, words.shape[1], dtype=np.uint64)
    hashes = np.empty(len(rows), dtype=np.uint64)
    for start in range(0, len(rows), CACHED_ROWS):
        part = words[start : start + CACHED_ROWS] * factors
        hashes[start : start + CACHED_ROWS] = part.sum(axis=1)  # modulo 2^64
    return hashes


@contextmanager
def full_precision(device_type: str) -> Iterator[None]:
    """Disable TF32, bfloat16 and autocast in matrix products of float32, whatever training has switched on."""
    with scoring_precision("fp32", torch.device(device_type)), torch.inference_mode():
        yield
