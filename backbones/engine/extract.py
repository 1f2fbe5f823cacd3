"""Features of many images, in order, over all ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from backbones.data.loader import plain_errors
from backbones.engine import dist
from backbones.engine.context import Context


@torch.inference_mode()
def extract(
    encode: Callable[[Tensor], Tensor], dataset: Dataset[Any], context: Context, *, batch_size: int, label: str
) -> Tensor:
    """Features [N, D] in float32 on the CPU, row i of image i, the same on every rank.

    Each rank encodes one contiguous part; nothing is padded or repeated.

    Args:
        encode: images [B, 3, H, W] -> features [B, D]; called under the run's autocast.
        dataset: index -> image tensor, or a tuple that begins with one.
        label: what the progress bar says.
    """
    mine = dist.share(list(range(len(dataset))), context.ranks)  # type: ignore[arg-type]
    loader = DataLoader(Subset(dataset, mine), batch_size, num_workers=context.workers, pin_memory=context.on_gpu)
    rows = []
    try:
        for batch in context.bar(plain_errors(loader), label, total=len(loader)):
            context.check_stop()
            images = batch[0] if isinstance(batch, list | tuple) else batch
            with context.autocast():
                rows.append(encode(images.to(context.device, non_blocking=True)).float().cpu())
    except RuntimeError:
        context.check_stop()  # a signal to the whole process group also ends the loader's workers
        raise
    part = torch.cat(rows) if rows else torch.empty(0)
    parts = [rows for rows in dist.gather_objects(part) if len(rows)]
    return torch.cat(parts)
