"""What a model gives for many images, in order, over all ranks."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from backbones.data.loading.floats import to_floats
from backbones.data.loading.loader import unwrap_worker_errors, worker_setup
from backbones.engine.context import Context
from backbones.runtime import dist
from backbones.runtime.ranks import part_of_rank
from backbones.runtime.threads import usable_cores


def extract(
    encode: Callable[[Tensor], Tensor], dataset: Dataset[Any], context: Context, *, batch_size: int, label: str
) -> Tensor:
    """Return features [N, D] in float32 on the CPU, row i of image i, the same on every rank.

    Args:
        encode: images [B, 3, H, W] -> features [B, D]; called in the precision of scoring.
        dataset: index -> image tensor, or a tuple that begins with one.
        label: what the progress bar says.
    """
    return compute_rows(lambda images, *_: encode(images).float(), dataset, context, batch_size=batch_size, label=label)


@torch.inference_mode()
def compute_rows(
    compute: Callable[..., Tensor], dataset: Dataset[Any], context: Context, *, batch_size: int, label: str
) -> Tensor:
    """Return `compute` of every batch on the CPU, row i of sample i, the same on every rank.

    Each rank computes one contiguous part; nothing is padded or repeated.

    Args:
        compute: the tensors of a batch -> rows [B, ...]; called in the precision of scoring.
        dataset: index -> tensor, or a tuple of tensors.
        label: what the progress bar says.

    Raises:
        Stopped: a signal came.
    """
    mine = part_of_rank(list(range(len(dataset))), context.ranks)  # type: ignore[arg-type]
    batches = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    rows = []
    try:
        for batch in context.bar(load_batches(dataset, batches, context), label, total=len(batches)):
            context.check_stop()
            parts = batch if isinstance(batch, list | tuple) else [batch]
            with context.scoring():
                rows.append(compute(*(to_floats(part.to(context.device, non_blocking=True)) for part in parts)).cpu())
    except Exception:
        context.check_stop()  # a signal to the whole process group also ends the loader's workers
        raise
    part = torch.cat(rows) if rows else torch.empty(0)
    return torch.cat([rows for rows in dist.gather_objects(part) if len(rows)])


def load_batches(
    dataset: Dataset[Any],
    batches: Iterable[list[int]],
    context: Context,
    *,
    collate: Callable[[list[Any]], Any] = default_collate,
) -> Iterator[Any]:
    """Yield the collated samples of each batch of indices, in order. `batches` may be read ahead of what is yielded.

    Without loader processes the samples of a batch are read by threads, on all cores of this rank: PIL and the codecs
    release the interpreter's lock, and the model computes when they are done, so neither takes cores from the other.
    """
    if context.workers:
        loader = DataLoader(
            dataset,
            batch_sampler=batches,
            collate_fn=collate,
            num_workers=context.workers,
            pin_memory=context.on_gpu,
            worker_init_fn=worker_setup(),
        )
        yield from unwrap_worker_errors(loader)
        return
    with ThreadPoolExecutor(max(1, usable_cores() // context.ranks.local_world)) as pool:
        for batch in batches:
            yield collate(list(pool.map(dataset.__getitem__, batch)))
