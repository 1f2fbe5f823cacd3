"""Weighted k-nearest-neighbour classification on frozen features.

The protocol is DINO's (Caron et al. 2021, arXiv 2104.14294, section 4.1): pooled features, L2-normalised, of images
without augmentation; the k nearest training images vote with weight exp(cosine similarity / temperature).
"""

from backbones.pretrain.accuracy import accuracies, image_outcomes, knn_class_ranks
from backbones.spec import BackboneSpec
from tasks.knn.task import KnnOptions
from tasks.labelled_images import check_classes, frozen_backbone
from transfer.core.errors import UserError
from transfer.data.classification import ClassificationData
from transfer.engine.context import Context
from transfer.task import Result


def check(spec: BackboneSpec, dataset: ClassificationData, options: KnnOptions, context: Context) -> None:
    """Check the classes, and that there are at least as many training images as neighbors."""
    check_classes(dataset)
    wanted = max(options.k, *options.other_k, 1)
    if wanted > len(dataset.training):
        wrong = f"{len(dataset.training)} training images, fewer than {wanted} neighbors"
        raise UserError(f"{dataset.name}: {wrong}; lower --k and --other-k")


def run(spec: BackboneSpec, dataset: ClassificationData, options: KnnOptions, context: Context) -> Result:
    """Extract the features of both splits, and classify validation images by votes of the training images."""
    backbone = frozen_backbone(spec, options, context)
    k, temperature = [options.k, *options.other_k], options.temperature
    ranks = knn_class_ranks(backbone, dataset, options, context, k=k, temperature=temperature, must_vary=True)
    outcomes = image_outcomes(dataset.validation) | {"rank": ranks[options.k]}
    outcomes |= {f"rank_k{k}": ranks[k] for k in options.other_k}
    return accuracies(outcomes), outcomes
