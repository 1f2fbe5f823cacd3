"""Matches and junk images of every query in the gallery.

Shapes: Q queries, G gallery images, b queries of one block, M gallery images of a query's identity.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Labels = Sequence[int] | Sequence[str] | NDArray[Any] | Tensor


class Matches:
    """Positions in the gallery of the matches and the left-out (junk) images of each query."""

    def __init__(
        self,
        query_ids: Labels,
        gallery_ids: Labels,
        query_cameras: Labels,
        gallery_cameras: Labels,
        sizes: tuple[int, int],
        device: torch.device,
    ) -> None:
        self.sizes = sizes
        ids, gallery_ids = _codes(query_ids, gallery_ids, sizes, "ids")
        cameras, gallery_cameras = _codes(query_cameras, gallery_cameras, sizes, "cameras")
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
            raise ValueError(
                f"{side}_{name} must be {size} integers or strings, one per {side} image, "
                f"not {array.dtype} of shape {list(array.shape)}"
            )
    if (arrays[0].dtype.kind == "U") != (arrays[1].dtype.kind == "U"):
        raise ValueError(f"query_{name} and gallery_{name} must both be integers or both be strings")
    codes = np.unique(np.concatenate(arrays), return_inverse=True)[1].reshape(-1)
    return codes[: sizes[0]], codes[sizes[0] :]
