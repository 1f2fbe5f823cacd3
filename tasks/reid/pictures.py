"""The first gallery images of every query, saved with a run and visualized with marks for matches.

Shapes: Q queries, U gallery images in any of the lists, k places of a list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from transfer.core.errors import UserError
from transfer.core.files import write_arrays, write_error
from transfer.task import PICTURES

RANKED = "ranked.npz"  # in a run's folder
PLACES = 10
RIGHT, WRONG, QUERY = "#0072b2", "#d55e00", "#555555"  # safe for color-blind readers
HEIGHT, WIDEST, FRAME, GAP, BAND = 128, 192, 3, 6, 16  # pixels


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
        columns = [np.array(column) for column in zip(*query)]
        columns += [np.array(column) for column in zip(*(gallery[place] for place in used))]
        return cls(*(*columns, places.astype(np.int32), distances))

    def save(self, path: Path) -> None:
        """Write a .npz file. Raises UserError if it cannot be written."""
        write_arrays(path, {item.name: getattr(self, item.name) for item in fields(self)})

    @classmethod
    def load(cls, path: Path) -> "RankedLists":
        """Read a file written by `save`. Raises UserError if it is missing or corrupt."""
        arrays = read_arrays(path)
        return cls(**{item.name: arrays[item.name] for item in fields(cls)})


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a .npz file of a run. Raises UserError if it is missing or corrupt."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise UserError(f"{path}: cannot be read ({error}); remove the folder to run it again") from None


def evenly(total: int, count: int) -> list[int]:
    """Return `count` indices, or all, evenly spaced over a list of `total`."""
    return [int(place) for place in np.linspace(0, total - 1, min(count, total)).round()]


def save_pictures(folder: Path, root: Path, count: int) -> None:
    """Draw the lists of `count` queries of a run into its folder `pictures`.

    Args:
        folder: the run's folder.
        root: the folder of the dataset's images.

    Raises:
        UserError: the lists are missing, an image cannot be read, or a picture cannot be written.
    """
    lists = RankedLists.load(folder / RANKED)
    try:
        (folder / PICTURES).mkdir(exist_ok=True)
        for row in evenly(len(lists.query), count):
            picture(lists, row, root).save(folder / PICTURES / picture_name(row), quality=85)
    except OSError as error:
        raise write_error(folder / PICTURES, error) from error


def picture_name(row: int) -> str:
    """Return the file name of a query's picture, from its index among the queries."""
    return f"query-{row:05d}.jpg"


def picture(lists: RankedLists, row: int, root: Path) -> Image.Image:
    """Draw a query and its list beside it, with "same" or "other" below each image. Raises UserError."""
    tiles = [_tile(root / str(lists.query[row]), QUERY, "query")]
    for place, right in zip(lists.places[row], lists.right[row]):
        if place >= 0:
            tiles.append(_tile(root / str(lists.gallery[place]), *((RIGHT, "same") if right else (WRONG, "other"))))
    width = sum(tile.width + GAP for tile in tiles) + GAP
    strip = Image.new("RGB", (width, tiles[0].height), "white")
    x = 0
    for number, tile in enumerate(tiles):
        strip.paste(tile, (x, 0))
        x += tile.width + (GAP if number else 2 * GAP)
    return strip


def _tile(path: Path, color: str, word: str) -> Image.Image:
    """Draw an image in a frame over a band with a word."""
    from transfer.data.loading.read_image import read_image

    image = read_image(str(path))
    width = min(max(round(image.width * HEIGHT / image.height), 1), WIDEST)
    tile = Image.new("RGB", (width + 2 * FRAME, HEIGHT + 2 * FRAME + BAND), color)
    tile.paste(image.resize((width, HEIGHT), Image.Resampling.BICUBIC), (FRAME, FRAME))
    ImageDraw.Draw(tile).text((tile.width / 2, tile.height - BAND / 2 - 1), word, fill="white", anchor="mm")
    return tile
