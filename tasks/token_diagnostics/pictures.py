"""Draws the maps of a run of task `tokens`: a strip for each image."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from backbones.runtime.files import write_error
from tasks.task import PICTURES
from tasks.token_diagnostics.maps import MAPS, read_maps


def save_pictures(folder: Path, images: Dataset[tuple[Tensor, Tensor]], count: int) -> None:
    """Draw the maps of `count` images of a run into its folder `pictures`.

    Args:
        folder: of the run.
        images: validation split as the backbone saw it, [3, H, W] in [0, 1].
        count: number of images.

    Raises:
        UserError: the maps are missing, or a visualization cannot be written.
    """
    places, maps = read_maps(folder / MAPS)
    try:
        (folder / PICTURES).mkdir(exist_ok=True)
        for number, place in enumerate(places[:count]):
            pixels = images[place][0].clamp(0, 1).permute(1, 2, 0).numpy()
            values = {name: of_images[number] for name, of_images in maps.items()}
            strip(pixels, values).savefig(folder / PICTURES / f"tokens-{place:05d}.png")
    except OSError as error:
        raise write_error(folder / PICTURES, error) from error


def strip(image: NDArray[Any], maps: dict[str, NDArray[Any]]) -> Figure:
    """Draw an image [H, W, 3] and beside it the similarity [h, w] of its tokens with the marked one, from -1 to 1."""
    figure = Figure(figsize=(1.5 * (1 + len(maps)), 1.7), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(maps), squeeze=False)[0]
    first.imshow(image)
    for axes, (name, values) in zip(others, maps.items(), strict=True):
        axes.imshow(values, vmin=-1, vmax=1)
        axes.scatter(values.shape[1] // 2, values.shape[0] // 2, marker="s", facecolors="none", edgecolors="#d55e00")
        axes.set_title(name, fontsize="small")
    for axes in (first, *others):
        axes.set_axis_off()
    return figure
