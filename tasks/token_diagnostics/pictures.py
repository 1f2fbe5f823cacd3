"""Draws the maps of a run of task `tokens`: a strip for each image, and one picture of the stem's first filters."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor
from torch.utils.data import Dataset

from backbones.runtime.files import write_error
from tasks.picture_checksums import PICTURES, write_sums
from tasks.token_diagnostics.maps import MAPS, read_maps

SIDE, GAP, BAND = 128, 6, 16  # pixels
ZOOM = 4
"""Pixels of a picture for a pixel of a filter, at least."""


def save_pictures(folder: Path, images: Dataset[tuple[Tensor, Tensor]], count: int) -> None:
    """Draw the maps of `count` images of a run, and its filters, into its folder `pictures`.

    Args:
        folder: of the run.
        images: validation split as the backbone saw it, [3, H, W] in [0, 1].
        count: number of images.

    Raises:
        UserError: the maps are gone, or a picture cannot be written.
    """
    places, maps, filters = read_maps(folder / MAPS)
    pictures: dict[str, Image.Image] = {} if filters is None else {"filters.png": filter_grid(filters)}
    for number, place in enumerate(places[:count]):
        pixels = (images[place][0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        values = {name: of_images[number] for name, of_images in maps.items()}
        pictures[f"tokens-{place:05d}.png"] = strip(Image.fromarray(pixels), values)
    try:
        (folder / PICTURES).mkdir(exist_ok=True)
        for name, picture in pictures.items():
            picture.save(folder / PICTURES / name)
        write_sums(folder / PICTURES, pictures)
    except OSError as error:
        raise write_error(folder / PICTURES, error) from error


def strip(image: Image.Image, maps: dict[str, NDArray[Any]]) -> Image.Image:
    """Draw an image and beside it the similarity [h, w] of its tokens with the framed one: -1 is dark, 1 is bright."""
    drawn = Image.new("RGB", ((SIDE + GAP) * (1 + len(maps)) + GAP, SIDE + BAND + 2 * GAP), "white")
    pen = ImageDraw.Draw(drawn)
    tiles = {"image": image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)}
    tiles |= {name: _heat(values) for name, values in maps.items()}
    for number, (name, tile) in enumerate(tiles.items()):
        x = GAP + number * (SIDE + GAP)
        drawn.paste(tile, (x, GAP + BAND))
        pen.text((x, GAP), name, fill="black")
        if name in maps:
            height, width = maps[name].shape
            row, column = height // 2, width // 2
            box = (column * SIDE / width, row * SIDE / height, (column + 1) * SIDE / width, (row + 1) * SIDE / height)
            pen.rectangle(
                [round(side) + (x, GAP + BAND)[at % 2] for at, side in enumerate(box)], outline="#d55e00", width=2
            )
    return drawn


def _heat(values: NDArray[Any]) -> Image.Image:
    from matplotlib import colormaps

    shown = (np.nan_to_num(values.astype(float)) + 1) / 2
    colours = (colormaps["viridis"](np.clip(shown, 0, 1))[:, :, :3] * 255).round().astype(np.uint8)
    return Image.fromarray(colours).resize((SIDE, SIDE), Image.Resampling.NEAREST)


def filter_grid(filters: NDArray[Any]) -> Image.Image:
    """Draw filters [D, 3, k, k] as a grid; each is stretched from its smallest weight (0) to its largest (255)."""
    low, high = (found(axis=(1, 2, 3), keepdims=True) for found in (filters.min, filters.max))
    shown = ((filters - low) / np.where(high > low, high - low, 1) * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
    size = filters.shape[2] * max(ZOOM, 24 // filters.shape[2])
    across = int(np.ceil(len(filters) ** 0.5))
    grid = Image.new("RGB", (across * (size + 2) + 2, -(-len(filters) // across) * (size + 2) + 2), "white")
    for number, pixels in enumerate(shown):
        tile = Image.fromarray(pixels).resize((size, size), Image.Resampling.NEAREST)
        grid.paste(tile, (2 + number % across * (size + 2), 2 + number // across * (size + 2)))
    return grid
