"""Images and annotations for a detector, through mmdetection's transforms.

Every draw comes from numpy's or Python's global generator, so that under `seeded` a sample is a function of its key.
"""

from typing import Any, Literal

import numpy as np
from torch.utils.data import Dataset

from backbones.data.images import seeded
from backbones.errors import UserError
from tasks.data.coco import CocoSplit

GREY = 114
META = ("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")
View = Literal["jitter", "resize"]


def train_transforms(view: View, size: tuple[int, int], flip: float, masks: bool) -> list[dict[str, Any]]:
    """mmdetection's configuration of the training transforms.

    Args:
        view: `jitter`: ViTDet's large-scale jitter (arXiv 2203.16527, section 4; 2012.07177), 0.1 to 2 times the size,
            cropped and padded to it; `resize`: the whole image within (long, short) sides.
        size: (H, W) of the crop, or (short, long).
    """
    load: list[dict[str, Any]] = [{"type": "LoadImageFromFile"}]
    load += [{"type": "LoadAnnotations", "with_bbox": True, "with_mask": masks}]
    short, long = size
    geometry: list[dict[str, Any]]
    if view == "resize":
        geometry = [{"type": "Resize", "scale": (long, short), "keep_ratio": True}]
        geometry += [{"type": "RandomFlip", "prob": flip}]
    else:
        crop = {"crop_type": "absolute", "crop_size": size, "recompute_bbox": True, "allow_negative_crop": True}
        geometry = [
            {"type": "RandomFlip", "prob": flip},
            {"type": "RandomResize", "scale": (long, short), "ratio_range": (0.1, 2.0), "keep_ratio": True},
            {"type": "RandomCrop", **crop},
            {"type": "FilterAnnotations", "min_gt_bbox_wh": (1e-2, 1e-2), "keep_empty": False},
            {"type": "Pad", "size": (long, short), "pad_val": {"img": (GREY,) * 3}},
        ]
    return [*load, *geometry, {"type": "PackDetInputs"}]


def test_transforms(size: tuple[int, int]) -> list[dict[str, Any]]:
    """The whole image within (short, long) sides."""
    short, long = size
    resize = {"type": "Resize", "scale": (long, short), "keep_ratio": True}
    return [{"type": "LoadImageFromFile"}, resize, {"type": "PackDetInputs", "meta_keys": META}]


def described(split: CocoSplit, index: int) -> dict[str, Any]:
    """An image and its objects as mmdetection's transforms take them: boxes (x1, y1, x2, y2), clipped to the image.

    Crowds are marked to be ignored, so that what overlaps them is neither trained for nor against.
    """
    image, rows = split.images[index], split.rows(index)
    boxes = split.clipped_boxes()[rows]
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    instances = []
    for place, row in enumerate(range(rows.start, rows.stop)):
        if split.trained[row] or split.crowd[row]:
            instance = {"bbox": corners[place].tolist(), "bbox_label": int(split.label[row])}
            instance["ignore_flag"] = int(split.crowd[row])
            if split.segmentations[row] is not None:
                instance["mask"] = split.segmentations[row]
            instances.append(instance)
    sizes = {"height": image.height, "width": image.width}
    return {"img_path": split.path(index), "img_id": image.id, "instances": instances, **sizes}


class DetectionImages(Dataset[dict[str, Any]]):
    """Images of a split, transformed, with their annotations for training.

    A key is an index, for test images, or (epoch, index, repeat), for training.

    Args:
        split: images and objects. transforms: of `train_transforms` or `test_transforms`. seed: of the augmentation.
    """

    def __init__(self, split: CocoSplit, transforms: list[dict[str, Any]], *, seed: int = 0) -> None:
        from mmcv.transforms import Compose

        self.split, self.seed = split, seed
        self.transform = Compose(transforms)

    def __len__(self) -> int:
        return len(self.split.images)

    def __getitem__(self, key: int | tuple[int, int, int]) -> dict[str, Any]:
        """{"inputs": uint8 [3, H, W], "data_samples"}. Raises UserError for an unreadable image."""
        index = key[1] if isinstance(key, tuple) else key
        sample = described(self.split, index)
        try:
            if not isinstance(key, tuple):
                return self._packed(sample)
            with seeded(self.seed, *key):
                return self._packed(sample)
        except (OSError, AttributeError, ValueError) as error:
            raise UserError(f"{sample['img_path']}: cannot be read or transformed: {error}") from error

    def _packed(self, sample: dict[str, Any]) -> dict[str, Any]:
        packed: dict[str, Any] | None = self.transform(sample)
        if packed is None:
            raise UserError(f"{sample['img_path']}: nothing is left of it behind the transforms")
        return packed
