"""Top-1 and top-5 accuracy of a classifier, from the rank of each image's true class.

Letters: M images, B of them at a time, C classes of the model, S classes of the data.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from backbones.backbone import Backbone
from backbones.data.classification import Split, SplitDataset
from backbones.data.images import Transform
from backbones.data.loader import plain_errors
from backbones.engine import dist
from backbones.engine.context import Context

Outcomes = dict[str, np.ndarray]
TOP = (1, 5)


@torch.inference_mode()
def top_k(
    backbone: Backbone,
    split: Split,
    transform: Transform,
    context: Context,
    *,
    batch_size: int,
    columns: Tensor | None = None,
    interruptible: bool = True,
) -> Outcomes | None:
    """Classifies a split; the same on every rank.

    Args:
        transform: PIL image -> tensor.
        columns: [S], for each class of the data its place among the model's C outputs, -1 where it has none (see
            `class_columns`); the best class is then the best of these alone. None: the outputs are the data's classes.
        interruptible: whether a signal ends it. Within a training the loop answers signals, with its state saved.

    Returns:
        `rank` and `ties` [M] of the true classes (see `true_class_ranks`), `sample` [M] names and `cluster` [M] for
        resampling, an image each. None where a logit is not finite.
    """
    backbone.eval()
    dataset = SplitDataset(split, transform)
    mine = dist.share(list(range(len(split))), context.ranks)
    loader = DataLoader(Subset(dataset, mine), batch_size, num_workers=context.workers, pin_memory=context.on_gpu)
    found = []
    try:
        for images, labels in context.bar(plain_errors(loader), "accuracy", total=len(loader)):
            if interruptible:
                context.check_stop()
            with context.autocast():
                logits = backbone.logits(images.to(context.device, non_blocking=True))
            found.append(true_class_ranks(logits.float(), labels.to(context.device), columns).cpu())
    except RuntimeError:
        context.check_stop()  # a signal to the whole process group also ends the loader's workers
        raise
    gathered = torch.cat([part for parts in dist.gather_objects(found) for part in parts]).numpy()
    if (gathered[:, 0] < 0).any():
        return None
    names = np.array([split.names[index] for index in range(len(split))])
    return {"rank": gathered[:, 0], "ties": gathered[:, 1], "sample": names, "cluster": np.arange(len(split))}


def true_class_ranks(logits: Tensor, labels: Tensor, columns: Tensor | None = None) -> Tensor:
    """How many classes stand above the true one, and how many others are level with it, as int64 [B, 2].

    A class without a column is never found: it stands below all and the k best. (-1, -1) where a logit is not finite.

    Args:
        logits: [B, C]. labels: [B], classes of the data. columns: see `top_k`.
    """
    if columns is not None:
        columns = columns.to(logits.device)
        logits = logits[:, columns.clamp(min=0)]
    broken = ~logits.isfinite().all(1)
    if columns is not None:
        logits = logits.masked_fill(columns < 0, -torch.inf)
    true = logits.gather(1, labels[:, None])
    ranks = torch.stack([(logits > true).sum(1), (logits == true).sum(1) - 1], 1)
    if columns is not None:
        ranks[columns[labels] < 0] = torch.tensor([len(columns) + max(TOP), 0], device=ranks.device)
    return ranks.masked_fill(broken[:, None], -1)


def accuracies(outcomes: Outcomes) -> dict[str, float]:
    """`top1` and `top5`: the share of images whose true class is among the k best.

    A class that is level with t others takes each of their places with the same probability, so a model that gives
    every class the same logit has the accuracy of guessing.
    """
    rank, places = outcomes["rank"], outcomes["ties"] + 1
    return {f"top{k}": float(np.clip((k - rank) / places, 0, 1).mean()) for k in TOP}


def class_columns(model_classes: Sequence[str], data_classes: Sequence[str]) -> tuple[Tensor, list[str]]:
    """For each class of the data its place among the model's, by name, -1 where it has none; and the names without."""
    place = {name: index for index, name in enumerate(model_classes)}
    columns = torch.tensor([place.get(name, -1) for name in data_classes], dtype=torch.int64)
    return columns, [name for name in data_classes if name not in place]


def imagenet_synsets(classes: int) -> tuple[str, ...] | None:
    """WordNet ids in the order of the outputs of an ImageNet classifier, told by their number; None for other numbers.

    21,843 is Google's ImageNet-21k, which lacks one class of ImageNet-1k, n04399382 (teddy); 21,841, 21,842 and others
    are timm's lists of other releases.
    """
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset({"num_classes": classes})
    return tuple(ImageNetInfo(subset).label_names()) if subset else None
