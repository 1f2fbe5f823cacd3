"""Options of predictions. Importing it is light."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from transfer.core.options import Checked, Range
from transfer.core.settings import Positional


@dataclass(kw_only=True)
class PredictOptions(Checked):
    """Use what a run trained."""

    run: Positional[Path]
    """The run's folder, or that of its weights."""
    images: Positional[tuple[str, ...]]
    """Images: files, folders with all below them, patterns."""
    to: Path | None = None
    """File for what is found; without it a table is printed. Detections: .json (COCO), .csv, .parquet; classes and
    neighbors: .csv, .parquet, .json; features: .npz, .parquet."""
    features: bool = False
    """Give features, whatever the task; .npz gives them anyway."""
    gallery: tuple[str, ...] = ()
    """Images of which the nearest by the cosine of features are found; a single one gives the similarity of pairs."""
    top: Annotated[int, Range(1)] = 5
    """Classes, or neighbors, of each image."""
    pictures: Path | None = None
    """Folder for the images with the detections drawn."""
    maps: Path | None = None
    """Folder for maps of the last block as PNG: attention, and the similarity of tokens."""
    drop_corrupt: bool = False
    """Leave out images that cannot be read, instead of an error that names them."""
    eval_batch_size: Annotated[int | None, Range(1)] = None
    """Images computed together. None: as in the run's evaluation; others can change the last bits of numbers, except
    for detections."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it computes."""
    workers: Annotated[int | None, Range(0)] = None
    """Processes that load images; None: as in runs."""
