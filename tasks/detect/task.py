"""Object detection: metrics, version, data; see `tasks.detect.training`."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from backbones.archs import VITS, plain_vits
from backbones.spec import BackboneSpec
from tasks.detect.options import DetectOptions, DetectorSpec, block_index, check_relative, resolve_detector
from transfer.core.errors import UserError, kept, reject
from transfer.data.coco.dataset import CocoData, open_coco
from transfer.data.spec import DatasetSpec
from transfer.task import PICTURES, Defaults, Metric, Outcomes, Scores, Task, batch_for

RESULTS = "detections.json"  # in a run's folder


class Detect(Task):
    """COCO's 12 numbers for boxes, and for masks if the detector predicts them."""

    module = "tasks.detect.training"
    name, version, options, primary = "detect", 1, DetectOptions, "box_AP"
    shares_tokens = True
    formats = ("coco",)
    metrics = {name: Metric() for name in ("box_AP", "box_AP50", "box_AP75", "mask_AP")}  # noqa: RUF012

    def open(
        self, spec: DatasetSpec, options: DetectOptions, *, root: Path | None, subset: int | None, drop_corrupt: bool
    ) -> CocoData:
        """Read images, objects and categories; see `transfer.data.coco.dataset.open_coco`."""
        trained = options.epochs > 0
        data = open_coco(spec, root, subset=subset, drop_corrupt=drop_corrupt, trained=trained)
        for split in ("train", "val") if trained else ("val",):
            if getattr(data, split) is None:
                raise UserError(f"{data.name}: detect needs a {split} split; set its files in the YAML of the dataset")
        return data

    def check_words(self, spec: BackboneSpec, options: DetectOptions) -> None:
        """Check the channels, the blocks, and a user's attention that is to have relative positions."""
        if spec.in_chans != 3:
            reject(f"--in-chans {spec.in_chans}: mmdetection's detectors take images of 3 channels")
        for name in ("global_blocks", "out_indices"):
            for block in getattr(options, name) or () if spec.depth else ():
                with kept():
                    block_index(block, spec.depth or 0, f"--{name.replace('_', '-')}")
        if options.relative:
            check_relative(spec)

    def defaults_for_backbone(self, spec: BackboneSpec, options: DetectOptions, given: Collection[str]) -> Defaults:
        """Return no relative positions for models of timm, and no windows for those that are not plain ViTs."""
        if spec.arch in VITS or spec.kind == "user":  # a user's model may have both
            return {}
        plain = spec.arch.split(".")[0] in plain_vits()
        window = options.window if plain else 0
        reason = f"backbone {spec.name} has an attention of timm" if plain else f"{spec.arch} is not a plain ViT"
        return {"relative": (False, reason), "window": (window, reason)}

    def defaults_for_data(self, dataset: CocoData, options: DetectOptions) -> Defaults:
        """Return a batch size that fits few training images with objects."""
        return batch_for(int(dataset.train.with_objects().sum()), options) if dataset.train else {}

    def epoch_steps(self, dataset: CocoData, options: DetectOptions) -> int:
        """Return the number of whole batches of images with objects."""
        return int(dataset.train.with_objects().sum()) // options.batch_size if dataset.train else 0

    def built_size(self, options: DetectOptions) -> None:
        """Return None: the backbone is built at its own size, and positions are resampled for each batch."""

    def content(self, dataset: CocoData, options: DetectOptions) -> dict[str, Any]:
        """Return the configuration of the detector from its file."""
        return {"detector": asdict(chosen_detector(options, dataset))}

    def aggregated(self, names: Sequence[str], outcomes: Outcomes) -> Scores:
        """Return COCO's averages of the precision over all images."""
        from tasks.detect.coco.averages import Averager
        from tasks.detect.coco.matching import PREFIX, Matches

        scores: Scores = {}
        for kind, prefix in PREFIX.items():
            if short := [name.removeprefix(f"{prefix}_") for name in names if name.startswith(f"{prefix}_")]:
                ones = np.ones(len(outcomes["sample"]), dtype=np.int64)
                means = Averager(Matches.from_outcomes(outcomes, kind), short, most=1).means(ones)
                scores |= {f"{prefix}_{name}": means.get(name, np.nan) for name in short}
        return scores

    def finish(self, folder: Path, dataset: CocoData, options: DetectOptions) -> None:
        """Save the first `save_pictures` validation images with their objects and detections."""
        if not options.save_pictures:
            return
        from tasks.detect.pictures import save_pictures

        assert dataset.val is not None
        of_image: dict[int, list[dict[str, Any]]] = {}
        for result in json.loads((folder / RESULTS).read_bytes()):
            of_image.setdefault(result["image_id"], []).append(result)
        chosen = dataset.val.images[: options.save_pictures]
        objects: dict[int, list[dict[str, Any]]] = {}
        for item in dataset.as_coco(dataset.val)["annotations"]:
            objects.setdefault(item["image_id"], []).append(item)
        images = [
            (dataset.val.path(place), of_image.get(image.id, []), objects.get(image.id, []))
            for place, image in enumerate(chosen)
        ]
        names = dict(zip(dataset.category_ids, dataset.classes))
        save_pictures(folder / PICTURES, images, names, upright=dataset.val.upright)


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
