"""What a step of one run's model takes beside one of another's: both in turns in this process, so that what else the
machine does meets both alike.

The models are built from the records with random weights, on which no time depends.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from backbones.backbone import create
from backbones.spec import BackboneSpec
from transfer.core.options import from_plain
from transfer.core.process import ALONE
from transfer.engine.device import autocast, choose_device, choose_precision, device_name, scoring_precision
from transfer.measure.ratios import CostRatio, CostRatios, Ratio, recorded_image_size, step_images
from transfer.records.record import Record
from transfer.task import load_task

SECONDS, SMOKE_SECONDS = 10.0, 0.5
"""Time of the training steps, and of the forward passes, of a pair of runs; less for runs of --smoke."""
BATCH = {"cuda": 128, "cpu": 16}
"""Most images in a step, by type of device."""
ROUNDS, FEWEST = 12, 4
"""Rounds A B B A; fewer where `SECONDS` end before, but no fewer than the second number."""

Step = Callable[[], object]
Timed = Callable[[Step, int], float]


def cost_ratios(device: str = "auto") -> CostRatios:
    """Return cost ratios that are measured when they are asked for; `device` is auto, cpu or cuda."""
    return CostRatios(partial(measure_pair, device=device))


def measure_pair(a: Record, b: Record, device: str = "auto") -> CostRatio:
    """Measure the training steps and forward passes of the models of two runs in turns.

    A step has the images of the recipes' micro-batch, but no more than `BATCH`. On a CPU the time is that of the
    process on one thread, on a GPU that of the device.

    Raises:
        UserError: a model cannot be built here.
    """
    place = choose_device(device, ALONE)
    images = min(step_images(a), step_images(b), BATCH[place.type])
    seconds = SMOKE_SECONDS if a.smoke and b.smoke else SECONDS
    timed, clock = (device_time, "device time") if place.type == "cuda" else (cpu_time, "CPU time of one thread")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        variants = [_Arm(record, images, place) for record in (a, b)]
        forward = in_turns(variants[0].score, variants[1].score, timed, seconds)
        trains = all(record.environment.get("precision") for record in (a, b))
        training = in_turns(variants[0].train, variants[1].train, timed, seconds) if trains else None
    finally:
        torch.set_num_threads(threads)
    return CostRatio(forward, training, images, clock, device_name(place))


def in_turns(first: Step, second: Step, timed: Timed, seconds: float) -> Ratio:
    """Return the time of one step over that of another, from rounds A B B A of some `seconds` in all.

    Args:
        timed: returns the seconds of a number of calls of a step.
    """
    steps = (first, second)
    for step in steps:
        timed(step, 1)  # the first one allocates and compiles
    longest = max(timed(step, 1) for step in steps)
    count = max(1, round(seconds / (4 * ROUNDS * longest)))
    ratios, spent = list[float](), 0.0
    while len(ratios) < ROUNDS and (spent < seconds or len(ratios) < FEWEST):
        turns = [timed(steps[place], count) for place in (0, 1, 1, 0)]
        ratios.append((turns[0] + turns[3]) / (turns[1] + turns[2]))
        spent += sum(turns)
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return Ratio(median, low, high, len(ratios))


def cpu_time(step: Step, count: int) -> float:
    """Return the seconds of this process on all its threads in `count` calls of a step."""
    begin = time.process_time()
    for _ in range(count):
        step()
    return time.process_time() - begin


def device_time(step: Step, count: int) -> float:
    """Return the seconds of the GPU between the begin and the end of `count` calls of a step."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        step()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1000


class _Arm:
    """The model of a run, with random weights and images."""

    def __init__(self, record: Record, images: int, device: torch.device) -> None:
        self.device = device
        module, size = _module(record)
        self.module = module.to(device)
        if device.type == "cuda":
            module.to(memory_format=torch.channels_last)
        self.images = torch.rand(images, record.backbone.get("in_chans", 3), *size, device=device)
        scoring = choose_precision(record.environment.get("eval_precision") or "auto", device)
        self.scoring, self.training = scoring, choose_precision(record.environment.get("precision") or scoring, device)
        # at rate 0 the weights stay, and no value becomes so small that it takes longer
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=0.0, fused=True)

    def score(self) -> None:
        """Run a forward pass as for scores."""
        self.module.eval()
        with torch.inference_mode(), scoring_precision(self.scoring, self.device):
            self.module(self.images)

    def train(self) -> None:
        """Run a training step, whose loss stands for any."""
        self.module.train()
        with autocast(self.training, self.device):
            outputs = self.module(self.images)
        maps = outputs if isinstance(outputs, list) else [outputs]
        torch.stack([part.float().square().mean() for part in maps]).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _module(record: Record) -> tuple[nn.Module, tuple[int, int]]:
    """Return the model whose operations the record counts, and its images' (H, W) in pixels; raises UserError."""
    spec = BackboneSpec.from_dict(record.backbone | {"weights": "random", "load": "strict"})
    size = recorded_image_size(record)
    if record.task != "detect":
        return create(spec, img_size=size), size
    task = load_task(record.task)
    learner = task.untrained_learner(spec, from_plain(task.options, record.options))
    return learner.maps, learner.padded(size)
