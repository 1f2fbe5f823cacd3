"""Learning rate and weight decay as functions of the epoch."""

import math

import torch

from transfer.engine.options import FitOptions

ROUNDING = 1e-9  # epochs: a step at 2 + 3 / 7 is one at 2.428571428571429, which rounds otherwise


def cosine(start: float, end: float, share: float) -> float:
    """Return the value at `share` of half a cosine from `start` (share 0) to `end` (share 1)."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


class Schedule:
    """Learning rate and weight decay as functions of the fractional epoch.

    warm-up, t < w:  start + (peak - start) t / w;   with `warmup_inclusive` i / (n - 1) for t / w, in step i of n
    then:            cosine(peak, end, t / T),       t and T less w with `warmup_prefix`; `end` from T on
                     with `curve` linear peak + (end - peak) t / T
                     with `milestones` peak / 10^n,  n = number of milestones up to t (none: constant)
    weight decay:    cosine(weight_decay, weight_decay_end, t / T)

    T is the number of epochs less those of the cool-down. `start` and `end` are the same for all groups; a group's
    `scale` multiplies the whole.
    """

    def __init__(self, options: FitOptions):
        self.options = options
        self.start, self.end = options.warmup_start, options.cosine_end
        self.total = options.epochs - options.cooldown_epochs

    def clock(self, epoch: int, index: int, length: int) -> float:
        """Return the fractional epoch at which step `index` of `length` in `epoch` (all from 0) reads the schedule."""
        if self.options.schedule == "epoch":
            return float(max(epoch + self.options.schedule_offset, 0))
        return epoch + index / length

    def rate(self, time: float, peak: float, length: int | None = None) -> float:
        """Return the learning rate at fractional epoch `time` of a group that peaks at `peak`.

        Args:
            length: steps of an epoch, needed with `warmup_inclusive`.
        """
        warm, total = self.options.warmup_epochs, self.total
        if time < warm - ROUNDING:
            share = self._inclusive(time, length) if self.options.warmup_inclusive else time / warm
            return self.start + (peak - self.start) * share
        if self.options.milestones is not None:
            return peak * 0.1 ** sum(time >= milestone - ROUNDING for milestone in self.options.milestones)
        if self.options.warmup_prefix:
            time, total = time - warm, total - warm
        share = min(time / total, 1.0)
        return cosine(peak, self.end, share) if self.options.curve == "cosine" else peak + (self.end - peak) * share

    def _inclusive(self, time: float, length: int | None) -> float:
        if length is None:
            raise ValueError("warmup_inclusive counts steps: the length of an epoch is missing")
        steps = math.ceil(self.options.warmup_epochs * length - 1e-6)
        return min(round(time * length) / max(steps - 1, 1), 1.0)

    def decay(self, time: float) -> float:
        """Return the weight decay at fractional epoch `time`."""
        end = self.options.weight_decay if self.options.weight_decay_end is None else self.options.weight_decay_end
        return cosine(self.options.weight_decay, end, min(time / self.total, 1.0))

    def apply(self, optimizer: torch.optim.Optimizer, time: float, length: int | None = None) -> float:
        """Set every group's learning rate and decay, and return the learning rate of a group with the full peak."""
        for group in optimizer.param_groups:
            group["lr"] = group["scale"] * self.rate(time, group["peak"], length)
            group["weight_decay"] = group["decay"] * self.decay(time)
        return self.rate(time, self.options.lr, length)
