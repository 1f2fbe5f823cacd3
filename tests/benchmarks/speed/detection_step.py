"""Training steps of a detector around ViT-S, by this suite's `fit` and by mmdetection's own Runner, side by side.

    python -m tests.benchmarks detection_step --images FOLDER [--size 512] [--rounds 3]

FOLDER holds COCO's `annotations/instances_train2017.json` and `train2017`. The model is the recipe's: ViT-S/16 from
random weights, windows of 14 tokens but in blocks 2, 5, 8 and 11, relative positions, simple pyramid, mmdetection's
Mask R-CNN. A batch has 2 of 8 images, on a GPU 8 of 64.

Two copies of it train from the same files in one process, in turns of one pass over the images: `ours` as
`tasks.detect.training` does, in precision `auto`; `mmdetection` by the Runner of mmengine over its CocoDataset, fp32.
Both read images in this process. Operators of mmcv, where no compiled one is there, are this suite's for both, so that
what these gained is in both columns. Prints medians over the turns, the first left out.

Needs mmdetection, and images and annotations of COCO.
"""

import contextlib
import copy
import io
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from backbones.spec import resolve
from tasks.detect import mmlab
from tasks.detect.pipelines import train_transforms
from tasks.detect.task import DetectOptions, chosen_detector
from tasks.detect.training import make_learner, train_loader
from tests.benchmarks.options import read
from tests.benchmarks.speed.timing import finish, show
from tests.support import command
from transfer.core.errors import UserError
from transfer.core.process import ALONE, usable_cores
from transfer.core.seeding import seed_torch
from transfer.data.coco.dataset import CocoData, open_coco
from transfer.data.coco.split import CocoSplit
from transfer.data.spec import DatasetSpec
from transfer.engine.context import Context
from transfer.engine.device import choose_device, choose_precision
from transfer.engine.loop import fit


def subset(folder: Path, count: int, out: Path) -> CocoData:
    """The first `count` images with objects, described by a new file in `out`."""
    file = folder / "annotations" / "instances_train2017.json"
    if not file.is_file():
        raise UserError(f"--images {folder}: {file} is not there")
    content = json.loads(file.read_text(encoding="utf-8"))
    filled = {one["image_id"] for one in content["annotations"] if not one.get("iscrowd")}
    content["images"] = [image for image in content["images"] if image["id"] in filled][:count]
    chosen = {image["id"] for image in content["images"]}
    content["annotations"] = [one for one in content["annotations"] if one["image_id"] in chosen]
    described = out / file.name
    described.write_text(json.dumps(content), encoding="utf-8")
    options = {"train_annotations": str(described), "train_images": "train2017", "val_annotations": None}
    return open_coco(DatasetSpec(name="images", format="coco", root=(str(folder.resolve()),), options=options), None)


def peer_epochs(
    detector: Any, split: CocoSplit, classes: Sequence[str], options: DetectOptions, device: str, folder: str
) -> Callable[[], None]:
    """mmdetection's epoch-based loop in fp32 (OptimWrapper, AdamW): all images once a call, without checkpoints.

    Args:
        detector: of `build_detector`, trained in place. split: images, and the annotations that the peer reads itself.
        classes: names of the categories. options: batch, size, view, rate and weight decay.
        device: "cpu" or "cuda". folder: for its logs.
    """
    from mmengine.runner import Runner

    # as mmdetection's `_base_/datasets/coco_instance.py` has it, with the suite's transforms behind its own reader
    transforms = train_transforms(options.resize_mode, options.size, options.flip, detector.with_mask)
    dataset = {
        "type": "CocoDataset",
        "ann_file": str(split.file),
        "data_prefix": {"img": str(split.folder)},
        "metainfo": {"classes": tuple(classes)},
        "filter_cfg": {"filter_empty_gt": True, "min_size": 1},
        "pipeline": [{"type": "LoadImageFromFile"}, *transforms],
    }
    adamw = {"type": "AdamW", "lr": options.lr, "weight_decay": options.weight_decay}
    runner = Runner(
        model=detector,
        work_dir=folder,
        train_dataloader={
            "batch_size": options.batch_size,
            "num_workers": 0,
            "sampler": {"type": "DefaultSampler", "shuffle": True},
            "dataset": dataset,
        },
        train_cfg={"by_epoch": True, "max_epochs": 1},
        optim_wrapper={"type": "OptimWrapper", "optimizer": adamw},
        default_hooks={"checkpoint": None},
        default_scope="mmdet",
        randomness={"seed": 0},
        log_level="ERROR",
        experiment_name=Path(folder).name,
    )

    def epoch() -> None:
        quiet = contextlib.redirect_stdout(io.StringIO())  # pycocotools says what it reads
        with quiet, mock.patch("mmengine.runner.runner.get_device", return_value=device):
            if not runner.epoch:
                runner.train()
            else:
                runner.train_loop._max_epochs += 1
                runner.train_loop.run()

    return epoch


def side_by_side(data: CocoData, options: DetectOptions, device: torch.device, folder: str) -> None:
    """Both loops in turns, and the table."""
    context = Context(device, choose_precision("auto", device))
    seed_torch(0)
    detector = chosen_detector(options, data)
    learner = make_learner(resolve("vit_s"), len(data.classes), detector, options, weights="random", load="strict")
    loader = train_loader(data, detector, options, context)
    peer = peer_epochs(copy.deepcopy(learner.detector), data.train, data.classes, options, device.type, folder)
    turns, marks = dict[str, list[float]](ours=[], mmdetection=[]), [time.perf_counter()]

    def ended(side: str) -> None:
        finish(device)
        turns[side].append(time.perf_counter() - marks[-1])
        marks.append(time.perf_counter())

    def after(epoch: int) -> dict[str, float]:
        ended("ours")
        peer()
        ended("mmdetection")
        return {}

    fit(learner, loader, options, context, after)
    if context.outcome.training_failed:
        raise UserError(f"the training broke down: {context.outcome.reason}")
    print(f"{device.type}, {torch.get_num_threads()} threads, ours in {context.precision}")
    images = options.batch_size * len(loader.epoch_batches(0))
    show({name: images / statistics.median(seconds[1:]) for name, seconds in turns.items()})


def main(argv: Sequence[str]) -> int:
    """Runs the contestants in turn and prints the table."""
    given = read(argv, __doc__, images=Path, size=512, rounds=3, threads=usable_cores())
    warnings.simplefilter("ignore")
    device = choose_device("auto", ALONE)
    count, batch = (64, 8) if device.type == "cuda" else (8, 2)
    words = f"--backbone vit_s --size {given.size} {given.size} --batch-size {batch} --epochs {given.rounds + 1}"
    options = command("detect", *words.split(), "--milestones", "0.5").options
    mmlab.load()
    with tempfile.TemporaryDirectory() as folder:
        side_by_side(subset(given.images, count, Path(folder)), options, device, folder)
    return 0
