"""The trained model of a run, and what it finds in new images by the functions of the run's own evaluation.

A task says how by functions of its module (a user's task by methods), all optional: `restore(spec, options, context)`
gives the model; `predict(model, images, options, context)` arrays by name, of which `scores` [M, C] with `classes` [C],
`coco` and columns [M] become tables; `features(model, images, options, context)` rows [M, D]; `view(options)` the
transform of evaluation; `draw(images, found, folder)` pictures. Shapes: M images, D channels, C classes.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backbones.backbone import Backbone, create
from backbones.diagnostics.maps import save_maps, token_maps
from backbones.spec import BackboneSpec
from transfer.core.errors import MissingInput, UsageError, UserError, shortened
from transfer.core.exports import EXPORT, HEAD, WEIGHTS, export_folder, users_parts
from transfer.core.files import check_writable, with_home
from transfer.core.options import from_plain
from transfer.core.process import ALONE, usable_cores
from transfer.core.seeding import seed_torch
from transfer.data.formats.folders import scan_images
from transfer.data.loading.augment import eval_transform
from transfer.data.loading.images import Transform, to_floats
from transfer.data.splits.dataset import SplitDataset
from transfer.data.splits.integrity import check_split
from transfer.data.splits.split import FileSplit
from transfer.engine.context import Context, auto_workers
from transfer.engine.device import choose_device, choose_precision
from transfer.engine.extract import NotFinite, check_finite, extract, load_batches
from transfer.predict.options import PredictOptions
from transfer.predict.prediction import Prediction, check_suffix
from transfer.records.store import Run, without_weights
from transfer.task import Task
from transfer.verify.checks import task_of

Images = str | Path | Iterable[str | Path]


def trained_spec(run: Run) -> BackboneSpec:
    """Return the backbone that a run trained, or the frozen one that it used.

    Raises:
        MissingInput: the run trained one and kept no weights.
    """
    given, folder = run.record.backbone, run.folder / EXPORT
    if export_folder(str(folder)) is not None:
        weights = {"weights": str(folder), "load": "strict", "weights_key": None, "weights_size": None}
        given = given | weights | users_parts(folder)
    elif run.record.cost.get("images_per_second"):
        raise MissingInput(without_weights(run))
    return BackboneSpec.from_dict(given)


def open_images(given: Images, context: Context, drop_corrupt: bool = False) -> FileSplit:
    """Return images by their paths below the folder that all lie in; notes go to the context.

    Args:
        given: files, folders (with all below them) or patterns, one or several.
        drop_corrupt: leave out those that cannot be read.

    Raises:
        UserError: nothing matches, or an image cannot be read.
    """
    files = list[str]()
    for one in [given] if isinstance(given, str | Path) else given:
        path = Path(with_home(str(one)))
        found = [path] if path.exists() else [Path(name) for name in sorted(glob(str(path), recursive=True))]  # noqa: PTH207
        below = [[each / name for name in scan_images(each)[0]] if each.is_dir() else [each] for each in found]
        if not any(below):
            raise MissingInput(f"{one}: no images found; name files, folders or a pattern such as 'FOLDER/*.jpg'")
        files += [os.path.abspath(name) for names in below for name in names]  # noqa: PTH100 (links stay)
    folder = os.path.commonpath([os.path.dirname(name) for name in files])  # noqa: PTH120
    split = FileSplit.of("new", Path(folder), (os.path.relpath(name, folder) for name in dict.fromkeys(files)))
    bad, notes = check_split(split, name="new images", skip=drop_corrupt)
    if len(bad):
        notes.append(f"left out, as they cannot be read: {shortened([split.names[index] for index in bad.tolist()])}")
        split = split.select(np.setdiff1d(np.arange(len(split)), bad))
    for note in notes:
        context.note(note)
    if not len(split):
        raise UserError(f"{folder}: no image can be read")
    return split


@dataclass
class Trained:
    """The model of a run, in evaluation mode, and what its task needs beside it."""

    run: Run
    task: Task
    spec: BackboneSpec
    options: Any
    context: Context
    model: nn.Module

    @classmethod
    def of(cls, run: Run, context: Context, batch_size: int | None = None) -> "Trained":
        """Load the model of a run onto the context's device; torch gets the run's threads.

        Args:
            context: gets the run's seed and precision.
            batch_size: images that are computed together, by default as in the run's evaluation.

        Raises:
            UserError: weights are missing or changed, or the task is not here.
        """
        record, spec, task = run.record, trained_spec(run), task_of(run.record)
        options = from_plain(task.options, record.options)
        if batch_size is not None:
            options = replace(options, eval_batch_size=batch_size)
        weights, context.head_digest = record.weights_id, record.run_key_content.get("head", "")
        if spec.weights == str(run.folder / EXPORT):
            sums = {name: record.files.get(f"{EXPORT}/{name}", {}).get("sha256", "") for name in (WEIGHTS, HEAD)}
            weights, context.head_digest = f"sha256:{sums[WEIGHTS]}", sums[HEAD]
        context.seed = record.seed
        context.eval_precision = choose_precision(record.environment.get("eval_precision") or "fp32", context.device)
        seed_torch(record.seed)
        if (threads := record.environment.get("threads")) and not context.on_gpu:  # they decide the last bits
            torch.set_num_threads(min(threads, usable_cores()))
        restore = task_function(task, "restore") or (lambda *_: create(spec, img_size=task.built_size(options)))
        model = restore(spec, options, context).eval().to(context.device)
        used = next((part for part in model.modules() if isinstance(part, Backbone)), None)
        if used is not None and used.weights_id != weights:
            raise UserError(
                f"{spec.weights}: not the weights of {record.run_id} (its record has {weights}); restore them"
            )
        return cls(run, task, spec, options, context, model)

    def find(self, images: FileSplit, *, features: bool = False) -> dict[str, Any]:
        """Return what the task finds in images, or their features, where it says nothing else; arrays by name.

        Raises:
            UserError: a number is not finite; the image is named.
        """
        images.read_channels(self.spec.in_chans)
        predict = task_function(self.task, "predict")
        try:
            if features or predict is None:
                found = {"features": self._features(images).numpy()}
            else:
                found = predict(self.model, images, self.options, self.context)
            for name, rows in found.items():
                if isinstance(rows, np.ndarray) and rows.dtype.kind == "f":
                    check_finite(torch.from_numpy(rows), images.names, name)
        except NotFinite as broken:
            raise UserError(f"{self.run.record.run_id}: {broken}") from None
        return found

    def save_maps(self, images: FileSplit, folder: Path) -> None:
        """Save maps of every image; see `backbones.diagnostics.maps`. Raises UserError."""
        images.read_channels(self.spec.in_chans)
        backbone, view = self._backbone(), SplitDataset(images, self._view(), preload=False)
        for name, (pixels, _) in zip(images.names, load_batches(view, [[i] for i in range(len(view))], self.context)):
            self.context.check_stop()
            with torch.inference_mode(), self.context.scoring():
                maps = token_maps(backbone, to_floats(pixels.to(self.context.device)))
            save_maps(maps, pixels, folder, name)

    def _backbone(self) -> Backbone:
        """Return the trained backbone without what a task has put into it, as a detector's windows."""
        if isinstance(self.model, Backbone):
            return self.model
        return create(self.spec, img_size=self.task.built_size(self.options)).eval().to(self.context.device)

    def _view(self) -> Transform:
        """Return the transform of evaluation; where the task has none of one size, that of 224 pixels."""
        if own := task_function(self.task, "view"):
            return own(self.options)
        size, given = self.task.built_size(self.options), self.options
        if not isinstance(size, int):
            return eval_transform(224)
        return eval_transform(size, getattr(given, "resize", None), view=getattr(given, "resize_mode", "bicubic"))

    def _features(self, images: FileSplit) -> Tensor:
        if own := task_function(self.task, "features"):
            return own(self.model, images, self.options, self.context)
        view, batch = SplitDataset(images, self._view()), self.options.eval_batch_size
        return extract(self._backbone().pooled, view, self.context, batch_size=batch, label="features")


def predict(run: Run, options: PredictOptions, *, progress: bool = False) -> Prediction:
    """Return what a run's model finds in images.

    Raises:
        UserError: no image matches or one cannot be read, the run has no weights, or a file does not fit.
    """
    to, maps, pictures = (given and Path(given) for given in (options.to, options.maps, options.pictures))
    features, task = options.features or bool(options.gallery) or (to and to.suffix) == ".npz", task_of(run.record)
    context = Context(choose_device(options.device, ALONE), "fp32", progress=progress, quiet=not progress)
    context.workers = auto_workers(context.device, ALONE) if options.workers is None else options.workers
    if to:
        check_suffix(to, features=not options.gallery and (features or task_function(task, "predict") is None))
    if (draw := task_function(task, "draw")) is None and pictures:
        raise UsageError(f"--pictures: {task.name} draws nothing; it is for detections")
    for folder, flag in ((to and to.parent, "--to"), (maps, "--maps"), (pictures, "--pictures")):
        if folder:
            check_writable(folder, flag)
    lists = [open_images(one, context, options.drop_corrupt) for one in (options.images, options.gallery) if one]
    with context.signals():
        model = Trained.of(run, context, options.eval_batch_size)
        found = [Prediction(files, model.find(files, features=features)) for files in lists]
        if maps:
            model.save_maps(lists[0], maps)
        if draw and pictures:
            draw(lists[0], model.find(lists[0]) if features else found[0].arrays, pictures)
    result = found[0].nearest(found[1], options.top) if options.gallery else found[0]
    result = replace(result, notes=tuple(context.notes))
    if to:
        result.save(to, options.top)
    return result


def task_function(task: Task, name: str) -> Callable[..., Any] | None:
    """Return a function of a task's module, or a method of a user's task; None if there is none."""
    return task.function(name) or getattr(task, name, None)
