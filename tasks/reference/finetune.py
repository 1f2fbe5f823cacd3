"""A trained classifier's validation anew, from the export of its run: fine-tuning, and supervised pretraining."""

from backbones.pretrain.augment import View, eval_transform
from tasks.reference.outputs import of_backbone
from tasks.reference.recomputed import Recomputed
from tasks.reference.run_inputs import RunInputs


def recompute(run: RunInputs) -> Recomputed:
    """Top-1 and top-5 of the validation images looked at."""
    options = run.options
    backbone = run.exported(options.size, classes="trained")
    view: View = "area" if options.augment == "bigvision" else "bicubic"
    transform = eval_transform(options.size, options.resize, view=view)
    found = of_backbone(run, backbone, run.dataset.val, transform)
    return Recomputed(f"weights: {len(run.places())} images", found)
