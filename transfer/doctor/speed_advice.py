"""What the measured rates mean: the bottleneck, what to set, and the hours of a recipe."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backbones.runtime.threads import usable_cores

if TYPE_CHECKING:
    from transfer.cli.command import Command

ENOUGH = 1.05
"""A feed that makes this many times what the model takes keeps it busy."""
PLENTY = 10
"""A process that makes this many times what the model takes on a CPU needs no core of its own."""
OPERATIONS = {"pil": "--image-ops pil", "fast": "--image-ops fast"}


@dataclass(frozen=True)
class Rates:
    """Images per second. Keys are the image operations, `pil` and `fast` where the augmentation has them."""

    decoding: Mapping[str, float]
    """Decoding alone, of one process."""
    views: Mapping[str, float]
    """From files to augmented images, of one process."""
    feed: Mapping[str, float]
    """Batches of the loader when nothing waits for them."""
    copy: float | None
    """Copying batches to the GPU."""
    model: float
    """Training steps on one batch that is ready."""
    step: float
    """Whole training steps."""
    waiting: float
    """The share of the time of whole steps in which they waited for data."""
    workers: int
    """Loader processes."""


def advice(rates: Rates, images: int | None, epochs: int, command: "Command") -> Iterator[str]:
    """Yield lines for the user.

    Args:
        rates: the measured ones.
        images: in an epoch of the recipe's data set, if known.
        epochs: of the recipe.
        command: what was measured.
    """
    chosen: str = command.options.image_ops
    for title, values in (("decoding, one process", rates.decoding), ("views, one process", rates.views)):
        yield f"  {title:26} {_listed(values)}"
    yield f"  {f'loader, {rates.workers} processes':26} {_listed(rates.feed)}"
    if rates.copy is not None:
        yield f"  {'copying to the GPU':26} {rates.copy:,.0f}"
    yield f"  {'model, batch ready':26} {rates.model:,.0f}"
    yield f"  {'whole step':26} {rates.step:,.0f} with {OPERATIONS[chosen]}, {rates.waiting:.0%} of it waiting for data"
    yield ""
    yield from _bottleneck(rates, chosen, command)
    if images is not None:
        hours = images * epochs / rates.step / 3600
        yield f"{epochs} epochs of {images:,} images at this rate: {hours:,.1f} hours on one such device"


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{ops} {rate:,.0f}" for ops, rate in values.items()) + " images/s"


def _bottleneck(rates: Rates, chosen: str, command: "Command") -> Iterator[str]:
    on_gpu, cores = rates.copy is not None, usable_cores()
    if rates.copy is not None and rates.copy < ENOUGH * rates.model:
        yield "slowest: copying to the GPU; look for other work on its bus"
    elif rates.feed[chosen] >= ENOUGH * rates.model:
        yield f"slowest: the model; the loader makes {rates.feed[chosen] / rates.model:.1f} times what it takes"
        if on_gpu and not command.options.compile:
            yield "set: --compile"
        if not on_gpu and rates.workers and rates.views[chosen] > PLENTY * rates.model:
            yield f"set: --workers 0; loading takes less than 1/{PLENTY} of the time, and its core can train"
    else:
        yield f"slowest: the loader; it makes {rates.feed[chosen] / rates.model:.2f} of what the model takes"
        yield from _faster_feed(rates, chosen, cores, on_gpu)


def _faster_feed(rates: Rates, chosen: str, cores: int, on_gpu: bool) -> Iterator[str]:
    if chosen == "pil" and "fast" in rates.feed:
        yield (
            f"set: --image-ops fast, {rates.feed['fast'] / rates.feed['pil']:.1f} times as many images (part of the "
            "run's identity)"
        )
    if on_gpu and rates.workers < cores:
        yield f"set: --workers {cores}, one for each core"
    best = max(rates.decoding.values())
    if best * max(rates.workers, 1) < rates.model:
        yield (
            f"decoding alone allows {best * max(rates.workers, 1):,.0f} images/s: store smaller images "
            "(a copy of the data set with a shorter side of 256 pixels or so is another data set version)"
        )
    elif not on_gpu:
        yield "model and loader share the cores: a smaller share of one gives more to the other (--workers, --threads)"
