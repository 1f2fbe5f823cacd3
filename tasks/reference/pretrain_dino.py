"""The last validation of a DINO pretraining anew: its neighbours' votes, from the export of its run."""

from backbones.pretrain.augment import eval_transform
from tasks.reference.knn import TOP, voted
from tasks.reference.recomputed import Recomputed
from tasks.reference.run_inputs import RunInputs


def recompute(run: RunInputs) -> Recomputed:
    """knn_top1 and knn_top5 of the validation images looked at."""
    options = run.options
    scores = {f"knn_top{top}": ("rank", options.knn_k, top) for top in (1, TOP)}
    transform = eval_transform(options.size, options.resize)
    found = voted(run, run.exported(options.size), transform, scores, options.knn_temperature)
    return Recomputed(f"weights: {len(run.places())} images, {len(run.dataset.train)} training images", found)
