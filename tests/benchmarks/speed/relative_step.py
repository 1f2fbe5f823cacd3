"""A training step of Mask R-CNN around ViT-S with relative positions: other attentions against softmax, side by side.

    python -m tests.benchmarks relative_step [--size 512] [--batch 2] [--attentions relu gelu] [--threads 2]

The model is the recipe's: ViT-S/16 from random weights, windows of 14 tokens but in blocks 2, 5, 8 and 11, relative
positions, simple pyramid; the images are drawn ones, read beforehand. All contestants are in one process and take turns
(forward, backward, AdamW) in the precision `auto`. Prints medians over the turns, one to warm up left out, and the most
memory that a step holds beyond what lies there before it. Where others use the machine too, `--threads 1 --clock cpu`
counts this process's own seconds.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from backbones.data.spec import resolve_dataset
from backbones.engine.context import usable_cores
from backbones.runtime.device import choose_device
from backbones.runtime.precision import DTYPES, choose_precision
from backbones.runtime.ranks import ALONE
from backbones.runtime.seeding import seed_torch
from backbones.spec import resolve
from tasks.data.coco import CocoData
from tasks.detect import TASK, make_learner
from tasks.detection import mmlab
from tasks.detection.learner import collate
from tasks.detection.options import DetectOptions
from tasks.detection.pipelines import DetectionImages, train_transforms
from tasks.facts.detect import chosen_detector
from transfer.cli.command import read_command, task_recipe

Step = Callable[[], None]


def read_options(given: argparse.Namespace) -> DetectOptions:
    """The recipe's own, at these sizes."""
    words = f"--backbone vit_s --size {given.size} {given.size} --batch {given.batch} --drop-path 0"
    options: DetectOptions = read_command(task_recipe(TASK.name), TASK.options, words.split()).options
    return options


def step_of(attention: str, data: CocoData, options: DetectOptions, device: torch.device, precision: str) -> Step:
    """A step on one batch, the same for every attention."""
    assert data.train is not None
    seed_torch(0)
    detector = chosen_detector(options, data)
    overrides = {"attention": attention, "weights": "random", "load": "strict"}
    learner = make_learner(resolve("vit_s"), data, detector, options, **overrides).to(device).train()
    split = data.train.select(data.train.with_objects())
    images = DetectionImages(split, train_transforms("resize", options.size, 0.0, detector.masks))
    batch = learner.prepare(collate([images[0, place, 0] for place in range(options.batch)]), device)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-5)

    def step() -> None:
        with torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32"):
            loss = learner(batch, 1)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        float(loss.detach())

    return step


def held(device: torch.device, step: Step) -> float:
    """MiB that a step holds at most beyond what lies there before; on a CPU what Linux counts of this process."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _status("VmRSS")
    step()
    return (_status("VmHWM") - before) / 2**10


def _status(key: str) -> int:
    """KiB of one line of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def main(argv: Sequence[str] | None = None) -> int:
    """Takes turns, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=512, help="pixels of a side")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--attentions", nargs="+", default=["relu"])
    parser.add_argument("--precision", choices=("auto", *DTYPES), default="auto")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    clock = time.perf_counter if given.clock == "wall" else time.process_time
    torch.set_num_threads(given.threads)
    mmlab.load()
    device, options = choose_device(given.device, ALONE), read_options(given)
    precision = choose_precision(given.precision, device)
    data = TASK.open(resolve_dataset("toy_coco"), options, root=None, subset=None, skip_unreadable=False)
    steps = {name: step_of(name, data, options, device, precision) for name in ("softmax", *given.attentions)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    memory: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(given.rounds + 1):
        for name, step in steps.items():
            begin = clock()
            peak = held(device, step)
            if turn:
                seconds[name].append(clock() - begin)
                memory[name].append(peak)
    print(
        f"{device.type}, {given.threads} threads, torch {torch.__version__}, {precision}, batch {given.batch}", end=""
    )
    print(f", {given.size} px, relative positions")
    base = statistics.median(seconds["softmax"])
    for name, found in seconds.items():
        median, most = statistics.median(found), max(memory[name])
        print(f"{name:10} {median:8.3f} s a step {median / base:6.2f} x softmax {most:8.0f} MiB")
    return 0
