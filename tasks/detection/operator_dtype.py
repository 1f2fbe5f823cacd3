"""The floating-point type that mmcv's operators are computed in."""

from functools import reduce

import torch
from torch import Tensor


def operator_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the type to compute in: the widest of the tensors', float32 at least."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
