"""The trained model of a run, and what it finds in new images by the functions of the run's own evaluation.

A task says how by functions of its module, all optional: `restore(spec, options, context)` gives the model, else it is
the backbone; `predict(model, images, options, context)` what `Prediction` holds; `features` likewise rows [M, D];
`maps(model)` a function of images to maps [M, D, h, w], the last of which, and its mean as features, stand for the
backbone's; `draw(images, prediction, folder)` pictures. Shapes: M images, G of a gallery, D channels, C classes, h x w
token grid.
"""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.metrics.pairwise import cosine_similarity
from torch import Tensor

from backbones.backbone import CPU_BATCH, Backbone, create
from backbones.diagnostics.maps import save_maps, token_maps
from backbones.spec import BackboneSpec
from backbones.weights.locate import find_weights
from transfer.core.errors import MissingInput, UsageError, UserError, count, shortened
from transfer.core.exports import EXPORT, export_folder, users_parts, weights_facts
from transfer.core.files import atomic_replacement, check_writable, csv_text, with_home, write_arrays, write_atomic
from transfer.core.options import from_plain
from transfer.core.process import ALONE, usable_cores
from transfer.core.seeding import seed_torch
from transfer.data.formats.users_reader import read_by_user, split_maker
from transfer.data.listing import scan_images
from transfer.data.loading.augment import eval_transform, view_of
from transfer.data.loading.images import to_floats
from transfer.data.spec import resolve_dataset
from transfer.data.splits.dataset import SplitDataset
from transfer.data.splits.integrity import check_split
from transfer.data.splits.split import FileSplit
from transfer.engine.context import Context, auto_workers
from transfer.engine.device import choose_device, choose_precision
from transfer.engine.extract import extract
from transfer.predict.options import PredictOptions
from transfer.records.record import Record
from transfer.records.store import StoredRun, without_weights
from transfer.verify.checks import task_of, users_file

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
            and with a `gallery` [G] of images their `gallery_features` [G, D] and the cosine `similarity` [M, G], nan
            for an image itself.
    """

    images: FileSplit
    arrays: dict[str, Any]

    def __str__(self) -> str:
        """Return what it holds, in a phrase."""
        sizes = {name: len(values) for name, values in self.arrays.items()}
        if coco := self.arrays.get("coco"):
            what = f"{len(coco['annotations'])} detections with a score of at least {coco['info']['score_threshold']}"
        elif "gallery" in sizes:
            what = f"{sizes['gallery']} in the gallery"
        elif "classes" in sizes:
            what = f"{sizes['classes']} classes"
        else:
            what = f"{self.arrays['features'].shape[1]} features each"
        return f"{count(len(self.images), 'image')}, {what}"

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
        for title, score, among in (("class", "scores", "classes"), ("nearest", "similarity", "gallery")):
            if score in arrays:
                order = np.argsort(-arrays[score], axis=1, kind="stable")[:, :top]
                image, rank = np.indices(order.shape).reshape(2, -1)
                best = order.ravel()
                columns = {"image": names[image], "rank": rank + 1, title: arrays[among][best]}
                frame = pd.DataFrame(columns | {"score": arrays[score][image, best]})
                return frame.dropna(ignore_index=True) if title == "nearest" else frame
        return pd.DataFrame(arrays["features"], names).add_prefix("feature_").reset_index(names="image")

    def save(self, path: Path | str, top: int = 5) -> None:
        """Write the arrays to .npz, or `to_frame` to .parquet, .csv or .json; .json of detections has COCO's format.

        Raises:
            UserError: the file cannot be written.
        """
        path = Path(path)
        if path.suffix == ".npz":
            write_arrays(path, {"names": np.array(list(self.images.names)), **self.arrays}, "--to")
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


def trained_spec(run: StoredRun) -> BackboneSpec:
    """Return the backbone that a run trained, or the frozen one that it used.

    Raises:
        MissingInput: the run trained one and kept no weights.
        UserError: the weights that it used are others now.
    """
    record, folder = run.record, run.folder / EXPORT
    if export_folder(str(folder)) is not None:
        weights = {"weights": str(folder), "load": "strict", "weights_key": None, "weights_size": None}
        return BackboneSpec.from_dict(record.backbone | weights | users_parts(folder))
    if record.cost.get("images_per_second"):
        raise MissingInput(without_weights(run))
    spec = BackboneSpec.from_dict(record.backbone)
    if find_weights(spec).weights_id != record.weights_id:
        raise UserError(f"{spec.weights}: not the weights of {record.run_id} ({record.weights_id}); restore them")
    return spec


def _split_maker_of(record: Record) -> Callable[..., FileSplit]:
    """Return what makes a split of files as those of a run: of images, or of arrays by the `decode` of its reader.

    Raises:
        UserError: the dataset is not here, or its reader has changed.
    """
    pictures = record.dataset.get("understood", {}).get("pictures", {})
    if not any(mode.endswith("channels") for mode in pictures.get("modes", ())):
        return FileSplit.of
    reader, data = users_file(record, "reader"), record.options["data"]
    spec = replace(resolve_dataset(record.options["dataset"][0]), format=reader)
    return split_maker(spec, read_by_user(spec, data and Path(data))[1])


def open_images(
    sources: str | Path | Iterable[str | Path], spec: BackboneSpec, record: Record, context: Context, drop_corrupt: bool
) -> FileSplit:
    """Return images by their paths below the folder that all lie in; notes go to the context.

    Args:
        sources: files, folders (with all below them) or patterns, one or several.
        spec: the backbone, whose export says whether its task turned images by their EXIF orientation.
        record: of the run, which says how its images were read; those of another task come as stored.
        drop_corrupt: leave out those that cannot be read.

    Raises:
        UserError: nothing matches, or an image cannot be read.
    """
    files = list[str]()
    for source in [sources] if isinstance(sources, str | Path) else sources:
        name, images = with_home(str(source)), list[Path]()
        paths = [Path(name)] if Path(name).exists() else map(Path, sorted(glob(name, recursive=True)))  # noqa: PTH207
        for path in paths:
            images += [path / below for below in scan_images(path)[0]] if path.is_dir() else [path]
        if not images:
            raise MissingInput(f"{source}: no images found; name files, folders or a pattern such as 'FOLDER/*.jpg'")
        files += map(os.path.abspath, images)  # links stay
    folder = os.path.commonpath([os.path.dirname(name) for name in files])  # noqa: PTH120
    names = [os.path.relpath(name, folder) for name in dict.fromkeys(files)]
    split = _split_maker_of(record)("new", Path(folder), names)
    split.read_channels(spec.in_chans)
    facts = weights_facts(spec.weights)
    split.upright = facts.get("recipe") == record.task and facts.get("upright", False)
    bad, _, notes = check_split(split, name="new images", skip=drop_corrupt)
    if len(bad) == len(split):
        raise UserError(f"no readable image in {folder}: {shortened(split.names)}; name images that can be read")
    for note in notes:
        context.note(note)
    return split.select(np.setdiff1d(np.arange(len(split)), bad))


class Trained:
    """The model of a run, in evaluation mode, and what its task needs beside it."""

    def __init__(self, run: StoredRun, context: Context) -> None:
        """Load the model onto the context's device; context and torch get seed, precision and threads of the run.

        Raises:
            UserError: weights are missing or changed, or the task is not here.
        """
        record, self.context, self.task = run.record, context, task_of(run.record)
        self.options, spec = from_plain(self.task.options, record.options), trained_spec(run)
        context.seed = record.seed
        context.eval_precision = choose_precision(record.environment.get("eval_precision") or "fp32", context.device)
        seed_torch(record.seed)
        if (threads := record.environment.get("threads")) and not context.on_gpu:  # they decide the last bits
            torch.set_num_threads(min(threads, usable_cores()))
        size, restore = self.task.built_size(self.options), self.task.function("restore")
        model = restore(spec, self.options, context) if restore else create(spec, img_size=size)
        self.model = model.eval().to(context.device)
        self.backbone = next(part for part in self.model.modules() if isinstance(part, Backbone))
        self.maps = make_maps(self.model) if (make_maps := self.task.function("maps")) else None
        self.view = view_of(self.options) if size else eval_transform(224)  # a detector has no images of one size

    def find(self, images: FileSplit, *, features: bool = False) -> dict[str, Any]:
        """Return what the task finds in images, or their features, where it says nothing else; arrays by name."""
        predict, encode = self.task.function("predict"), self.task.function("features")
        if predict and not features:
            return predict(self.model, images, self.options, self.context)
        if encode:
            return {"features": encode(self.model, images, self.options, self.context).numpy()}
        view, batch = SplitDataset(images, self.view), getattr(self.options, "eval_batch_size", CPU_BATCH)
        return {"features": extract(self._pooled, view, self.context, batch_size=batch, label="features").numpy()}

    def _pooled(self, images: Tensor) -> Tensor:
        return self.maps(images)[-1].mean((2, 3)) if self.maps else self.backbone.pooled(images)

    @torch.inference_mode()
    def save_maps(self, images: FileSplit, folder: Path) -> None:
        """Save maps of every image; see `backbones.diagnostics.maps`. Raises UserError."""
        view = SplitDataset(images, self.view, preload=False)
        for index, name in enumerate(images.names):
            pixels = view[index][0][None]
            with self.context.scoring():
                maps = token_maps(self.backbone, to_floats(pixels.to(self.context.device)), self.maps)
            save_maps(maps, pixels, folder, name)


def predict(run: StoredRun, options: PredictOptions, *, progress: bool = False) -> Prediction:
    """Return what a run's model finds in images.

    Raises:
        UserError: no image matches or one cannot be read, the run has no weights, or a file cannot be written.
    """
    to, maps, pictures = (path and Path(path) for path in (options.to, options.maps, options.pictures))
    features = options.features or bool(options.gallery) or (to and to.suffix) == ".npz"
    context = Context(choose_device(options.device, ALONE), "fp32", progress=progress, quiet=not progress)
    context.workers = auto_workers(context.device, ALONE) if options.workers is None else options.workers
    for folder, flag in ((to and to.parent, "--to"), (maps, "--maps"), (pictures, "--pictures")):
        if folder:
            check_writable(folder, flag)
    spec, inputs = trained_spec(run), (options.images, options.gallery)
    lists = [open_images(sources, spec, run.record, context, options.drop_corrupt) for sources in inputs if sources]
    model = Trained(run, context)
    if options.eval_batch_size:
        model.options.eval_batch_size = options.eval_batch_size
    if (draw := model.task.function("draw")) is None and pictures:
        raise UsageError(f"--pictures is supported by detect and segment, not by {model.task.name}")
    arrays, *gallery = [model.find(files, features=features) for files in lists]
    if gallery:
        cosine = cosine_similarity(arrays["features"].astype(float), gallery[0]["features"].astype(float))
        own_files, others = ([os.path.realpath(files.path(row)) for row in range(len(files))] for files in lists)
        _, numbers = np.unique(own_files + others, return_inverse=True)
        cosine[numbers[: len(own_files), None] == numbers[len(own_files) :]] = np.nan
        arrays |= {"similarity": cosine, "gallery": np.array(list(lists[1].names))}
        arrays["gallery_features"] = gallery[0]["features"]
    if maps:
        model.save_maps(lists[0], maps)
    if draw and pictures:
        draw(lists[0], model.find(lists[0]) if features else arrays, pictures)
    result = Prediction(lists[0], arrays)
    if to:
        result.save(to, options.top)
    return result
