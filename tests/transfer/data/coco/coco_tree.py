"""A tiny dataset in the layout of COCO 2017."""

import json

import numpy as np
from PIL import Image

from transfer.data.coco.dataset import open_coco
from transfer.data.spec import DatasetSpec

SIZE = {"width": 40, "height": 30}
CROWD = {"size": [30, 40], "counts": [95, 5, 25, 5, 1070]}


def outline(x, y, width, height):
    """The polygon of a box."""
    return [[x, y, x + width, y, x + width, y + height, x, y + height]]


def objects(*given):
    """Annotations; each is given as (image id, category id, box) and what else is to be set."""
    made = []
    for number, (image, category, box, *more) in enumerate(given, start=1):
        own = {"image_id": image, "category_id": category, "bbox": box, "segmentation": outline(*box)}
        made.append({"id": number, "area": 50.5, "iscrowd": 0, **own, **dict(*more)})
    return made


def content(split):
    """Four images, ids not in the order of the file, the last without objects; categories 2, 7, 9."""
    base = 100 if split == "train" else 200
    images = [{"id": base + number, "file_name": f"{split}{number}.jpg", **SIZE} for number in (3, 1, 2, 4)]
    categories = [{"id": 9, "name": "cow"}, {"id": 2, "name": "ant"}, {"id": 7, "name": "bee"}]
    given = objects(
        (base + 2, 9, [4, 4, 10, 10]),
        (base + 1, 2, [1.5, 2.5, 10, 10]),
        (base + 2, 7, [3, 5, 2, 10], {"iscrowd": 1, "segmentation": CROWD}),
        (base + 3, 7, [0, 0, 40, 30]),
    )
    return {"info": {}, "images": images, "annotations": given, "categories": categories}


def written(root, *, train=None, val=None, layout="annotations/instances_{}2017.json"):
    for split, given in (("train", train), ("val", val)):
        given = given or content(split)
        file = root / layout.format(split)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(given) if isinstance(given, dict) else given)
        (root / f"{split}2017").mkdir(exist_ok=True)
        for number in range(1, 5):
            noise = np.random.default_rng([number, len(split)]).integers(0, 256, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(noise).save(root / f"{split}2017" / f"{split}{number}.jpg")
    return root


def spec(root, **facts):
    return DatasetSpec(name="tiny", format="coco", root=(str(root),), **facts)


def opened(root, **words):
    return open_coco(spec(root), None, **words)


def changed(key, place, **change):
    """Training annotations with one entry changed; ... takes a key out."""
    given = content("train")
    entry = {**given[key][place], **change}
    given[key][place] = {name: value for name, value in entry.items() if value is not ...}
    return given
