"""Recompute classification by the weights' own classifier."""

from backbones.backbone import create
from backbones.pretrain.augment import eval_transform
from tasks.classify import choose_columns
from tasks.reference.outputs import compare_classifier
from tasks.reference.recomputed import Recomputed
from tasks.reference.run_inputs import InputsUnavailable, RunInputs, in_float64


def recompute(run: RunInputs) -> Recomputed:
    """Recompute top-1 and top-5 accuracy on the validation images."""
    if not run.weights_description:
        raise InputsUnavailable(run.missing_weights)
    options, split = run.options, run.dataset.val
    backbone = in_float64(create(run.spec, img_size=options.size, classes="trained"))
    columns, _ = choose_columns(backbone, run.dataset)
    transform = eval_transform(options.size, options.resize, view=options.view)
    return Recomputed(
        f"{run.weights_description}: {len(run.sample_indices())} images",
        compare_classifier(run, backbone, split, transform, columns),
    )
