"""Recompute the validation of a fine-tuned or supervised-pretrained classifier from the export of its run."""

from backbones.pretrain.augment import View, eval_transform
from tasks.reference.outputs import compare_classifier
from tasks.reference.recomputed import Recomputed
from tasks.reference.run_inputs import RunInputs


def recompute(run: RunInputs) -> Recomputed:
    """Recompute top-1 and top-5 accuracy on the validation images."""
    options = run.options
    backbone = run.exported_backbone(options.size, classes="trained")
    view: View = "area" if options.augment == "bigvision" else "bicubic"
    transform = eval_transform(options.size, options.resize, view=view)
    comparisons = compare_classifier(run, backbone, run.dataset.val, transform)
    return Recomputed(f"weights: {len(run.sample_indices())} images", comparisons)
