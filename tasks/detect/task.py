"""Object detection: options, detectors by their YAML files, metrics, version, data; see `tasks.detect.training`."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from backbones.archs import VITS, plain_vits
from backbones.spec import BackboneSpec
from transfer.core.errors import UsageError, UserError, kept, reject
from transfer.core.options import Added, Common, Execution, Files, Needs, Range, check_keys
from transfer.core.settings import config_path, read_yaml
from transfer.core.user_code import is_user_part, parameters
from transfer.data.coco.dataset import CocoData, open_coco
from transfer.data.coco.split import CocoSplit
from transfer.data.spec import DatasetSpec
from transfer.engine.options import TRAINING, FitOptions
from transfer.task import PICTURES, Array, ByClass, Defaults, Metric, Outcomes, Scores, Task, batch_for

DETECTIONS = "detections.json"  # in a run's folder
IGNORE_IOF = 0.7
"""Share of a proposal within a crowd from which Detectron does not train on it (facebookresearch/Detectron,
detectron/core/config.py, `TRAIN.CROWD_FILTER_THRESH`)."""


@dataclass(frozen=True, kw_only=True)
class DetectorSpec:
    """A detector as described by its YAML file."""

    name: str
    base: str
    """Name of a file of mmdetection's configs/_base_/models, without its suffix."""
    masks: bool
    """Whether the detector predicts masks."""
    model: dict[str, Any]
    """Values merged into the base, as mmdetection's own configurations merge one file into another."""


def resolve_detector(name: str) -> DetectorSpec:
    """Read the description of a detector from a shipped name, or from a YAML file with the same keys.

    Raises:
        UsageError: the name or a key is unknown, or a value is of the wrong type.
    """
    path = config_path("detectors", "detector", name).expanduser()
    content = {"name": path.stem, "model": {}, **read_yaml(path)}
    kinds = {"name": str, "base": str, "masks": bool, "model": dict}
    check_keys(content, tuple(kinds), str(path), needed=tuple(kinds))
    for key, value in content.items():
        if not isinstance(value, kinds[key]):
            raise UsageError(f"{path}: `{key}` is {value!r}; it must be of type {kinds[key].__name__}")
    return DetectorSpec(**content)


@dataclass(kw_only=True)
class DetectOptions(FitOptions):
    """Options of `transfer.run detect` besides those of the training loop."""

    detector: Annotated[str | None, Files(), Common()]
    """A name of configs/detectors, or a YAML file. None: mask_rcnn where the data has masks, else faster_rcnn."""
    pyramid: Literal["simple", "taps"]
    """What the levels of the pyramid are made of. They come from the last map (ViTDet), or from four blocks through an
    FPN; for models with several strides it is the FPN."""
    out_indices: Annotated[tuple[int, ...] | None, Needs(pyramid="taps")]
    """The four blocks of --pyramid taps; None: the last of each quarter."""
    window: Annotated[int, Range(0)]
    """Side of the attention windows in tokens; 0: every block sees the whole image."""
    window_padding: Annotated[Literal["keys", "masked"], Needs(window=True)]
    """How windows end beyond the image. `masked` has no keys there, so that every attention sees the image's tokens
    alone and L counts these; `keys` has zeros that pass through the projections, as in ViTDet's published results."""
    global_blocks: Annotated[tuple[int, ...] | None, Needs(window=True)]
    """Blocks without windows; None: the last of each quarter."""
    relative: bool
    """Relative positions within the attention, from zero; a custom function supports them if it takes `scale`."""
    grad_checkpointing: Annotated[bool, Execution()]
    """Recompute activations in the backward pass. It takes less memory and a third more time."""
    norm_eval: Annotated[bool, TRAINING]
    """Keep the statistics of the backbone's batch norms. Small batches give poor ones."""
    drop_path: Annotated[float, TRAINING, Range(0, 0.99), Common()]
    """Stochastic depth of the last block; earlier blocks grow to it linearly."""
    resize_mode: Literal["jitter", "resize", "scales"]
    """How training images are resized. Large-scale jitter, 0.1 to 2 times the size and cropped to it; the whole image;
    or the whole image with the limit of its shorter side drawn from 0.6 to 1 times that of --size. With jitter scored
    images are padded to the size."""
    size: Annotated[tuple[int, int], Range(1), Common()]
    """Limits of the shorter and longer side in pixels; with jitter the height and width of the crop."""
    flip: Annotated[float, TRAINING, Range(0, 1)]
    """Probability of a horizontal flip."""
    batch_size: Annotated[int, TRAINING, Range(1), Common()]
    """Images per step, over all ranks."""
    empty_images: Annotated[Literal["drop", "keep"], TRAINING, Added("drop")] = "drop"
    """Training images without an object to train on. They are left out, as by mmdetection's `filter_empty_gt`, or kept
    as background."""
    ignore_iof: Annotated[float, TRAINING, Range(0, 1), Added(0.0)] = 0.0
    """Share of an anchor or proposal inside a crowd or ignored region above which it trains nothing. 0: as in the
    detector's file, by default background. 0.7 for datasets whose YAML names regions to ignore."""
    eval_batch_size: Annotated[int, Range(1), Execution()]
    """Images per batch in evaluation, per rank."""
    validate_at: Annotated[tuple[int, ...], TRAINING, Execution()]
    """Epochs with a validation on the way; the last one's is the run's score."""
    test_dataset: Annotated[tuple[str, ...], Execution(), Common()]
    """Datasets to score as well, whose classes are trained ones by name. Each gives a record of its own, and its
    images must not be among the training images."""
    save_pictures: Annotated[int, Range(0), Execution()]
    """Validation images saved with the boxes found on them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size[0] > self.size[1]:
            reject(f"--size {self.size[0]} {self.size[1]}: the limit of the shorter side comes first")
        if self.out_indices is not None and not len(self.out_indices) == len({*self.out_indices}) == 4:
            reject(f"--out-indices {self.out_indices}: set four different blocks")
        if self.epochs and any(not 1 <= epoch <= self.last_epoch for epoch in self.validate_at):
            reject(f"--validate-at {self.validate_at}: epochs count from 1 to {self.last_epoch}")
        with kept():
            resolve_detector(self.detector or "mask_rcnn")

    def trains_on(self, split: CocoSplit) -> Array:
        """Return bool [I]: whether each training image is trained on."""
        return split.with_objects() | (self.empty_images == "keep")


def block_index(number: int, depth: int, flag: str) -> int:
    """Return a block counted from 0, where -1 is the last. Raises UsageError naming the flag."""
    if not -depth <= number < depth:
        raise UsageError(f"{flag}: block {number} does not exist; use 0 to {depth - 1}, or -1 for the last")
    return number % depth


class Detect(Task):
    """COCO's 12 numbers for boxes, and for masks if the detector predicts them."""

    module = "tasks.detect.training"
    name, version, options, primary = "detect", 1, DetectOptions, "box_AP"
    shares_tokens = True
    formats = ("coco",)
    metrics = {name: Metric() for name in ("box_AP", "box_AP50", "box_AP75", "mask_AP")}  # noqa: RUF012

    def open(self, spec: DatasetSpec, options: DetectOptions, *, root: Path | None, **chosen: Any) -> CocoData:
        """Read images, objects and categories; see `transfer.data.coco.dataset.open_coco`."""
        trained = options.epochs > 0
        data = open_coco(spec, root, trained=trained, **chosen)
        for split in ("train", "val") if trained else ("val",):
            if getattr(data, split) is None:
                raise UserError(f"{data.name}: detect needs a {split} split; set its files in the YAML of the dataset")
        return data

    def check_installed(self) -> None:
        """Raise UserError without mmdetection."""
        from tasks.detect import mmlab

        mmlab.check_installed()

    def check_words(self, spec: BackboneSpec, options: DetectOptions) -> None:
        """Check the channels, the blocks, and a user's attention that is to have relative positions."""
        if spec.in_chans != 3:
            reject(f"--in-chans {spec.in_chans}: mmdetection's detectors take images of 3 channels")
        for name in ("global_blocks", "out_indices"):
            for block in getattr(options, name) or () if spec.depth else ():
                with kept():
                    block_index(block, spec.depth or 0, f"--{name.replace('_', '-')}")
        part = spec.attention if options.relative and is_user_part(spec.attention or "") else None
        names = parameters(part) if part else None  # as they stand in the file, which is not run
        if names is not None and "scale" not in names:
            reject(
                f"{part} cannot have relative positions: use --no-relative, or let the function or the `forward` of a "
                "core take (q, k, v, scale=None): scores are scale q k^T where a scale is given, and v narrower than q"
            )

    def defaults_for_backbone(self, spec: BackboneSpec, options: DetectOptions, given: Collection[str]) -> Defaults:
        """Return no relative positions for models of timm, and no windows for those that are not plain ViTs."""
        if spec.arch in VITS or spec.kind == "user":  # a user's model may have both
            return {}
        plain = spec.arch.split(".")[0] in plain_vits()
        window = options.window if plain else 0
        reason = f"backbone {spec.name} has an attention of timm" if plain else f"{spec.arch} is not a plain ViT"
        return {"relative": (False, reason), "window": (window, reason)}

    def defaults_for_data(self, spec: BackboneSpec, dataset: CocoData, options: DetectOptions) -> Defaults:
        """Return a batch size that fits few training images, and what keeps regions to be ignored out of training."""
        iof = {"ignore_iof": (IGNORE_IOF, f"the YAML of {dataset.name} names regions to ignore")}
        defaults: Defaults = iof if dataset.regions and options.epochs else {}
        return defaults | (batch_for(int(options.trains_on(dataset.train).sum()), options) if dataset.train else {})

    def epoch_steps(self, dataset: CocoData, options: DetectOptions) -> int:
        """Return the number of whole batches of the images that are trained on."""
        return int(options.trains_on(dataset.train).sum()) // options.batch_size if dataset.train else 0

    def built_size(self, options: DetectOptions) -> None:
        """Return None: the backbone is built at its own size, and positions are resampled for each batch."""

    def preprocessing(self, options: DetectOptions) -> dict[str, Any]:
        """Return that images are resized to lie within a size, and not cropped."""
        resampling = {"interpolation": "bilinear", "antialias": False}
        return {"size": [*options.size], "resize": "to fit", "crop": "none", **resampling}

    def content(self, dataset: CocoData, options: DetectOptions) -> dict[str, Any]:
        """Return the configuration of the detector from its file, and parameters of scores that are not COCO's."""
        return {"detector": asdict(chosen_detector(options, dataset)), **dataset.scoring.changed}

    def rescore(self, outcomes: Outcomes) -> Scores:
        """Compute COCO's numbers of boxes and of masks from their matches."""
        from tasks.detect.coco import averages, matching

        scores: Scores = {}
        for matches in matching.pairings(outcomes):
            scores |= averages.scores(matches)
        return scores

    def aggregated(self, names: Sequence[str], outcomes: Outcomes) -> Scores:
        """Return all scores, which are of all images together."""
        return self.rescore(outcomes)

    def by_class(self, names: Sequence[str], outcomes: Outcomes) -> ByClass:
        """Return COCO's averages of each category by its id, on the resamples of the images that intervals use."""
        from tasks.detect.coco import averages, matching

        classes: ByClass = {}
        for matches in matching.pairings(outcomes):
            prefix = f"{matching.SCORE_PREFIX[matches.kind]}_"
            of_kind = [name for name in names if name.startswith(prefix)]
            if not of_kind:
                continue
            for place, rows in enumerate(averages.by_class(matches, [name.removeprefix(prefix) for name in of_kind]).T):
                counted = (matches.truth_category == place) & (matches.truth_counted > 0)
                images = np.isin(np.arange(len(matches.sample)), matches.truth_image[counted])
                for name, row in zip(of_kind, rows, strict=True):
                    if not np.isnan(row[0]):
                        _, scores = classes.setdefault(str(matches.categories[place]), (images, {}))
                        scores[name] = row
        return classes

    def finish(self, folder: Path, dataset: CocoData, options: DetectOptions) -> None:
        """Save the first `save_pictures` validation images with their objects and detections."""
        if not options.save_pictures:
            return
        from tasks.detect.pictures import save_pictures

        save_pictures(folder / PICTURES, dataset, json.loads((folder / DETECTIONS).read_bytes()), options.save_pictures)


def chosen_detector(options: DetectOptions, data: CocoData) -> DetectorSpec:
    """Return the options' detector, or by default the one for this data.

    Raises:
        UserError: it is trained with masks, which the data does not have.
    """
    detector = resolve_detector(options.detector or ("mask_rcnn" if data.masks else "faster_rcnn"))
    if options.epochs and detector.masks and data.unmasked == data.objects:
        raise UserError(f"{lacking_masks(data)}, but {detector.name} needs them: --detector faster_rcnn")
    return detector


def lacking_masks(data: CocoData) -> str:
    """Say how many objects have no mask."""
    return f"{data.name}: {data.unmasked} of {data.objects} objects have no mask"


TASK = Detect()
