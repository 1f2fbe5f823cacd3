"""The files that the commands work on: small drawn data in several layouts, a user's own parts, exported weights."""

import hashlib
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from backbones.backbone import create
from backbones.checkpoints.exports import export
from backbones.settings import write_yaml
from tests.backbones.data.layouts import write_parquet

CLASSES = ("ant", "bee", "cow")
TRAIN, VAL = 8, 4
MODES = ("RGB", "L", "RGBA", "P")
USER = '''
"""A user's own parts."""

import torch
from torch import nn


class Net(nn.Module):
    """A whole model: images to features."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 2, 2))

    def forward(self, images):
        return self.body(images).mean((2, 3))


class Stem(nn.Module):
    """Two strided convolutions."""

    def __init__(self, dim, patch):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.GELU(), nn.Conv2d(8, dim, patch // 2, patch // 2))

    def forward(self, images):
        return self.body(images)


class Ffn(nn.Module):
    """A gated FFN."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.rise, self.fall = nn.Linear(dim, 2 * hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        left, right = self.rise(x).chunk(2, -1)
        return self.fall(left * right.sigmoid())


def attend(q, k, v):
    """Tanh in the place of the softmax."""
    return torch.tanh(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5) @ v
'''


def drawn(label: int, number: int, size: tuple[int, int]) -> Image.Image:
    """An image of a class: stripes whose width the label decides, under noise that the number decides."""
    generator = np.random.default_rng([label, number])
    height, width = size
    stripes = np.sin(np.arange(width) * (label + 1) / 3 + generator.uniform(0, 6))[None, :, None]
    tint = generator.uniform(0.3, 1, 3)
    values = 128 + 70 * stripes * tint + generator.normal(0, 20, (height, width, 3))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


class Places:
    """A folder with everything that commands name, each made when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def user(self, name: str) -> str:
        """`file.py:Name` of a part of the user's."""
        path = self.root / "mine.py"
        if not path.exists():
            path.write_text(USER)
        return f"{path}:{name}"

    def data(self, kind: str, form: str) -> Path:
        """The YAML of a data set: of labelled images, people or scenes, in `folders` or `packed`."""
        path = self.root / f"{kind}_{form}.yaml"
        if not path.exists():
            path.write_text(write_yaml(getattr(self, f"_{kind}_{form}")(self.root / f"{kind}_{form}")))
        return path

    def export(self, backbone: str, **parts: str) -> Path:
        """Weights of a backbone with these parts, with a classifier for the drawn classes."""
        key = hashlib.sha256(repr((backbone, sorted(parts.items()))).encode()).hexdigest()[:12]
        folder = self.root / f"export_{Path(backbone).name.rpartition(':')[2]}_{key}"
        if not folder.exists():
            torch.manual_seed(5)
            typed = {name: value == "True" if value in ("True", "False") else value for name, value in parts.items()}
            made = create(backbone, img_size=(32, 32), classes=len(CLASSES), weights="random", **typed)
            export(made, folder, {"pretrain.json": {"classes": list(CLASSES), "run": "drawn"}})
        return folder

    def _labelled_folders(self, root: Path) -> dict[str, str]:
        for split, count, start in (("train", TRAIN, 0), ("val", VAL, 100)):
            for label, name in enumerate(CLASSES):
                for number in range(count):
                    path = root / split / name / f"{number:02d}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    image = drawn(label, start + number, (32 + 2 * (number % 3), 36))
                    image.convert(MODES[number % len(MODES)]).save(path)
        return {"format": "image_folder", "root": str(root)}

    def _labelled_packed(self, root: Path) -> dict[str, str]:
        """The same images, in the same order, as rows of Parquet files."""
        folders = self.root / "labelled_folders"
        self.data("labelled", "folders")
        for split in ("train", "val"):
            rows = [
                (path.read_bytes(), label)
                for label, name in enumerate(CLASSES)
                for path in sorted((folders / split / name).iterdir())
            ]
            write_parquet(root / f"{split}.parquet", rows, CLASSES)
        return {"format": "parquet", "root": str(root)}

    def _people_folders(self, root: Path) -> dict[str, str]:
        """Market-1501's layout: six people to train on, nine to find, distractors and junk."""
        for folder, people, images in (
            ("bounding_box_train", range(1, 7), (1, 2, 3)),
            ("query", range(11, 20), (1,)),
            ("bounding_box_test", [-1, 0, *range(11, 20)], (2, 3, 4)),
        ):
            (root / folder).mkdir(parents=True)
            for person in people:
                for number in images:
                    name = f"{person:04d}" if person >= 0 else "-1"
                    path = root / folder / f"{name}_c{number}s1_{100 * person + number:06d}_01.jpg"
                    drawn(person % 7, 10 * person + number + 10, (40, 20)).save(path)
        return {"format": "market1501", "root": str(root)}

    def _people_packed(self, root: Path) -> dict[str, str]:
        """MSMT17's layout: lists, with a validation half."""
        lists: dict[str, list[str]] = {}
        of_split = {"train": (range(4), (1, 2, 3)), "val": (range(4, 6), (1, 2, 3))}
        of_split |= {"query": (range(5), (1,)), "gallery": (range(5), (2, 3))}
        for split, (people, images) in of_split.items():
            for person in people:
                for number in images:
                    name = f"{person:04d}/{person:04d}_{number:03d}_{number:02d}_0302noon_{number:04d}_{split[0]}.jpg"
                    path = root / ("train" if split in ("train", "val") else "test") / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    drawn(person, number + 20 * (split in ("query", "gallery")), (40, 20)).save(path)
                    lists.setdefault(split, []).append(f"{name} {person}")
        for split, lines in lists.items():
            (root / f"list_{split}.txt").write_text("\n".join(lines) + "\n")
        return {"format": "msmt17", "root": str(root)}

    def _scenes_folders(self, root: Path, masks: bool = True) -> dict[str, str]:
        """COCO's layout: rectangles of three kinds, a crowd, an image without objects, ids with gaps."""
        for split, count in (("train", 9), ("val", 6)):
            images, objects = [], []
            (root / f"{split}2017").mkdir(parents=True)
            for number in range(count):
                name, size = f"{number:04d}.jpg", (48 + 8 * (number % 2), 64)
                image = np.asarray(drawn(number, 7, size)).copy()
                images.append({"id": 10 * number + 3, "file_name": name, "height": size[0], "width": size[1]})
                for place in range(number % 3 + 1 if number != count - 1 else 0):
                    kind, x, y, w, h = (number + place) % 3, 4 + 18 * place, 6 + 3 * place, 14, 20
                    image[y : y + h, x : x + w] = [(220, 30, 30), (30, 220, 30), (30, 30, 220)][kind]
                    corners = [x, y, x + w, y, x + w, y + h, x, y + h]
                    one = {"id": len(objects) + 1, "image_id": 10 * number + 3, "category_id": 3 * kind + 2}
                    one |= {"bbox": [x, y, w, h], "area": w * h, "iscrowd": 0}
                    objects.append(one | ({"segmentation": [corners]} if masks else {}))
                Image.fromarray(image).save(root / f"{split}2017" / name)
            kinds = [{"id": 3 * kind + 2, "name": name} for kind, name in enumerate(CLASSES)]
            content = {"images": images, "annotations": objects, "categories": kinds}
            (root / "annotations").mkdir(exist_ok=True)
            (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
        return {"format": "coco", "root": str(root)}

    def _scenes_packed(self, root: Path) -> dict[str, str]:
        """The same without masks."""
        return self._scenes_folders(root, masks=False)
