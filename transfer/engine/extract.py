"""What a model gives for many images, in order, over all ranks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from transfer.core.process import part_of_rank, usable_cores
from transfer.data.loading.images import to_floats
from transfer.data.loading.workers import Collate, worker_batches
from transfer.engine import dist
from transfer.engine.context import Context

Encode = Callable[[Tensor], Tensor]
"""Images [B, C, H, W] -> features [B, D]."""


def extract(encode: Encode, dataset: Dataset[Any], context: Context, *, batch_size: int, label: str) -> Tensor:
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
    own_indices = part_of_rank(list(range(len(dataset))), context.ranks)  # type: ignore[arg-type]
    batches = [own_indices[start : start + batch_size] for start in range(0, len(own_indices), batch_size)]
    rows = []
    for batch in load_batches(dataset, batches, context, label=label):
        tensors = batch if isinstance(batch, list | tuple) else [batch]
        with context.scoring():
            rows.append(compute(*(to_floats(tensor.to(context.device, non_blocking=True)) for tensor in tensors)).cpu())
    own_rows = torch.cat(rows) if rows else torch.empty(0)
    return torch.cat([rows_of_rank for rows_of_rank in dist.gather_objects(own_rows) if len(rows_of_rank)])


def load_batches(
    dataset: Dataset[Any],
    batches: Sequence[list[int]],
    context: Context,
    *,
    label: str,
    collate: Collate = default_collate,
) -> Iterator[Any]:
    """Yield the collated samples of each batch of indices, in order, under a progress bar.

    Raises:
        Stopped: a signal came.
    """
    try:
        for batch in context.bar(_collated_batches(dataset, batches, context, collate), label, total=len(batches)):
            context.check_stop()
            yield batch
    except Exception:
        context.check_stop()  # a signal to the whole process group also ends the loader's workers
        raise


def _collated_batches(
    dataset: Dataset[Any], batches: Iterable[list[int]], context: Context, collate: Collate
) -> Iterator[Any]:
    """Yield the batches without loader processes by threads, on all cores of this rank: PIL and the codecs release the
    interpreter's lock, and the model computes when they are done, so neither takes cores from the other.
    """
    if context.workers:
        yield from worker_batches(dataset, batches, workers=context.workers, on_gpu=context.on_gpu, collate=collate)
        return
    with ThreadPoolExecutor(max(1, usable_cores() // context.ranks.local_world)) as pool:
        for batch in batches:
            yield collate(list(pool.map(dataset.__getitem__, batch)))


FLAT = {"fp32": 1e-6, "bf16": 1e-3, "fp16": 1e-3}
"""Share of the largest value below which a channel's variation is rounding: an image's features depend a little on the
number of images that are computed with it."""


class NotFinite(Exception):
    """Some numbers of some images are not finite, as the message says; a task's outcome, no failure of the command."""


class NotVaried(Exception):
    """The features of all images are the same, as the message says; a task's outcome, no failure of the command."""


def check_finite(rows: Tensor, names: Sequence[str], what: str) -> None:
    """Raise NotFinite, with the first image's name, unless all of `rows` [M, ...] are finite.

    Args:
        names: the names of the M images.
        what: a phrase for the rows, such as "features of the query split".
    """
    if rows.numel() and all(bound.isfinite() for bound in rows.aminmax()):  # which pass nan on, and take no memory
        return
    broken = ~rows.reshape(len(rows), -1).isfinite().all(1)
    raise_if_broken(broken, names, what)


def raise_if_broken(broken: Tensor, names: Sequence[str], what: str) -> None:
    """Raise NotFinite where any of `broken` [M] is set; see `check_finite`."""
    if broken.any():
        first, number = str(names[int(broken.int().argmax())]), int(broken.sum())
        others_text = f" and {number - 1} more of {len(names)} images" if number > 1 else ""
        raise NotFinite(f"{what}: not finite for {first}{others_text}")


def constant_channels(features: Tensor, flat: float) -> Tensor:
    """Return [F]: whether a channel of features [M, F] varies by no more than this share of its largest value."""
    low, high = features.aminmax(dim=0)
    return (high - low) <= flat * torch.maximum(low.abs(), high.abs())


def check_varied(features: Tensor, precision: str, split: str) -> None:
    """Raise NotVaried when the features [M, F] of several images are the same up to rounding.

    Args:
        precision: that they were computed in, a key of `FLAT`.
        split: word for the images, such as "validation".
    """
    if len(features) > 1 and constant_channels(features, FLAT[precision]).all():
        raise NotVaried(f"degenerate features: they are the same for all {split} images")
