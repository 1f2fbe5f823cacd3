"""Options of predictions. Importing it is light."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from transfer.core.errors import reject
from transfer.core.options import Checked, Range
from transfer.core.settings import Positional

PREDICTION_SUFFIXES = (".json", ".csv", ".parquet", ".npz")


@dataclass(kw_only=True)
class PredictOptions(Checked):
    """Use what a run trained."""

    run: Positional[Path]
    """The run's folder."""
    images: Positional[tuple[str, ...]]
    """Images: files, folders with all below them, patterns."""
    to: Path | None = None
    """File for what is found: .csv, .parquet, .json (of detections in COCO's format), or .npz, which has features;
    without it a table is printed."""
    features: bool = False
    """Return features, for every task."""
    gallery: tuple[str, ...] = ()
    """Images to search for the nearest, by the cosine of features; a single one gives the similarity of pairs."""
    top: Annotated[int, Range(1)] = 5
    """Classes, or neighbors, of each image."""
    pictures: Path | None = None
    """Folder for the images with the detections drawn; of `segment` for label images as PNG with a palette."""
    maps: Path | None = None
    """Folder for maps of the last block as PNG: attention, and the similarity of tokens."""
    drop_corrupt: bool = False
    """Exclude images that cannot be read, instead of an error that names them."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on."""
    workers: Annotated[int | None, Range(0)] = None
    """Processes that load images; None: as in runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to and Path(self.to).suffix not in PREDICTION_SUFFIXES:
            reject(f"--to {self.to}: it must end in {', '.join(PREDICTION_SUFFIXES)}")
