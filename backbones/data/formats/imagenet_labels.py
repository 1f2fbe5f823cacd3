"""The classes of ImageNet-1k's validation images where these lie in one folder, as published."""

import csv
import re
from pathlib import Path

import numpy as np

from backbones.errors import UserError, reason_of

SOLUTION = "LOC_val_solution.csv"
TRUTH, META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"


def ground_truth(folder: Path) -> tuple[dict[str, str], Path]:
    """Return {image name without suffix: WordNet id} and the file that lists them, searched for in the folders above.

    Raises:
        UserError: there is none, or it does not parse.
    """
    above = list(folder.parents[:4])
    for place in above:
        if (place / SOLUTION).is_file():
            return _solution(place / SOLUTION), place / SOLUTION
    for place in above:
        for path in sorted([*place.glob(f"*devkit*/data/{TRUTH}"), *place.glob(f"data/{TRUTH}")]):
            return _devkit(path), path
    raise UserError(
        f"{folder}: images without class folders, and neither {SOLUTION} (Kaggle) nor ILSVRC2012_devkit_t12/ "
        f"(extracted) in {folder.parent} or above it; put one of them there, or sort the images into class folders"
    )


def _solution(path: Path) -> dict[str, str]:
    """Read Kaggle's lines `ILSVRC2012_val_00000001,n01751748 111 108 230 366`: the class, then boxes."""
    truth = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                truth[row["ImageId"]] = row["PredictionString"].split()[0]
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, IndexError, AttributeError) as error:
        raise UserError(f"{path}: not Kaggle's list of ImageId,PredictionString ({reason_of(error)})") from None
    return truth


def _devkit(path: Path) -> dict[str, str]:
    """Read the devkit: line i has the number of the class of validation image i, and `meta.mat` the WordNet ids."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    meta = path.with_name(META)
    try:
        synsets = np.atleast_1d(loadmat(meta, squeeze_me=True)["synsets"])
        wnid_of = {
            int(number): str(wnid) for number, wnid in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)
        }
    except (OSError, MatReadError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{meta}: not the list of classes of the ILSVRC2012 devkit ({error})") from None
    truth = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        if not re.fullmatch(r"\s*\d+\s*", line) or int(line) not in wnid_of:
            raise UserError(f"{path}:{number}: {line!r} is not the number of a class in {META}")
        truth[f"ILSVRC2012_val_{number:08d}"] = wnid_of[int(line)]
    return truth
