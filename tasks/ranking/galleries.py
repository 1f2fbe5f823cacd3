"""The first gallery images of every query, saved with a run, and drawn as pictures with marks for matches.

Letters: Q queries, U gallery images in any of the lists, k places of a list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from backbones.errors import UserError
from backbones.runtime.files import open_regular, write_arrays, write_error
from tasks.picture_checksums import PICTURES, write_sums

RANKED = "ranked.npz"  # in a run's folder
PLACES = 10
RIGHT, WRONG, QUERY = (
    "#0072b2",
    "#d55e00",
    "#555555",
)  # safe for colour-blind readers; the marks differ in shape as well
HEIGHT, WIDEST, FRAME, GAP, BAND = 128, 192, 3, 6, 16  # pixels


@dataclass(frozen=True, eq=False, kw_only=True)
class RankedLists:
    """First places of every query's ranked list, without its junk images."""

    query: NDArray[Any]
    """File names [Q] relative to the data set's folder."""
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
    distances: NDArray[Any] | None = None
    """Distances [Q, k] of the places, nan after the end of a list; None where they were not kept."""

    @property
    def right(self) -> NDArray[Any]:
        """Return the mask [Q, k] of the places whose image shows the query's identity."""
        right: NDArray[Any] = (self.gallery_identity[self.places] == self.query_identity[:, None]) & (self.places >= 0)
        return right

    @classmethod
    def from_ranking(
        cls,
        nearest: NDArray[Any],
        query: Sequence[tuple[str, int, int]],
        gallery: Sequence[tuple[str, int, int]],
        distances: NDArray[Any] | None = None,
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
        return cls(**dict(zip(_NAMES, columns)), places=places.astype(np.int32), distances=distances)

    def save(self, path: Path) -> None:
        """Write a .npz file. Raises UserError if it cannot be written."""
        arrays = {name: getattr(self, name) for name in (*_NAMES, "places")}
        write_arrays(path, arrays | ({} if self.distances is None else {"distances": self.distances}))

    @classmethod
    def load(cls, path: Path) -> "RankedLists":
        """Read a file written by `save`.

        Raises:
            UserError: the file is missing or has another content.
        """
        try:
            with open_regular(path) as opened, np.load(opened, allow_pickle=False) as file:
                distances = file.get("distances")
                lists = cls(**{name: file[name] for name in (*_NAMES, "places")}, distances=distances)
            lists._check()
            return lists
        except FileNotFoundError:
            raise UserError(f"{path} is gone; remove the folder to run it again") from None
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise UserError(f"{path}: no ranked lists ({error}); remove the folder to run it again") from None

    def _check(self) -> None:
        """Raise ValueError if the sizes of the arrays disagree."""
        sizes = [len({len(getattr(self, name)) for name in _NAMES if name.startswith(side)}) for side in ("q", "g")]
        inside = self.places.ndim == 2 and self.places.min(initial=-1) >= -1
        inside &= self.distances is None or self.distances.shape == self.places.shape
        if sizes != [1, 1] or not inside or len(self.places) != len(self.query):
            raise ValueError("its arrays do not fit together")
        if self.places.max(initial=-1) >= len(self.gallery):
            raise ValueError("it names gallery images that it lacks")


_NAMES = [item.name for item in fields(RankedLists) if item.name not in ("places", "distances")]


def evenly(total: int, count: int) -> list[int]:
    """Return `count` indices, or all, evenly spaced over a list of `total`."""
    return [int(place) for place in np.linspace(0, total - 1, min(count, total)).round()]


def save_pictures(folder: Path, root: Path, count: int) -> None:
    """Draw the lists of `count` queries of a run into its folder `pictures`.

    Args:
        folder: the run's folder.
        root: the folder of the data set's images.

    Raises:
        UserError: the lists are gone, an image cannot be read, or a picture cannot be written.
    """
    lists = RankedLists.load(folder / RANKED)
    try:
        (folder / PICTURES).mkdir(exist_ok=True)
        rows = evenly(len(lists.query), count)
        for row in rows:
            picture(lists, row, root).save(folder / PICTURES / picture_name(row), quality=85)
        write_sums(folder / PICTURES, map(picture_name, rows))
    except OSError as error:
        raise write_error(folder / PICTURES, error) from error


def picture_name(row: int) -> str:
    """Return the file name of a query's picture, from its index among the queries."""
    return f"query-{row:05d}.jpg"


def picture(lists: RankedLists, row: int, root: Path) -> Image.Image:
    """Draw a query and its list beside it, with a tick or a cross below each image. Raises UserError."""
    tiles = [_tile(root / str(lists.query[row]), QUERY, None)]
    for place, right in zip(lists.places[row], lists.right[row]):
        if place >= 0:
            tiles.append(_tile(root / str(lists.gallery[place]), RIGHT if right else WRONG, bool(right)))
    width = sum(tile.width + GAP for tile in tiles) + GAP
    strip = Image.new("RGB", (width, tiles[0].height), "white")
    x = 0
    for number, tile in enumerate(tiles):
        strip.paste(tile, (x, 0))
        x += tile.width + (GAP if number else 2 * GAP)
    return strip


def _tile(path: Path, colour: str, right: bool | None) -> Image.Image:
    """Draw an image in a frame over a band with a tick if `right`, else a cross; None leaves the band plain."""
    from backbones.data.loading.read_image import read_image

    image = read_image(str(path))
    width = min(max(round(image.width * HEIGHT / image.height), 1), WIDEST)
    image = image.resize((width, HEIGHT), Image.Resampling.BICUBIC)
    tile = Image.new("RGB", (width + 2 * FRAME, HEIGHT + 2 * FRAME + BAND), colour)
    tile.paste(image, (FRAME, FRAME))
    if right is not None:
        pen, x, y = ImageDraw.Draw(tile), tile.width // 2, tile.height - BAND // 2 - 2
        if right:
            pen.line([(x - 6, y), (x - 2, y + 4), (x + 6, y - 5)], fill="white", width=3)
        else:
            pen.line([(x - 5, y - 5), (x + 5, y + 5)], fill="white", width=3)
            pen.line([(x - 5, y + 5), (x + 5, y - 5)], fill="white", width=3)
    return tile
