"""Squared Euclidean distances of features, in blocks and in the full precision of their type.

Letters: Q queries, G gallery images, D channels, U distinct gallery features, b queries of one block.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

BLOCK_BYTES = 64 << 20


def as_matrix(values: Tensor | np.ndarray, name: str) -> Tensor:
    """`values` [rows, columns] as a detached float32 or float64 tensor, uncopied where they are one already.

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
    if not torch.isfinite(values.sum(1)).all():
        raise ValueError(f"{name} hold nan, infinity or numbers at the end of the range of {values.dtype}")
    return values


def order_of_distances(query: Tensor, gallery: Tensor) -> Callable[[slice], Tensor]:
    """Distances of blocks of queries [Q, D] to the gallery [G, D], up to a constant per query.

    |g|^2 - 2 q g orders the gallery as |q - g|^2 does, and rounds less. Equal gallery features get equal values.

    Returns:
        A function from the rows of a block to its values [b, G].

    Raises:
        ValueError: if channels or devices differ, or squares overflow.
    """
    if query.shape[1] != gallery.shape[1] or query.device != gallery.device:
        raise ValueError(
            f"query and gallery must have the same channels and device, not {query.shape[1]} on {query.device} "
            f"and {gallery.shape[1]} on {gallery.device}"
        )
    dtype = torch.promote_types(query.dtype, gallery.dtype)
    query, gallery = query.to(dtype), gallery.to(dtype)
    first, copies = distinct(gallery)
    unique = gallery if len(first) == len(gallery) else gallery[first]
    norms = unique.square().sum(1)
    if max(norms.max(), query.square().sum(1).max()) > torch.finfo(dtype).max / 4:
        raise ValueError(f"squared distances of the features overflow {dtype}: normalise them")

    def distances_of(rows: slice) -> Tensor:
        values = torch.addmm(norms, query[rows], unique.T, alpha=-2)
        return values if unique is gallery else values.index_select(1, copies)

    return distances_of


def blocks(rows: int, row_bytes: int) -> list[slice]:
    """Blocks of about equal length and of BLOCK_BYTES at most, but of at least 32 rows where there are as many.

    BLAS may round the product of a few rows otherwise than that of many: with 32, the length leaves no trace.
    """
    count = -(-rows // max(BLOCK_BYTES // row_bytes, 64))
    edges = [rows * block // count for block in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def distinct(features: Tensor) -> tuple[Tensor, Tensor]:
    """The first row of each distinct feature [U], and for each row [G] the place of its feature among these.

    BLAS may round the same product otherwise at the edge of a matrix than inside it (5 equal gallery rows against
    16,000 queries gave unequal distances), so ties of equal features are only sure if each is multiplied once.
    """
    rows = features.cpu().numpy()
    places: dict[int, int] = {}  # by hash
    first: list[int] = []
    copies = np.empty(len(rows), dtype=np.int64)
    for index, row in enumerate(rows):
        # + 0.0 turns -0.0, an equal number with other bytes, into 0.0
        place = places.setdefault(hash((row + 0.0).tobytes()), len(first))
        if place == len(first) or not np.array_equal(rows[first[place]], row):
            place = len(first)
            first.append(index)
        copies[index] = place
    return torch.tensor(first, device=features.device), torch.from_numpy(copies).to(features.device)


@contextmanager
def full_precision(device_type: str) -> Iterator[None]:
    """Keeps matrix products of float32 free of TF32, bfloat16 and autocast, whatever training has switched on."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        with torch.autocast(device_type, enabled=False), torch.inference_mode():
            yield
    finally:
        for backend, precision in zip(backends, before):
            backend.fp32_precision = precision
