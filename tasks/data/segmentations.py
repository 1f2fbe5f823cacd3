"""The segmentations of many objects in a few blocks of memory. Shapes: M objects, P polygons, N coordinates."""

import importlib
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from backbones.data.splits.packed_names import PackedNames
from backbones.errors import UserError


@dataclass(frozen=True, eq=False)
class Segmentations:
    """Segmentations as they stand in COCO's files: lists of polygons [x, y, x, y, ...] in pixels, run-length encodings
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

    def polygon_extents(self) -> NDArray[Any]:
        """Return x and y where each object's polygons begin and end [M, 4], NaN without; for use before `select`."""
        extents, rows = np.full((len(self), 4), np.nan), np.flatnonzero(self.first < self.last)
        if len(rows):
            points, starts = self.coordinates.reshape(-1, 2), np.append(0, self.ends)[self.first[rows]] // 2
            extents[rows] = np.hstack([np.minimum.reduceat(points, starts), np.maximum.reduceat(points, starts)])
        return extents

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
    def collect(cls, values: Iterable[Any]) -> Self:
        """Return the segmentations of many objects, each in COCO's form."""
        collector = Collector()
        collector.add(list(values))
        return cls(**collector.fields())


class Collector:
    """Takes the segmentations of a file's objects, some of them at a time."""

    def __init__(self) -> None:
        self.coordinates, self.ends, self.last = array("d"), array("q"), array("q")
        self.encoding, self.encodings = array("q"), list[dict[str, Any]]()

    def add(self, values: Sequence[Any]) -> None:
        """Add the segmentations of the next objects: polygons, run-length encodings, or None."""
        polygons = [polygon for value in values if value.__class__ is list for polygon in value]
        start = len(self.coordinates)
        self.coordinates.frombytes(np.array(list(chain.from_iterable(polygons)), dtype=np.float64).tobytes())
        self.ends.extend((start + np.cumsum([len(polygon) for polygon in polygons], dtype=np.int64)).tolist())
        last = self.last[-1] if self.last else 0
        for value in values:
            encoded = isinstance(value, dict)
            self.encoding.append(len(self.encodings) if encoded else -1)
            if encoded:
                self.encodings.append(value)
            elif value:
                last += len(value)
            self.last.append(last)

    def fields(self) -> dict[str, Any]:
        """Return the fields of `Segmentations`."""
        last = np.array(self.last, dtype=np.int64)
        return {
            "coordinates": np.frombuffer(self.coordinates, dtype=np.float64),
            "ends": np.array(self.ends, dtype=np.int64),
            "first": np.concatenate([[0], last[:-1]]).astype(np.int64)[: len(last)],
            "last": last,
            "encoding": np.array(self.encoding, dtype=np.int64),
            "encodings": PackedNames(json.dumps(encoding, separators=(",", ":")) for encoding in self.encodings),
        }


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
