"""The segmentations of many objects in a few blocks of memory. Shapes: M objects, P polygons, N coordinates."""

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from backbones.data.splits.packed_names import PackedNames
from backbones.errors import UserError


@dataclass(frozen=True, eq=False)
class Segmentations:
    """Segmentations as in COCO's files: lists of polygons [x, y, x, y, ...] in pixels, run-length encodings
    {"size", "counts"}, or None.

    Processes that load images are forked, and share memory until it is written to. Python writes to every object that
    it reads, so that lists of objects would be copied page by page into each of them: gigabytes for COCO's polygons.
    """

    coordinates: NDArray[Any]
    """All coordinates [N] in pixels, float64."""
    ends: NDArray[Any]
    """Where each polygon ends in `coordinates` [P], int64; it begins where the one before ends."""
    first: NDArray[Any]
    """The first polygon of each object [M], int64."""
    last: NDArray[Any]
    """The polygon behind the last of each object [M], int64."""
    encoding: NDArray[Any]
    """The place of each object in `encodings` [M], int64; -1 for those without."""
    encodings: PackedNames
    """Run-length encodings as JSON."""

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> Any:
        if self.encoding[index] >= 0:
            return json.loads(self.encodings[int(self.encoding[index])])
        polygons = range(int(self.first[index]), int(self.last[index]))
        return [self.coordinates[self._start(polygon) : self.ends[polygon]].tolist() for polygon in polygons] or None

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def _start(self, polygon: int) -> int:
        return int(self.ends[polygon - 1]) if polygon else 0

    @property
    def present(self) -> NDArray[Any]:
        """Return whether each object has a segmentation, bool [M]."""
        present: NDArray[Any] = (self.encoding >= 0) | (self.first < self.last)
        return present

    def select(self, rows: NDArray[Any]) -> Self:
        """Return the segmentations of these rows, int64 [M]; the coordinates are shared."""
        return replace(self, first=self.first[rows], last=self.last[rows], encoding=self.encoding[rows])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything as arrays, for `from_arrays`."""
        own = {name: getattr(self, name) for name in ("coordinates", "ends", "first", "last", "encoding")}
        return own | dict(zip(("encodings", "encodings_ends"), self.encodings.arrays(), strict=True))

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return what `arrays` was taken from."""
        own = {name: arrays[name] for name in ("coordinates", "ends", "first", "last", "encoding")}
        return cls(**own, encodings=PackedNames.from_arrays(arrays["encodings"], arrays["encodings_ends"]))

    @classmethod
    def collect(cls, values: Sequence[Any]) -> Self:
        """Return the segmentations of many objects, each in COCO's form: polygons, run-length encodings, or None."""
        encoded = np.array([isinstance(value, dict) for value in values], dtype=bool)
        polygons = [[] if isinstance(value, dict) else value or [] for value in values]
        flat = list(chain.from_iterable(polygons))
        last = np.cumsum([len(of_object) for of_object in polygons], dtype=np.int64)
        return cls(
            coordinates=np.fromiter(chain.from_iterable(flat), dtype=np.float64),
            ends=np.cumsum([len(polygon) for polygon in flat], dtype=np.int64),
            first=np.concatenate([[0], last[:-1]]).astype(np.int64)[: len(last)],
            last=last,
            encoding=np.where(encoded, np.cumsum(encoded) - 1, -1).astype(np.int64),
            encodings=PackedNames(
                json.dumps(value, separators=(",", ":")) for value in values if isinstance(value, dict)
            ),
        )


def encoded_mask(mask: Any, height: int, width: int) -> dict[str, Any]:
    """Return the compressed run-length encoding of polygons, of lengths, or of an encoding."""
    library = mask_library()
    if isinstance(mask, list):
        mask = library.merge(library.frPyObjects(mask, height, width))
    elif isinstance(mask["counts"], list):
        mask = library.frPyObjects(mask, *mask["size"])
    encoding: dict[str, Any] = mask
    return encoding


def mask_library() -> Any:
    """Return faster-coco-eval's functions on run-length encodings. Raises UserError when it is not installed."""
    try:
        return importlib.import_module("faster_coco_eval.core.mask")
    except ImportError as error:
        hint = "`pip install -e '.[detection]'`"
        raise UserError(f"masks need faster-coco-eval, which cannot be imported ({error}); {hint}") from None
