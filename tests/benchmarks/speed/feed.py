"""Images per second from JPEG bytes to views, beside decoding alone and the pipelines of timm and of DINO.

    python -m tests.benchmarks feed [--dino CHECKOUT] [--images 32]

Every contestant takes the same encoded images (drawn, 480 x 360, quality 85) from memory to what its loader sends,
with equal seeds: floats, or bytes where floats and erasing are left to the device, as by ours and timm's prefetcher.
It does so in one process with one thread, then in two side by side; the number in front of a figure is theirs. Rates
are medians over interleaved rounds, in images per second of each process's own (CPU) time. `crops, training` is
decoding by torchvision up to the resized crop: what the sizes allow without color operations.

Needs a checkout of facebookresearch/dino for the peer of multi-crop.
"""

import argparse
import io
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from multiprocessing import get_context
from typing import Any

import torch
from PIL import Image
from timm.data import create_transform
from torchvision.transforms import v2

from backbones.pretrain.dino.multicrop import MultiCrop
from tests.benchmarks.options import read
from tests.benchmarks.speed.timing import Step, measure, show
from tests.support import command
from transfer.core.seeding import seeded
from transfer.data.loading.augment import FastCrop, eval_transform, posterize, train_transform
from transfer.data.loading.images import read_pixels
from transfer.data.loading.options import AugmentOptions
from transfer.data.loading.read_image import read_image
from transfer.data.toy.digits import draw_jpegs

SIZE, MEAN, STD = 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AREA, RATIO, RANDAUGMENT = (0.08, 1.0), (3 / 4, 4 / 3), "rand-m9-mstd0.5-inc1"
DEIT = {
    **{"augment": "timm", "crop_area": AREA, "crop_ratio": RATIO, "interpolation": "bicubic", "flip": 0.5, "pad": 0},
    **{"auto_augment": RANDAUGMENT, "color_jitter": 0.0, "erase": 0.25, "randaug": None, "resize": None},
}
View = Callable[[bytes], Any]


def by_pil(content: bytes) -> Image.Image:
    """The image, decoded as everybody does."""
    return read_image(io.BytesIO(content))


def by_torchvision(content: bytes) -> torch.Tensor:
    """The pixels, decoded for the fast operations."""
    return read_pixels(content, name="image")


def after(decode: Callable[[bytes], Any], transform: Callable[[Any], Any]) -> View:
    """A view from a file's bytes."""
    return lambda content: transform(decode(content))


def multi_crop(image_ops: str) -> MultiCrop:
    """The crops of the published recipe."""
    return MultiCrop(command("dino", "--backbone", "dino_s16", "--image-ops", image_ops).options)


def contestants(dino: str) -> dict[str, View]:
    """Every pipeline by its title."""
    timm = partial(create_transform, SIZE, mean=MEAN, std=STD, interpolation="bicubic")
    training = timm(is_training=True, auto_augment=RANDAUGMENT, re_prob=0.25, re_mode="pixel", color_jitter=None)
    # with its prefetcher timm leaves erasing and normalising to the device, as our fast operations do
    in_bytes = timm(is_training=True, auto_augment=RANDAUGMENT, re_prob=0.25, color_jitter=None, use_prefetcher=True)
    resized = v2.RandomResizedCrop(SIZE, AREA, RATIO, v2.InterpolationMode.BICUBIC)
    slow, fast = (train_transform(SIZE, AugmentOptions(image_ops=ops, **DEIT), MEAN, STD) for ops in ("pil", "fast"))  # type: ignore[arg-type]
    for step in (*training.transforms, *in_bytes.transforms):
        for op in getattr(step, "ops", ()):
            if op.name.startswith("Posterize"):  # Pillow 13 refuses timm's 0 bits
                op.aug_fn = posterize
    views = {
        "decoding by PIL": by_pil,
        "decoding by torchvision": by_torchvision,
        "crops, training": after(by_torchvision, FastCrop(resized)),
        "timm, training": after(by_pil, training),
        "timm, training, bytes": after(by_pil, in_bytes),
        "ours, training, pil": after(by_pil, slow),
        "ours, training, fast": after(by_torchvision, fast),
        "timm, scored": after(by_pil, timm(is_training=False, crop_pct=0.875)),
        "ours, scored, bicubic": after(by_pil, eval_transform(SIZE)),
        "ours, scored, fast": after(by_torchvision, eval_transform(SIZE, view="fast")),
        "ours, multi-crop, pil": after(by_pil, multi_crop("pil")),
        "ours, multi-crop, fast": after(by_torchvision, multi_crop("fast")),
    }
    if dino:
        sys.path.insert(0, dino)
        from main_dino import DataAugmentationDINO  # type: ignore[import-not-found]

        views["DINO, multi-crop"] = after(by_pil, DataAugmentationDINO((0.4, 1.0), (0.05, 0.4), 8))
    return views


def rates(given: argparse.Namespace, process: int) -> dict[str, float]:
    """Images per second of every contestant in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    files = draw_jpegs(given.images, 480, 360)

    def step(view: View, turns: Iterator[int]) -> None:
        with seeded(process, next(turns)):
            for content in files:
                view(content)

    steps: dict[str, Step] = {title: partial(step, view, count()) for title, view in contestants(given.dino).items()}
    return measure(steps, 5, 1, given.images, torch.device("cpu"), time.process_time)


def main(argv: Sequence[str]) -> int:
    """Measures in one process, then in two at once, and prints a table."""
    given = read(argv, __doc__, dino="", images=32)
    for processes in (1, 2):
        with get_context("spawn").Pool(processes) as pool:
            results = pool.starmap(rates, [(given, process) for process in range(processes)], chunksize=1)
        mean = {title: sum(result[title] for result in results) / processes for title in results[0]}
        for kind in ("decoding", "training", "scored", "multi-crop"):
            show({title: rate for title, rate in mean.items() if kind in title}, f"{processes}, ")
    return 0
