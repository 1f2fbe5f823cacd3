"""A linear classifier on frozen features anew: the features in float64, under the heads that the run kept."""

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from backbones.backbone import Backbone
from backbones.pretrain.augment import eval_transform
from tasks.reference.outputs import top_rows
from tasks.reference.recomputed import Recomputed
from tasks.reference.run_inputs import RunInputs, rows


def recompute(run: RunInputs) -> Recomputed:
    """top1 and top5 of the last epoch's head, best_top1 of the best."""
    options, split = run.options, run.dataset.val
    learned = {name: tensor.double().numpy() for name, tensor in run.learned().items()}
    backbone = run.frozen(options.size)
    transform = eval_transform(options.size, options.resize)
    features = rows(
        lambda images: _features(backbone, images, options.blocks, options.avgpool),
        lambda place: transform(split.read(place)),
        run.places(),
        "images",
    )
    found, lengths = [], np.sqrt((features**2).sum(1))
    for head, prefix, names in (("head", "", {"top1": 1, "top5": 5}), ("best", "best_", {"best_top1": 1})):
        weight, bias = learned[f"{head}.weight"], learned[f"{head}.bias"]
        # an output moves with a feature by the length of its class's weights at most
        errors = 2 * run.error * lengths * np.sqrt((weight**2).sum(1)).max()
        found += top_rows(run, features @ weight.T + bias, errors, split.labels[run.places()], names, prefix)
    return Recomputed(f"{run.weights}, and the run's heads: {len(run.places())} images", found)


def _features(backbone: Backbone, images: Tensor, blocks: int, avgpool: bool) -> Tensor:
    """The pooled tokens of the last blocks behind the final norm, side by side; of other models the pooled features."""
    if not isinstance(backbone.model, VisionTransformer):
        return backbone.pooled(images)
    entries = backbone.tokens(images, norm=True)[-blocks:]
    columns = [backbone.model.forward_head(entry, pre_logits=True) for entry in entries]
    if avgpool:
        columns.append(entries[-1][:, backbone.model.num_prefix_tokens :].mean(1))
    return torch.cat(columns, dim=1)
