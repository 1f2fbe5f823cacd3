"""The files that the commands work on: small data of each kind, a user's own parts, exported weights."""

from itertools import product
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from backbones.backbone import create
from backbones.weights.export import export
from tests.faults.data import coco_files, draw, image_folder, market_folder
from transfer.core.settings import CONFIGS, write_yaml

USER = {"Net": "my_backbone.py", "MyStem": "my_stem.py", "linear": "my_attention.py"}
"""Parts of users in the guide, and their files."""


class Places:
    """A folder with everything that commands name, each made when it is first asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def user(self, name: str) -> str:
        """`file.py:Name` of a part of the user's."""
        return f"{CONFIGS / 'templates' / USER[name]}:{name}"

    def data(self, kind: str) -> Path:
        """The YAML of a dataset: of labelled images, people or scenes."""
        path = self.root / f"{kind}.yaml"
        if not path.exists():
            path.write_text(write_yaml(getattr(self, f"_{kind}")(self.root / kind)))
        return path

    def export(self) -> Path:
        """Weights of `tiny` with a classifier for the labelled images."""
        folder = self.root / "export"
        if not folder.exists():
            torch.manual_seed(5)
            made = create("tiny", img_size=(32, 32), classes=2, weights="random")
            export(made, folder, {"pretrain.json": {"classes": ["a", "b"], "run": "drawn"}})
        return folder

    def _labelled(self, root: Path) -> dict[str, str]:
        return {"format": "image_folder", "root": str(image_folder(root)[0])}

    def _people(self, root: Path) -> dict[str, str]:
        return {"format": "market1501", "root": str(market_folder(root)[0])}

    def _shapes(self, root: Path) -> dict[str, Any]:
        """Eight images to train on and eight to score, with masks of two classes."""
        for split, number in product(("train", "val"), range(8)):
            draw(root / "images" / split / f"{number}.png", number, (40, 32))
            (root / "masks" / split).mkdir(parents=True, exist_ok=True)
            Image.linear_gradient("L").resize((32, 40)).point(lambda value: value // 128).save(
                root / "masks" / split / f"{number}.png"
            )
        return {"format": "masks", "root": str(root), "classes": 2}

    def _scenes(self, root: Path) -> dict[str, str]:
        return {"format": "coco", "root": str(coco_files(root)[0])}
