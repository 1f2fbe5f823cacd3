# pack.py: class folders as Parquet files
from pathlib import Path
from tempfile import TemporaryDirectory

from datasets import ClassLabel, Dataset, Features, Image

root, parts = Path("imagenet1k"), {"train": 256, "val": 16}


def rows(folder, classes):
    for name in classes:
        for file in sorted((folder / name).glob("[!.]*")):
            yield {"image": {"bytes": file.read_bytes(), "path": f"{name}/{file.name}"}, "label": name}


names = [folder.name for folder in (root / "train").iterdir() if folder.is_dir()]
classes = sorted(names, key=int if all(map(str.isdecimal, names)) else None)
features = Features({"image": Image(), "label": ClassLabel(names=classes)})
for split, count in parts.items():
    with TemporaryDirectory(dir=".") as cache:  # the usual one would be read again for images that have changed
        source = {"folder": root / split, "classes": classes}
        data = Dataset.from_generator(rows, features, cache_dir=cache, gen_kwargs=source)
        for part in range(count):
            data.shard(count, part, contiguous=True).to_parquet(f"packed/{split}-{part:05d}-of-{count:05d}.parquet")
