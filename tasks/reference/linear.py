"""Recompute a linear classifier on frozen features: the features in float64, under the heads that the run kept."""

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from backbones.backbone import Backbone
from backbones.pretrain.augment import eval_transform
from tasks.reference.outputs import compare_top_k
from tasks.reference.recomputed import Recomputed
from tasks.reference.run_inputs import RunInputs, encode_images, usable


def recompute(run: RunInputs) -> Recomputed:
    """Recompute `top1` and `top5` of the last epoch's head and `best_top1` of the best head."""
    options, split = run.options, run.dataset.val
    learned = {name: tensor.double().numpy() for name, tensor in run.trained_tensors().items()}
    backbone = run.initial_backbone(options.size)
    transform = eval_transform(options.size, options.resize)
    features = encode_images(
        lambda images: _features(backbone, images, options.blocks, options.avgpool),
        lambda place: transform(split.read(place)),
        run.sample_indices(),
        "images",
    )
    comparisons, lengths = [], np.sqrt((features**2).sum(1))
    for head, prefix, names in (("head", "", {"top1": 1, "top5": 5}), ("best", "best_", {"best_top1": 1})):
        weight, bias = learned[f"{head}.weight"], learned[f"{head}.bias"]
        # an output moves with a feature by the length of its class's weights at most
        errors = 2 * run.feature_error * lengths * np.sqrt((weight**2).sum(1)).max()
        comparisons += compare_top_k(
            run,
            usable(features @ weight.T + bias, f"images by its {head}"),
            errors,
            split.labels[run.sample_indices()],
            names,
            prefix,
        )
    return Recomputed(
        f"{run.weights_description}, and the run's heads: {len(run.sample_indices())} images", comparisons
    )


def _features(backbone: Backbone, images: Tensor, blocks: int, avgpool: bool) -> Tensor:
    """Return the pooled, normalised tokens of the last blocks, concatenated; for other models the pooled features."""
    if not isinstance(backbone.model, VisionTransformer):
        return backbone.pooled(images)
    entries = backbone.tokens(images, norm=True)[-blocks:]
    columns = [backbone.model.forward_head(entry, pre_logits=True) for entry in entries]
    if avgpool:
        columns.append(entries[-1][:, backbone.model.num_prefix_tokens :].mean(1))
    return torch.cat(columns, dim=1)
