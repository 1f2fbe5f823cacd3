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
    """Apply a trained run to new images."""

    run: Positional[Path]
    """The run's folder."""
    images: Positional[tuple[str, ...]]
    """Images: files, folders with all below them, patterns."""
    to: Path | None = None
    """Output file: .csv, .parquet, .json (of detections in COCO's format), or .npz (features instead of
    predictions); without it a table is printed."""
    features: bool = False
    """Return features instead of predictions."""
    gallery: tuple[str, ...] = ()
    """Gallery in which the nearest images are found by the cosine of features; a single image gives the similarity of
    pairs."""
    top: Annotated[int, Range(1)] = 5
    """Number of classes or neighbors per image."""
    pictures: Path | None = None
    """Folder for the images with the detections drawn; of `segment` for label images as PNG with a palette."""
    maps: Path | None = None
    """Folder for maps of the last block as PNG: attention, and the similarity of tokens."""
    drop_corrupt: bool = False
    """Exclude images that cannot be read, instead of an error that names them."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to compute on."""
    eval_batch_size: Annotated[int | None, Range(1)] = None
    """Images per batch; None: as in the run."""
    workers: Annotated[int | None, Range(0)] = None
    """Image-loading processes; None: as in runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to and Path(self.to).suffix not in PREDICTION_SUFFIXES:
            reject(f"--to {self.to}: it must end in {', '.join(PREDICTION_SUFFIXES)}")
