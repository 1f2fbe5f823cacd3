"""Recompute the last validation of a DINO pretraining (votes of neighbours) from the export of its run."""

from backbones.pretrain.augment import eval_transform
from tasks.reference.knn import TOP, compare_votes
from tasks.reference.recomputed import Recomputed
from tasks.reference.run_inputs import RunInputs


def recompute(run: RunInputs) -> Recomputed:
    """Recompute `knn_top1` and `knn_top5` on the validation images."""
    options = run.options
    scores = {f"knn_top{top}": ("rank", options.knn_k, top) for top in (1, TOP)}
    transform = eval_transform(options.size, options.resize)
    comparisons = compare_votes(run, run.exported_backbone(options.size), transform, scores, options.knn_temperature)
    return Recomputed(
        f"weights: {len(run.sample_indices())} images, {len(run.dataset.train)} training images", comparisons
    )
