"""Training steps of a detector around ViT-S, by this suite's `fit` and by mmdetection's own Runner, side by side.

    python -m tests.benchmarks detection_step --images FOLDER [--size 512] [--batch-size 2] [--rounds 3] [--no-relative]
    python -m tests.benchmarks detection_step --images FOLDER --device cuda --size 1024

FOLDER holds COCO images and annotations: `instances_train2017.json`, also below `annotations`, and `train2017`. Objects
without an outline get that of the ellipse in their box. The model is the recipe's: ViT-S/16 from random weights,
windows of 14 tokens but in blocks 2, 5, 8 and 11, relative positions, simple pyramid, mmdetection's Mask R-CNN.

Two copies of it train from the same files in one process, in turns of one pass over the images: `ours` as
`tasks.detect.training` does, in precision `auto`; `mmdetection` by the Runner of mmengine over its CocoDataset, fp32.
Both read images in this process. Operators of mmcv, where no compiled one is there, are this suite's for both, so that
what these gained is in both columns. Prints medians over the turns, the first left out. Where others use the machine
too, `--threads 1 --clock cpu` counts this process's own seconds.
"""

import argparse
import copy
import json
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from backbones.spec import resolve
from tasks.detect import mmlab
from tasks.detect.learner import DetectionLearner
from tasks.detect.task import TASK, DetectOptions, chosen_detector
from tasks.detect.training import make_learner, train_loader
from tests.benchmarks.speed.detection_peer import Peer
from tests.benchmarks.speed.timing import Clock
from transfer.cli.command import read_command
from transfer.cli.recipe import task_recipe
from transfer.core.errors import UserError
from transfer.core.process import ALONE
from transfer.core.seeding import seed_torch
from transfer.data.coco.dataset import CocoData, open_coco
from transfer.data.spec import DatasetSpec
from transfer.engine.context import Context, usable_cores
from transfer.engine.device import choose_device, choose_precision
from transfer.engine.loop import fit

CORNERS = 32
"""Of the polygon that stands for an ellipse."""


def subset(folder: Path, count: int, out: Path) -> CocoData:
    """The first `count` images with objects, described by a new file in `out`, every object with an outline."""
    places = [folder / part / "instances_train2017.json" for part in ("", "annotations")]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise UserError(f"--images {folder}: neither {places[0]} nor {places[1]} is there")
    content = json.loads(file.read_text(encoding="utf-8"))
    filled = {one["image_id"] for one in content["annotations"] if not one.get("iscrowd")}
    content["images"] = [image for image in content["images"] if image["id"] in filled][:count]
    chosen = {image["id"] for image in content["images"]}
    content["annotations"] = [
        one | ({} if one.get("segmentation") else {"segmentation": [ellipse(*one["bbox"])]})
        for one in content["annotations"]
        if one["image_id"] in chosen
    ]
    described = out / file.name
    described.write_text(json.dumps(content), encoding="utf-8")
    options = {"train_annotations": str(described), "train_images": "train2017", "val_annotations": None}
    return open_coco(DatasetSpec(name="images", format="coco", root=(str(folder.resolve()),), options=options), None)


def ellipse(x: float, y: float, width: float, height: float) -> list[float]:
    """[x, y, x, y, ...] of the ellipse in a box."""
    turns = [2 * math.pi * corner / CORNERS for corner in range(CORNERS)]
    places = [(x + width * (1 + math.cos(turn)) / 2, y + height * (1 + math.sin(turn)) / 2) for turn in turns]
    return [number for place in places for number in place]


def read_options(given: argparse.Namespace, rounds: int) -> DetectOptions:
    """The task's options, as a command with these sizes would have them."""
    words = f"--backbone {given.backbone} --size {given.size} {given.size} --batch-size {given.batch_size}"
    words += f" --epochs {rounds} --milestones 0.5 --window {given.window} --detector {given.detector}"
    words += "" if given.relative else " --no-relative"
    options: DetectOptions = read_command(task_recipe(TASK.name), TASK.options, words.split()).options
    return options


def learner_of(backbone: str, data: CocoData, options: DetectOptions) -> DetectionLearner:
    """The suite's learner, from random weights that are the same in every call."""
    seed_torch(0)
    spec, detector = resolve(backbone), chosen_detector(options, data)
    return make_learner(spec, len(data.classes), detector, options, weights="random", load="strict")


def train(
    learner: DetectionLearner, data: CocoData, options: DetectOptions, context: Context, after: Callable[[int], None]
) -> None:
    """Ours: `fit` as the task calls it, a turn being an epoch, behind each of which `after` is called."""

    def between(epoch: int) -> dict[str, float]:
        after(epoch)
        return {}

    fit(learner, train_loader(data, chosen_detector(options, data), options, context), options, context, between)
    if context.outcome.training_failed:
        raise UserError(f"the training broke down: {context.outcome.reason}")


def side_by_side(given: argparse.Namespace, data: CocoData, clock: Clock, device: torch.device) -> None:
    """Both loops in turns, and the table."""
    options = read_options(given, given.rounds + 1)
    context = Context(device, choose_precision("auto", device))
    learner, turns = learner_of(given.backbone, data, options), dict[str, list[float]](ours=[], mmdetection=[])
    assert data.train is not None
    marks = [clock()]

    def ended(side: str) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        turns[side].append(clock() - marks[-1])
        marks.append(clock())

    with Peer(copy.deepcopy(learner.detector), data.train, data.classes, options, device.type) as peer:

        def after(turn: int) -> None:
            ended("ours")
            peer.epoch()
            ended("mmdetection")

        train(learner, data, options, context, after)
    steps = len(train_loader(data, chosen_detector(options, data), options, context).epoch_batches(0))
    ours, theirs = (statistics.median(seconds[1:]) / steps for seconds in turns.values())
    positions = "relative" if options.relative else "absolute"
    print(f"{given.backbone}, {given.detector}, window {options.window}, {positions} positions, {given.size} px")
    print(f"{device.type}, {torch.get_num_threads()} threads, batch {given.batch_size}, ours in {context.precision}")
    print(f"seconds per step: ours {ours:.3f}, mmdetection {theirs:.3f}, {theirs / ours:.2f} times")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; sizes that are not given are chosen by device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder with annotations and images")
    parser.add_argument("--count", type=int, help="images; 8 on a CPU, 64 on a GPU")
    parser.add_argument("--batch-size", type=int, help="2 on a CPU, 8 on a GPU")
    parser.add_argument("--size", type=int, default=512, help="pixels of a side")
    parser.add_argument("--rounds", type=int, default=3, help="turns that count, each over all images")
    parser.add_argument("--backbone", default="vit_s")
    detectors = ("mask_rcnn", "faster_rcnn", "cascade_mask_rcnn")
    parser.add_argument("--detector", choices=detectors, default=detectors[0])
    parser.add_argument("--window", type=int, default=14, help="0: every block sees the whole image")
    parser.add_argument("--relative", action=argparse.BooleanOptionalAction, default=True, help="relative positions")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the contestants in turn and prints the table."""
    given = arguments(argv)
    clock = time.perf_counter if given.clock == "wall" else time.process_time
    warnings.simplefilter("ignore")
    device = choose_device(given.device, ALONE)
    gpu = device.type == "cuda"
    given.count, given.batch_size = given.count or (64 if gpu else 8), given.batch_size or (8 if gpu else 2)
    torch.set_num_threads(given.threads)
    mmlab.load()
    with tempfile.TemporaryDirectory() as folder:
        side_by_side(given, subset(given.images, given.count, Path(folder)), clock, device)
    return 0
