"""Small classification sets on disk."""

import functools
import io
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from transfer.data.spec import DatasetSpec
from transfer.data.toy.digits import WRITERS


def spec(kind, root, *, counts=None, held_out=0.0, **options):
    return DatasetSpec(name="mine", format=kind, root=(str(root),), counts=counts, held_out=held_out, options=options)


def saved(image, kind="JPEG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def encoded(*key):
    """A JPEG of 12 x 16 pixels that no other key gives."""
    pixels = np.random.default_rng(key).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return saved(Image.fromarray(pixels), quality=90)


def write_images(folder, count, *key):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number}.jpg").write_bytes(encoded(*key, number))
    return folder


def write_folders(root: Path, classes=("bird", "cat", "dog"), train=5, val=2, val_name="val"):
    """train/CLASS/N.jpg and val/CLASS/N.jpg."""
    for label, name in enumerate(classes):
        write_images(root / "train" / name, train, label)
        write_images(root / val_name / name, val, 100 + label)
    return root


def write_parquet(path, rows, names=("bird", "cat", "dog"), image="image", label="label", **others):
    """Rows of (bytes or {"bytes", "path"}, label); `others` are columns of more labels."""
    from datasets import ClassLabel, Dataset, Features
    from datasets import Image as ImageFeature

    images = [{"bytes": content} if isinstance(content, bytes) else content for content, _ in rows]
    kinds = {label: ClassLabel(names=list(names)), **{name: ClassLabel(max(others[name]) + 1) for name in others}}
    columns = {image: images, label: [number for _, number in rows], **others}
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_dict(columns, features=Features({image: ImageFeature(), **kinds})).to_parquet(str(path))
    return path


@functools.cache
def _toy(name):
    """One copy of a toy set for the whole run; the object must live as long as its folder."""
    folder = tempfile.TemporaryDirectory()
    WRITERS[name](Path(folder.name))
    return folder


def write_toy(name, root: Path):
    """The files of `toy_NAME`, to be spoilt or not."""
    return shutil.copytree(_toy(name).name, root, dirs_exist_ok=True)


def rows(train=5, classes=3, key=0):
    """What `write_folders` writes as its training split, as rows, in another order."""
    listed = [(encoded(key + label, number), label) for label in range(classes) for number in range(train)]
    return [listed[place] for place in np.random.default_rng(0).permutation(len(listed))]
