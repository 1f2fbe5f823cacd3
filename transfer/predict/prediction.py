"""What a trained model finds in images, as tables and files.

Shapes: M images, G of a gallery, D channels, C classes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transfer.core.files import atomic_replacement, csv_text, write_arrays, write_atomic
from transfer.data.splits.split import FileSplit

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Prediction:
    """What was found in M images.

    Attributes:
        images: the images; `images.names` are their paths below `images.folder`.
        arrays: by name; of a task that classifies `logits` and `scores` [M, C] and `classes` [C]; `coco`: images,
            annotations with a score, categories, and the lowest score that is kept in `info`; of a segmentation
            `labels`, uint8 [H, W] of each image, and the classes' shares of its pixels as `scores`; `features` [M, D],
            and with a gallery `similarity` [M, G], the cosine, to the images `gallery` [G], nan for an image itself.
    """

    images: FileSplit
    arrays: dict[str, Any]

    def __str__(self) -> str:
        """Return what it holds, in a phrase."""
        found = {name: len(values) for name, values in self.arrays.items()}
        if coco := self.arrays.get("coco"):
            what = f"{len(coco['annotations'])} detections with a score of at least {coco['info']['score_threshold']}"
        elif "gallery" in found:
            what = f"{found['gallery']} in the gallery"
        elif "classes" in found:
            what = f"{found['classes']} classes"
        else:
            what = f"{self.arrays['features'].shape[1]} features each"
        return f"{len(self.images)} image{'s' * (len(self.images) != 1)}, {what}"

    def to_frame(self, top: int = 5) -> "pd.DataFrame":
        """Return a table: a row for each detection, for each of the `top` classes or gallery images of an image, or
        for each image with its features.
        """
        import pandas as pd

        arrays, names = self.arrays, np.array(list(self.images.names))
        if "coco" in arrays:
            kinds = {item["id"]: item["name"] for item in arrays["coco"]["categories"]}
            rows: list[tuple[Any, ...]] = [
                (names[item["image_id"] - 1], kinds[item["category_id"]], item["score"], *item["bbox"])
                for item in arrays["coco"]["annotations"]
            ]
            return pd.DataFrame(rows, columns=["image", "class", "score", "x", "y", "width", "height"])
        for found, score, among in (("class", "scores", "classes"), ("nearest", "similarity", "gallery")):
            if score in arrays:
                order = np.argsort(-arrays[score], axis=1, kind="stable")[:, :top]
                image, rank = np.indices(order.shape).reshape(2, -1)
                best = order.ravel()
                columns = {"image": names[image], "rank": rank + 1, found: arrays[among][best]}
                frame = pd.DataFrame(columns | {"score": arrays[score][image, best]})
                return frame.dropna(ignore_index=True) if found == "nearest" else frame
        return pd.DataFrame(arrays["features"], names).add_prefix("feature_").reset_index(names="image")

    def save(self, path: Path | str, top: int = 5) -> None:
        """Write the arrays to .npz, or `to_frame` to .parquet, .csv or .json; .json of detections has COCO's format.

        Raises:
            UserError: the file cannot be written.
        """
        path = Path(path)
        if path.suffix == ".npz":
            write_arrays(path, {"names": np.array(list(self.images.names)), **self.arrays})
        elif path.suffix == ".parquet":
            with atomic_replacement(path, "--to") as temporary:
                self.to_frame(top).to_parquet(temporary, index=False)
        else:
            text = self.to_csv(top)
            if path.suffix == ".json":
                coco = self.arrays.get("coco")
                text = json.dumps(coco) if coco else self.to_frame(top).to_json(orient="records")
            write_atomic(path, f"{text}\n".encode(), flag="--to")

    def to_csv(self, top: int = 5) -> str:
        """Return `to_frame` as comma-separated values."""
        frame = self.to_frame(top)
        return csv_text([frame.columns, *frame.itertuples(index=False)])
