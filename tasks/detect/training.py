"""Object detection: fine-tune a backbone within a detector of mmdetection, score boxes and masks as COCO does.

The plain ViT as a detector's backbone is ViTDet's (Li et al. 2022, arXiv 2203.16527). Shapes: N images.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backbones.backbone import Backbone, create
from backbones.flops import flops
from backbones.spec import BackboneSpec
from backbones.trained_weights import check_head, export_trained, load_head, read_head
from backbones.weights.locate import trained_size
from tasks.detect import mmlab
from tasks.detect.coco.averages import pair_detections, resampled
from tasks.detect.coco.matching import Kind, pairings
from tasks.detect.detectors import build_detector
from tasks.detect.feature_maps import StageMaps, VitMapOptions, VitMaps, is_plain, make_maps, quarters
from tasks.detect.learner import DetectionLearner, Results, collate, detect, with_trained_classes
from tasks.detect.pictures import save_pictures
from tasks.detect.pipelines import DetectionImages, train_transforms
from tasks.detect.task import (
    DETECTIONS,
    TASK,
    DetectOptions,
    DetectorSpec,
    chosen_detector,
    lacking_masks,
    resolve_detector,
)
from transfer.core.errors import UsageError
from transfer.core.exports import export_folder, weights_facts
from transfer.core.files import write_atomic
from transfer.core.seeding import seed_torch
from transfer.data.coco.dataset import CocoData
from transfer.data.coco.split import mask_library
from transfer.data.loading.loader import RunLoader, steps_taken
from transfer.data.splits.split import FileSplit
from transfer.engine.context import Context
from transfer.engine.cost import duration, recall_speed
from transfer.engine.device import device_name
from transfer.engine.dist import broadcast_object
from transfer.engine.extract import NotFinite
from transfer.engine.loop import fit
from transfer.task import Outcomes, Result, Scores

LONG = 10
"""Seconds of a step from which its cost is said."""
DETECTOR_SPEED = 0.02
"""TFLOP/s of a core where none was measured: that of Mask R-CNN around `tiny` on an AMD EPYC."""


def untrained_learner(spec: BackboneSpec, options: DetectOptions) -> DetectionLearner:
    """Return the detector for two classes, with masks unless the options name one without."""
    mmlab.load()
    detector = resolve_detector(options.detector or "mask_rcnn")
    return make_learner(spec, 2, detector, options, weights="random", load="strict")


def check(spec: BackboneSpec, dataset: CocoData, options: DetectOptions, context: Context) -> None:
    """Check that mmdetection is installed and that the detector can be built around this backbone."""
    context.micro_batch(options.batch_size, options.grad_accum_steps)
    if options.epochs:
        assert dataset.train is not None
        usable = int(options.trains_on(dataset.train).sum())
        if usable < options.batch_size:
            kind = "training images with objects" if options.empty_images == "drop" else "training images"
            raise UsageError(f"--batch-size {options.batch_size}: {dataset.name} has {usable} {kind}")
    else:
        check_head(spec, "detect")
        with_trained_classes(spec, dataset)
    detector = chosen_detector(options, dataset)
    mmlab.load()
    if detector.masks:
        mask_library()
    make_learner(spec, len(dataset.classes), detector, options, weights="random", load="strict")


def run(spec: BackboneSpec, dataset: CocoData, options: DetectOptions, context: Context) -> Result:
    """Train on the training split and score the validation split."""
    assert dataset.val is not None
    mmlab.load()
    seed_torch(context.seed)
    detector = chosen_detector(options, dataset)
    if 0 < dataset.unmasked < dataset.objects and (detector.masks or options.detector is None):
        effect = "these are background in training" if detector.masks else f"{detector.name}, and no scores of masks"
        context.note(f"{lacking_masks(dataset)}: {effect}")
    train = dataset.train if options.epochs else None
    if train and (unused := int((~train.with_objects()).sum())):
        context.details["without_objects"] = unused
        effect = "are background" if options.empty_images == "keep" else "are not trained on"
        context.note(f"{unused} of {len(train.images)} training images have no objects and {effect}")
    predicted = dataset if options.epochs else with_trained_classes(spec, dataset)
    if lacking := len(predicted.classes) - len(dataset.classes):
        context.note(f"{lacking} of the detector's {len(predicted.classes)} classes are not in {dataset.name}: dropped")
    learner = make_learner(spec, len(predicted.classes), detector, options)
    images = context.micro_batch(options.batch_size, options.grad_accum_steps)
    context.note_backbone(learner.backbone, flops(learner.maps, learner.padded(options.size)), images)
    say_cost(learner, options, TASK.epoch_steps(dataset, options), context)
    context.details |= {"dropped": dataset.dropped, "detector": detector.name, "operators": mmlab.ops_source()}
    context.details["versions"] = mmlab.versions()
    context.details["classes"] = dict(zip(map(str, dataset.category_ids), dataset.classes))

    def validate(epoch: int) -> Scores:
        if epoch + 1 not in options.validate_at or epoch + 1 == options.last_epoch:
            return {}
        try:
            return TASK.rescore(_outcomes(learner, dataset, predicted, detector, options, context)[0])
        except NotFinite as error:
            context.note(f"epoch {epoch + 1} has no scores: {error}")
            return {}

    if options.epochs:
        loader = train_loader(dataset, detector, options, context)
        if fit(learner, loader, options, context, validate).nonfinite:
            return {}, {}
    else:
        load_head(learner, learner.backbone, context)
        learner.to(context.device).eval()
    start = time.monotonic()
    outcomes, results = _outcomes(learner, dataset, predicted, detector, options, context)
    if context.ranks.first:
        for matches in pairings(outcomes):
            outcomes |= resampled(matches)
    context.cost.eval_seconds += time.monotonic() - start
    if context.folder and context.ranks.first:
        write_atomic(context.folder / DETECTIONS, json.dumps(results).encode())
    if options.epochs:
        about = {"classes": list(dataset.classes), "category_ids": list(dataset.category_ids)}
        about["upright"] = dataset.train is not None and dataset.train.upright
        export_trained(learner, learner.backbone, context, **about)
    return TASK.rescore(outcomes), outcomes


def say_cost(learner: DetectionLearner, options: DetectOptions, steps: int, context: Context) -> None:
    """Say what a training on a CPU takes about, if that is long.

    Args:
        steps: of an epoch.
    """
    if context.on_gpu or not options.epochs:
        return
    work = 3 * learner.dense_flops(options.size) * options.batch_size / context.ranks.data.world / 1e12
    measured = recall_speed(device_name(context.device))
    seconds = work / (measured.tflops if measured else DETECTOR_SPEED * torch.get_num_threads())
    if seconds > LONG:
        number = steps_taken(steps, options.epochs)
        cost = f"about {duration(seconds)} ({work:.2g} TFLOP), all {number:,} about {duration(seconds * number)}"
        fix = "for less use --detector faster_rcnn_light and a smaller --size, --batch-size"
        context.say(f"on this CPU a step of {options.batch_size} images takes {cost}; {fix}")


def restore(spec: BackboneSpec, options: DetectOptions, context: Context) -> DetectionLearner:
    """Return the trained detector."""
    masks = any(".mask_head." in name for name in read_head(spec.weights, context.head_digest))
    detector = resolve_detector(options.detector or ("mask_rcnn" if masks else "faster_rcnn"))
    learner = make_learner(spec, len(weights_facts(spec.weights)["classes"]), detector, options)
    load_head(learner, learner.backbone, context)
    return learner


def predict(learner: DetectionLearner, images: FileSplit, options: DetectOptions, context: Context) -> dict[str, Any]:
    """Return `coco`: the images with their names, the detections as annotations with a score, and the categories."""
    facts = weights_facts(learner.backbone.spec.weights)
    data = CocoData.of_images(images, facts["classes"], facts["category_ids"])
    assert data.val is not None
    detections = detect(learner, data, options, context)
    for number, result in enumerate(detections, 1):
        mask, (_, _, width, height) = result.get("segmentation"), result["bbox"]
        result |= {"id": number, "area": float(mask_library().area(mask)) if mask else width * height, "iscrowd": 0}
    limits = learner.detector.test_cfg
    info = {"score_threshold": limits.get("rcnn", limits).score_thr}
    return {"coco": {"info": info, **data.as_coco(data.val), "annotations": detections}}


def maps(learner: DetectionLearner) -> VitMaps | StageMaps:
    """Return the module that computes the maps of images, with windows and relative positions, for features."""
    return learner.maps


def draw(images: FileSplit, prediction: dict[str, Any], folder: Path) -> None:
    """Save every image with what `predict` found on it. Raises UserError."""
    names, ids = zip(*((item["name"], item["id"]) for item in prediction["coco"]["categories"]))
    save_pictures(folder, CocoData.of_images(images, names, ids), prediction["coco"]["annotations"], len(images))


def _outcomes(
    learner: DetectionLearner,
    data: CocoData,
    predicted: CocoData,
    detector: DetectorSpec,
    options: DetectOptions,
    context: Context,
) -> tuple[Outcomes, Results]:
    """Return the matches of every image and the detections, the same on every rank; `predicted` is the data with the
    detector's classes.
    """
    assert data.val is not None
    results = detect(learner, predicted, options, context)
    results = [result for result in results if result["category_id"] in data.category_ids]
    outcomes: Outcomes = {}
    if context.ranks.first:
        kinds: list[Kind] = ["bbox", "segm"] if detector.masks and data.unmasked < data.objects else ["bbox"]
        for kind in kinds:
            outcomes |= pair_detections(data, results, kind).outcomes()
        outcomes["cluster"] = np.arange(len(data.val.images))
    return broadcast_object(outcomes), results


def make_learner(
    spec: BackboneSpec, classes: int, detector: DetectorSpec, options: DetectOptions, **overrides: Any
) -> DetectionLearner:
    """Build the detector around the backbone for training. Raises UsageError if the parts do not fit."""
    size = trained_size(spec) if spec.kind == "ours" and export_folder(spec.weights) else None
    backbone = create(spec, drop_path=options.drop_path, **{"img_size": size} | overrides)
    settings = {name: getattr(options, name) for name in ("window", "global_blocks", "relative", "grad_checkpointing")}
    taps = _taps(backbone, options) if options.pyramid == "taps" else (-1,)
    grid = (options.size[0] // backbone.stride, options.size[1] // backbone.stride)
    kind = VitMapOptions(out_indices=taps, grid=grid, padding=options.window_padding, **settings)
    built = build_detector(detector, make_maps(backbone, kind), options.pyramid, classes, ignore_iof=options.ignore_iof)
    return DetectionLearner(built, norm_eval=options.norm_eval)


def _taps(backbone: Backbone, options: DetectOptions) -> tuple[int, ...]:
    depth = len(getattr(backbone.model, "blocks", ()))
    if options.out_indices and not is_plain(backbone):
        raise UsageError(f"--out-indices: {backbone.spec.name} is not a plain ViT; remove it to use its stages")
    if is_plain(backbone) and depth < 4:
        raise UsageError(f"--pyramid taps takes four blocks, {backbone.spec.name} has {depth}: --pyramid simple")
    return options.out_indices or quarters(backbone)


def train_loader(data: CocoData, detector: DetectorSpec, options: DetectOptions, context: Context) -> RunLoader:
    """Return a loader of shuffled batches of the images that are trained on."""
    assert data.train is not None
    split = data.train.select(options.trains_on(data.train))
    transforms = train_transforms(options.resize_mode, options.size, options.flip, detector.masks)
    return context.shuffled(DetectionImages(split, transforms, seed=context.seed), options, collate=collate)
