"""Images and annotations for a detector, through mmdetection's transforms.

Every random number comes from numpy's or Python's global generator, so that under `seeded` a sample is a function of
its key.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from torch.utils.data import Dataset

from tasks.detect import mmlab
from transfer.core.errors import UserError
from transfer.core.seeding import seeded
from transfer.data.coco.split import CocoSplit

GREY = 114
"""Value of the pixels that pad crops (ViTDet's jitter in mmdetection); whole images are padded with the mean."""
SIDE_STEP = 32
META = ("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")
CORNERS = [0, 1, 0, 3, 2, 3, 2, 1]
"""Those of a box (x1, y1, x2, y2) as a polygon."""
View = Literal["jitter", "resize", "scales"]


def train_transforms(view: View, size: tuple[int, int], flip: float, masks: bool) -> list[dict[str, Any]]:
    """Return mmdetection's configuration of the training transforms, for an image that is read already.

    Args:
        view: `jitter`: ViTDet's large-scale jitter (arXiv 2203.16527, section 4; 2012.07177), 0.1 to 2 times the size,
            cropped and padded to it; `resize`: the whole image within (long, short) sides; `scales`: the same, the
            limit of the shorter side drawn from 0.6 to 1 times itself in steps of 32 pixels (480 to 800; DETR, arXiv
            2005.12872, section 4).
        size: (H, W) of the crop, H not above W, or (short, long).
        flip: probability of a horizontal flip.
        masks: whether objects have masks; boxes are then fitted to what a crop leaves of them.
    """
    short, long = size
    geometry: list[dict[str, Any]]
    if view != "jitter":
        shorter = [short] if view == "resize" else list(range(short, round(0.6 * short) - 1, -SIDE_STEP))
        geometry = [{"type": "RandomChoiceResize", "scales": [(long, side) for side in shorter], "keep_ratio": True}]
        geometry += [{"type": "RandomFlip", "prob": flip}]
    else:
        # mmdetection takes (W, H) here and in `Pad`
        crop = {"crop_type": "absolute", "crop_size": (long, short), "allow_negative_crop": True}
        geometry = [
            {"type": "RandomFlip", "prob": flip},
            {"type": "RandomResize", "scale": (long, short), "ratio_range": (0.1, 2.0), "keep_ratio": True},
            {"type": "RandomCrop", "recompute_bbox": True, **crop},
            # `keep_empty: False` keeps images that lost all their objects
            {"type": "FilterAnnotations", "min_gt_bbox_wh": (1e-2, 1e-2), "keep_empty": False},
            {"type": "Pad", "size": (long, short), "pad_val": {"img": (GREY,) * 3}},
        ]
    annotations = {"type": "LoadAnnotations", "with_bbox": True, "with_mask": masks}
    return [annotations, *geometry, {"type": "PackDetInputs"}]


def test_transforms(size: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the configuration of the test transforms: the whole image within (short, long) sides, in pixels."""
    short, long = size
    resize = {"type": "Resize", "scale": (long, short), "keep_ratio": True}
    return [resize, {"type": "PackDetInputs", "meta_keys": META}]


def as_mmdet_sample(split: CocoSplit, index: int) -> dict[str, Any]:
    """Return an image's path and its objects as mmdetection's transforms take them: boxes (x1, y1, x2, y2), clipped.

    Crowds are marked to be ignored. The assigners of mmdetection's configurations then treat them as background: only
    `ignore_iof_thr` in the detector's file (`train_cfg`, each assigner) or `--ignore-iof` keeps regions within them out
    of training.
    """
    image, rows = split.images[index], split.rows(index)
    boxes = split.clipped_boxes[rows]
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    instances = []
    for place, row in enumerate(range(rows.start, rows.stop)):
        if split.trained[row] or (split.crowd[row] and not split.ignored[row]):
            instance = {"bbox": corners[place].tolist(), "bbox_label": int(split.label[row])}
            instance["ignore_flag"] = int(split.crowd[row])
            # without a mask mmdetection ignores it, as a crowd, whose box crops fit to its mask
            without = [corners[place][CORNERS].tolist()] if split.crowd[row] else []
            instance["mask"] = split.segmentations[row] or without
            instances.append(instance)
    sizes = {"height": image.height, "width": image.width}
    return {"img_path": split.path(index), "img_id": image.id, "instances": instances, **sizes}


class DetectionImages(Dataset[dict[str, Any]]):
    """Images of a split, transformed, with their annotations for training.

    A key is an index, for test images, or (epoch, index, repeat), for training.

    Args:
        split: images and objects.
        transforms: result of `train_transforms` or `test_transforms`.
        seed: seed of the augmentation.
    """

    def __init__(self, split: CocoSplit, transforms: list[dict[str, Any]], *, seed: int = 0) -> None:
        mmlab.load()
        import cv2
        from mmcv.transforms import Compose

        cv2.setNumThreads(0)  # several images are loaded at once, and its threads do not survive a fork
        self.split, self.transforms, self.seed = split, transforms, seed
        self.transform: Callable[[dict[str, Any]], dict[str, Any]] = Compose(transforms)

    def __reduce__(self) -> Any:
        """Rebuild the transforms in a loader's worker that is not forked, where mmdetection must be imported first."""
        return partial(DetectionImages, seed=self.seed), (self.split, self.transforms)

    def __len__(self) -> int:
        return len(self.split.images)

    def __getitem__(self, key: int | tuple[int, int, int]) -> dict[str, Any]:
        """Return {"inputs": uint8 [3, H, W], "data_samples"}. Raises UserError for an unreadable image."""
        sample = self._read(key[1] if isinstance(key, tuple) else key)
        if not isinstance(key, tuple):
            return self.transform(sample)
        with seeded(self.seed, *key):
            return self.transform(sample)

    def _read(self, index: int) -> dict[str, Any]:
        """Read an image as it is stored, with its objects.

        The reader is this suite's: mmdetection's rotates images by EXIF, while COCO's sizes and objects are those of
        the stored image, and its colors of CMYK differ.
        """
        sample = as_mmdet_sample(self.split, index)
        image, stated = self.split.read(index), (sample["width"], sample["height"])
        if image.size != stated:
            raise UserError(f"{sample['img_path']}: {image.size} pixels, but {self.split.file} states {stated}")
        sample["img"] = np.array(image)
        sample["img_shape"] = sample["ori_shape"] = sample["img"].shape[:2]
        return sample
