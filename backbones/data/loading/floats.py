"""Bytes to floats. Images travel from the loader to the model's device as bytes, a quarter of the floats."""

import torch
from torch import Tensor


def to_floats(images: Tensor) -> Tensor:
    """Return uint8 images as float32 in [0, 1], correctly rounded on every device; others are returned as they are."""
    if images.dtype != torch.uint8:
        return images
    # A divisor on the device: for a Python number CUDA multiplies by a rounded 1 / 255.
    return images.float().div_(torch.full((), 255.0, device=images.device))
