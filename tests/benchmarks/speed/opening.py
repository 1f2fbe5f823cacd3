"""Seconds and memory of opening data of ImageNet-1k's and COCO train2017's size, first and from the index.

    python -m tests.benchmarks opening [--files 1281167] [--images 118287] [--objects 860001]

Hard links to a few drawn files stand for ImageNet's, drawn polygons for COCO's. Each opening is a process of its own,
which has imported what a run imports; the seconds are those of the opening, the memory is the process's peak without
that of the imports.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 1000
LINKS = 50_000
"""Names that one file gets: file systems allow no more than some 65,000."""
OPEN = """
import resource, time, timm, torch
from pathlib import Path
{imports}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
before, start = peak(), time.perf_counter()
{call}
print(f"{{time.perf_counter() - start:.2f}} s, {{peak() - before:.2f}} GiB")
"""
FOLDERS = (
    "from backbones.data.classification import open_classification\nfrom backbones.data.spec import resolve_dataset",
    "open_classification(resolve_dataset({path!r}), None)",
)
ANNOTATIONS = (
    "from tasks.data.coco_annotations import read_split",
    "read_split('train', Path({path!r}), Path({path!r}).parent)",
)


def link_images(folder: Path, count: int) -> Path:
    """Fill class folders, and return the YAML file that names them."""
    generator = np.random.default_rng(0)
    (folder / "drawn").mkdir()
    for number in range(-(-count // LINKS)):
        pixels = generator.integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "drawn" / f"{number}.jpg")
    for label in range(CLASSES):
        (folder / "set" / "train" / f"n{label:08d}").mkdir(parents=True)
    for number in range(count):
        name = f"n{number % CLASSES:08d}"
        os.link(folder / "drawn" / f"{number // LINKS}.jpg", folder / "set" / "train" / name / f"{name}_{number}.JPEG")
    path = folder / "set.yaml"
    path.write_text("format: image_folder\nroot: set\n", encoding="utf-8")
    time.sleep(3)  # an index of folders that have just changed is not kept
    return path


def annotation_pieces(images: int, objects: int) -> Iterator[str]:
    """Yield the text of a file in COCO's format: 80 classes, polygons of some 24 points, a crowd among 86 objects."""
    generator = np.random.default_rng(0)
    yield '{"images": ['
    for number in range(images):
        entry = {"license": 4, "file_name": f"{number:012d}.jpg", "height": 480, "width": 640, "id": number}
        entry["coco_url"] = f"http://images.cocodataset.org/train2017/{number:012d}.jpg"
        yield ("" if number == 0 else ", ") + json.dumps(entry)
    yield '], "annotations": ['
    where, label = generator.integers(0, images, objects).tolist(), generator.integers(1, 81, objects).tolist()
    for number, points in enumerate(np.clip(generator.geometric(1 / 24, objects), 3, 400).tolist()):
        crowd = number % 86 == 0
        polygon = np.round(generator.random(2 * points) * 450, 2).tolist()
        entry = {
            "segmentation": {"counts": [100, 50, 640 * 480 - 150], "size": [480, 640]} if crowd else [polygon],
            "area": round(float(generator.random()) * 9000 + 1, 4),
            "iscrowd": int(crowd),
            "image_id": where[number],
            "bbox": np.round(generator.random(4) * [300, 200, 300, 200] + 1, 2).tolist(),
            "category_id": label[number],
            "id": number + 1,
        }
        yield ("" if number == 0 else ", ") + json.dumps(entry)
    yield '], "categories": ' + json.dumps([{"id": number, "name": f"class {number}"} for number in range(1, 81)]) + "}"


def draw_annotations(folder: Path, images: int, objects: int) -> Path:
    """Write the file, and return its path."""
    path = folder / "instances_train2017.json"
    with path.open("w", encoding="utf-8") as file:
        file.writelines(annotation_pieces(images, objects))
    time.sleep(3)
    return path


def opened(code: tuple[str, str], path: Path, cache: Path) -> str:
    """Open in a process of its own, and return what it printed."""
    imports, call = code
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", OPEN.format(imports=imports, call=call.format(path=str(path)))]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each opening."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_281_167)
    parser.add_argument("--images", type=int, default=118_287)
    parser.add_argument("--objects", type=int, default=860_001)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, code, path in (
            (f"{given.files:,} files", FOLDERS, link_images(folder, given.files)),
            (f"{given.objects:,} objects", ANNOTATIONS, draw_annotations(folder, given.images, given.objects)),
        ):
            for turn in ("first", "from the index", "from the index"):
                print(f"{title}, {turn}: {opened(code, path, folder / 'cache')}")
    return 0
