"""NVIDIA DALI's CPU pipelines from JPEG bytes to normalised floats, for the benchmark of the feed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.benchmarks.speed.timing import Step

MEAN, STD = ([255 * value for value in values] for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def dali_steps(files: Sequence[bytes], size: int, area: tuple[float, float]) -> dict[str, Step]:
    """Steps over all files by one thread: a training view with a resized crop, flip and RandAugment, and a scored view.

    Raises:
        ImportError: DALI is not installed.
    """
    from nvidia.dali import fn, pipeline_def, types  # type: ignore[import-not-found]
    from nvidia.dali.auto_aug import rand_augment  # type: ignore[import-not-found]

    encoded = [np.frombuffer(file, dtype=np.uint8) for file in files]
    settings: dict[str, Any] = {"batch_size": len(files), "num_threads": 1, "device_id": None, "seed": 0}
    # nothing ahead of time, which would be charged to the other contestants
    settings |= {"exec_async": False, "exec_pipelined": False, "prefetch_queue_depth": 1}

    def floats(images: Any) -> Any:
        return fn.crop_mirror_normalize(
            images, dtype=types.FLOAT, output_layout="CHW", crop=(size, size), mean=MEAN, std=STD
        )

    @pipeline_def(enable_conditionals=True, **settings)  # type: ignore[untyped-decorator]
    def training() -> Any:
        jpegs = fn.external_source(source=lambda: encoded, dtype=types.UINT8)
        crops = fn.decoders.image_random_crop(jpegs, random_area=area, random_aspect_ratio=(3 / 4, 4 / 3))
        images = fn.resize(crops, size=[size, size], interp_type=types.INTERP_CUBIC, antialias=True)
        images = fn.flip(images, horizontal=fn.random.coin_flip(probability=0.5))
        return floats(rand_augment.rand_augment(images, n=2, m=9))

    @pipeline_def(**settings)  # type: ignore[untyped-decorator]
    def scored() -> Any:
        jpegs = fn.external_source(source=lambda: encoded, dtype=types.UINT8)
        images = fn.decoders.image(jpegs)
        shorter = round(size / 0.875)
        return floats(fn.resize(images, resize_shorter=shorter, interp_type=types.INTERP_CUBIC, antialias=True))

    steps: dict[str, Step] = {}
    for title, make in (("DALI, training", training), ("DALI, scored", scored)):
        pipeline = make()
        pipeline.build()
        steps[title] = pipeline.run
    return steps
