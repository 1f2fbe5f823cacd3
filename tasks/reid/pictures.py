"""The first gallery images of every query, saved with a run and visualized with marks for matches.

Shapes: Q queries, U gallery images in any of the lists, k places of a list.
"""

from pathlib import Path

from PIL import Image, ImageDraw

from transfer.core.files import writing
from transfer.core.pictures import RANKED, RankedLists, evenly_spaced, picture_name
from transfer.task import PICTURES

SHOWN_PLACES = 10
RIGHT, WRONG, QUERY = "#0072b2", "#d55e00", "#555555"  # safe for color-blind readers
HEIGHT, WIDEST, FRAME, GAP, BAND = 128, 192, 3, 6, 16  # pixels


def save_pictures(folder: Path, root: Path, count: int) -> None:
    """Draw the lists of `count` queries of a run into its folder `pictures`.

    Args:
        folder: the run's folder.
        root: the folder of the dataset's images.

    Raises:
        UserError: the lists are missing, an image cannot be read, or a picture cannot be written.
    """
    lists = RankedLists.load(folder / RANKED)
    with writing(folder / PICTURES):
        (folder / PICTURES).mkdir(exist_ok=True)
        for row in evenly_spaced(len(lists.query), count):
            picture(lists, row, root).save(folder / PICTURES / picture_name(row), quality=85)


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
