"""The first gallery images of every query, as a run saves them, and the names and colors of pictures.

Shapes: Q queries, U gallery images in any of the lists, k places of a list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import unusable
from transfer.core.files import write_arrays

RANKED = "ranked.npz"  # in a run's folder
BOX_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000")
"""Colors of boxes and classes drawn on an image."""


@dataclass(frozen=True, eq=False)
class RankedLists:
    """First places of every query's ranked list, without its junk images."""

    query: NDArray[Any]
    """File names [Q] relative to the dataset's folder."""
    query_identity: NDArray[Any]
    """Identities [Q]."""
    query_camera: NDArray[Any]
    """Cameras [Q]."""
    gallery: NDArray[Any]
    """File names [U]."""
    gallery_identity: NDArray[Any]
    """Identities [U]."""
    gallery_camera: NDArray[Any]
    """Cameras [U]."""
    places: NDArray[Any]
    """Indices [Q, k] into the gallery's arrays, nearest first; -1 after the end of a list."""
    distances: NDArray[Any]
    """Distances [Q, k] of the places, nan after the end of a list."""

    @property
    def right(self) -> NDArray[Any]:
        """Return the mask [Q, k] of the places whose image shows the query's identity."""
        return (self.gallery_identity[self.places] == self.query_identity[:, None]) & (self.places >= 0)

    @classmethod
    def from_ranking(
        cls,
        nearest: NDArray[Any],
        query: Sequence[tuple[str, int, int]],
        gallery: Sequence[tuple[str, int, int]],
        distances: NDArray[Any],
    ) -> "RankedLists":
        """Create the lists from a ranking.

        Args:
            nearest: gallery indices [Q, k], `Ranking.nearest`.
            query, gallery: the file name, identity and camera of every image.
            distances: of the places [Q, k], `Ranking.nearest_distances`.
        """
        used = np.unique(nearest[nearest >= 0])
        places = np.where(nearest >= 0, np.searchsorted(used, nearest), -1)
        listed = [gallery[place] for place in used]
        columns = [np.array(column) for column in (*zip(*query), *zip(*listed))]
        return cls(*(*columns, places.astype(np.int32), distances))

    def save(self, path: Path) -> None:
        """Write a .npz file. Raises UserError if it cannot be written."""
        write_arrays(path, {item.name: getattr(self, item.name) for item in fields(self)})

    @classmethod
    def load(cls, path: Path) -> "RankedLists":
        """Read a file written by `save`. Raises UserError if it is missing or corrupt."""
        kinds, fix = (OSError, ValueError, KeyError, EOFError, BadZipFile), "remove the folder to run it again"
        with unusable(f"{path}: cannot be read", *kinds, fix=fix), np.load(path, allow_pickle=False) as file:
            return cls(**{item.name: file[item.name] for item in fields(cls)})


def evenly_spaced(total: int, count: int) -> list[int]:
    """Return `count` indices, or all, evenly spaced over a list of `total`."""
    return [int(place) for place in np.linspace(0, total - 1, min(count, total)).round()]


def file_name(name: str) -> str:
    """Return an image's path as the start of a file's name, another for each path: `a/b.jpg` as `a%2Fb.jpg`."""
    return name.replace("%", "%25").replace("/", "%2F")


def picture_name(row: int) -> str:
    """Return the file name of a query's picture, from its index among the queries."""
    return f"query-{row:05d}.jpg"
