"""The classes of ImageNet-1k's validation images where these lie in one folder, as published."""

import csv
from pathlib import Path

import numpy as np

from backbones.errors import MissingInput, UserError, reason_of

SOLUTION = "LOC_val_solution.csv"
TRUTH, META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"


def ground_truth(folder: Path) -> tuple[dict[str, str], Path]:
    """Return {image name without suffix: WordNet id} and the file that lists them, searched for in the folders above.

    Raises:
        UserError: there is none, or it does not parse.
    """
    above = list(folder.parents[:4])
    found = [(read, path) for pattern, read in READERS for place in above for path in sorted(place.glob(pattern))]
    if not found:
        raise MissingInput(
            f"{folder}: images without class folders, and neither {SOLUTION} (Kaggle) nor ILSVRC2012_devkit_t12/ "
            f"(extracted) in {folder.parent} or above it; put one of them there, or sort the images into class folders"
        )
    read, path = found[0]
    try:
        return read(path), path
    except Exception as error:  # scipy's and csv's are of many kinds
        raise UserError(f"{path}: not the list of the validation images' classes ({reason_of(error)})") from None


def _solution(path: Path) -> dict[str, str]:
    """Read Kaggle's lines `ILSVRC2012_val_00000001,n01751748 111 108 230 366`: the class, then boxes."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}


def _devkit(path: Path) -> dict[str, str]:
    """Read the devkit: line i has the number of the class of validation image i, and `meta.mat` the WordNet ids."""
    from scipy.io import loadmat

    synsets = np.atleast_1d(loadmat(path.with_name(META), squeeze_me=True)["synsets"])
    wnid_of = {int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
    lines = path.read_text(encoding="utf-8-sig").split()
    return {f"ILSVRC2012_val_{number:08d}": wnid_of[int(line)] for number, line in enumerate(lines, start=1)}


READERS = ((SOLUTION, _solution), (f"*devkit*/data/{TRUTH}", _devkit), (f"data/{TRUTH}", _devkit))
"""Patterns of the lists, the likelier first, and their readers."""
