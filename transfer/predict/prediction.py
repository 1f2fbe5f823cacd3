"""What a trained model finds in images, as tables and files.

Shapes: M images, G of a gallery, D channels, C classes.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transfer.core.errors import UsageError
from transfer.core.files import atomic_replacement, csv_text, write_arrays, write_atomic
from transfer.data.splits.split import FileSplit

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".parquet", ".json")
FEATURES = (".npz", ".parquet")


def check_suffix(path: Path, *, features: bool) -> None:
    """Raise UsageError for a file that does not fit what it is to hold: features, or a table of what was found."""
    if path.suffix not in (FEATURES if features else TABLES):
        held, fitting = ("features", FEATURES) if features else ("this", TABLES)
        raise UsageError(f"--to {path}: {held} can be written to {', '.join(fitting)}")


@dataclass(frozen=True, eq=False)
class Prediction:
    """What was found in M images.

    Attributes:
        images: the images; `images.names` are their paths below `images.folder`.
        arrays: by name; of a task that classifies `logits` and `scores` [M, C] and `classes` [C], `features` [M, D],
            or `coco`: images, annotations with a score, categories.
        notes: on images that were left out, or are not stored upright.
    """

    images: FileSplit
    arrays: dict[str, Any]
    notes: tuple[str, ...] = ()

    def nearest(self, gallery: "Prediction", top: int = 10) -> "Prediction":
        """Return the `top` nearest images of a gallery by the cosine of their features, the first of equal ones first.

        It has `nearest` [M, top], their names, and `similarity` [M, top].
        """
        query, others = (_unit(of.arrays["features"]) for of in (self, gallery))
        cosines = (query @ others.T).clip(-1, 1)
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :top]
        names = np.array(list(gallery.images.names))
        found = {"nearest": names[order], "similarity": np.take_along_axis(cosines, order, axis=1)}
        return Prediction(self.images, found)

    def to_frame(self, top: int = 5) -> "pd.DataFrame":
        """Return a table: a row for each detection, for each of the `top` classes of an image, for each neighbor, or
        for each image.
        """
        import pandas as pd

        arrays, names = self.arrays, list(self.images.names)
        if "coco" in arrays:
            kinds = {item["id"]: item["name"] for item in arrays["coco"]["categories"]}
            rows: list[tuple[Any, ...]] = [
                (names[item["image_id"] - 1], kinds[item["category_id"]], item["score"], *item["bbox"])
                for item in arrays["coco"]["annotations"]
            ]
            return pd.DataFrame(rows, columns=["image", "class", "score", "x", "y", "width", "height"])
        if "scores" in arrays:
            order = np.argsort(-arrays["scores"], axis=1, kind="stable")[:, :top]
            columns = {"class": arrays["classes"][order], "score": np.take_along_axis(arrays["scores"], order, axis=1)}
        else:
            columns = {name: of for name, of in arrays.items() if name in ("nearest", "similarity")}
        if columns:
            places = next(iter(columns.values())).shape[1]
            index = {"image": np.repeat(names, places), "rank": np.tile(np.arange(1, places + 1), len(names))}
            return pd.DataFrame(index | {name: of.reshape(-1) for name, of in columns.items()})
        return pd.DataFrame({"image": names} | {name: list(of) for name, of in arrays.items()})

    def save(self, path: Path | str, top: int = 5) -> None:
        """Write features to .npz or .parquet, detections to .json in COCO's format, tables to .csv, .parquet or .json.

        Raises:
            UserError: the suffix does not fit, or the file cannot be written.
        """
        path = Path(path)
        check_suffix(path, features="features" in self.arrays)
        if path.suffix == ".npz":
            write_arrays(path, {"names": np.array(list(self.images.names)), **self.arrays})
        elif path.suffix == ".json" and "coco" in self.arrays:
            write_atomic(path, json.dumps(self.arrays["coco"]).encode(), flag="--to")
        elif path.suffix == ".parquet":
            with atomic_replacement(path, "--to") as temporary:
                self.to_frame(top).to_parquet(temporary, index=False)
        elif path.suffix == ".json":
            write_atomic(path, self.to_frame(top).to_json(orient="records").encode(), flag="--to")
        else:
            write_atomic(path, f"{self.to_csv(top)}\n".encode(), flag="--to")

    def to_csv(self, top: int = 5) -> str:
        """Return `to_frame` as comma-separated values."""
        frame = self.to_frame(top)
        return csv_text([frame.columns, *frame.itertuples(index=False)])


def _unit(features: Any) -> Any:
    """Return features [M, D] of length 1, in float64."""
    rows = features.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-300)
