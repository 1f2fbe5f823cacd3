# pack.py: class folders as Parquet files
from pathlib import Path

from datasets import ClassLabel, Dataset, Features, Image

root, parts = Path("imagenet1k"), {"train": 256, "val": 16}


def rows(folder, classes):
    for name in classes:
        for file in sorted((folder / name).glob("*")):
            yield {"image": {"bytes": file.read_bytes(), "path": f"{name}/{file.name}"}, "label": name}


names = [folder.name for folder in (root / "train").iterdir()]
classes = sorted(names, key=int if all(map(str.isdecimal, names)) else None)
features = Features({"image": Image(), "label": ClassLabel(names=classes)})
for split, count in parts.items():
    data = Dataset.from_generator(rows, features, gen_kwargs={"folder": root / split, "classes": classes})
    for part in range(count):
        data.shard(count, part, contiguous=True).to_parquet(f"packed/{split}-{part:05d}-of-{count:05d}.parquet")
