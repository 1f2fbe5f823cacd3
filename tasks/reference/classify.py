"""Classification by the weights' own classifier anew."""

from backbones.backbone import create
from backbones.pretrain.augment import eval_transform
from tasks.classify import choose_columns
from tasks.reference.outputs import of_backbone
from tasks.reference.recomputed import Recomputed
from tasks.reference.run_inputs import InputsUnavailable, RunInputs, exact


def recompute(run: RunInputs) -> Recomputed:
    """Top-1 and top-5 of the validation images looked at."""
    if not run.weights:
        raise InputsUnavailable(run.note)
    options, split = run.options, run.dataset.val
    backbone = exact(create(run.spec, img_size=options.size, classes="trained"))
    columns, _ = choose_columns(backbone, run.dataset)
    transform = eval_transform(options.size, options.resize, view=options.view)
    return Recomputed(
        f"{run.weights}: {len(run.places())} images", of_backbone(run, backbone, split, transform, columns)
    )
