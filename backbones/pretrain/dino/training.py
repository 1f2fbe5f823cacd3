"""DINO: self-distillation without labels (Caron et al. 2021, arXiv 2104.14294), scored by online k-NN.

The recipe of the paper's ViT-S/16 is `configs/pretrain/dino.yaml`.
"""

from backbones.backbone import Backbone, check_builds, create
from backbones.flops import flops
from backbones.pretrain.accuracy import image_outcomes
from backbones.pretrain.dino.learner import DinoLearner
from backbones.pretrain.dino.method import METHOD, DinoOptions
from backbones.pretrain.dino.multicrop import MultiCrop
from backbones.pretrain.knn import TOP, knn_class_ranks
from backbones.pretrain.method import with_train_size
from backbones.spec import BackboneSpec
from transfer.core.errors import UsageError, UserError
from transfer.core.seeding import seed_torch
from transfer.data.classification import ClassificationData, Split
from transfer.data.loading.augment import view_of
from transfer.data.loading.loader import RunLoader
from transfer.data.splits.dataset import SplitDataset
from transfer.engine.context import Context
from transfer.task import Outcomes, Result, Scores


def check(spec: BackboneSpec, data: ClassificationData, options: DinoOptions, context: Context) -> None:
    """Check that both crop sizes suit the backbone, that the ranks can share a batch, and that there are enough
    images.
    """
    check_builds(spec, options.size, drop_path=options.drop_path)
    if options.local_crops and options.local_size % spec.divisor:
        raise UsageError(f"--local-size {options.local_size}: {spec.name} needs a multiple of {spec.divisor} pixels")
    context.micro_batch(options.batch_size, options.grad_accum_steps)
    images = len(data.needed("train", METHOD.method))
    if images < options.batch_size:
        raise UserError(f"{data.name}: --batch-size {options.batch_size} is too large for {images} training images")
    if data.val is not None and images < options.knn_k:
        raise UserError(f"{data.name}: {images} training images are fewer than --knn-k {options.knn_k}")


def run(spec: BackboneSpec, data: ClassificationData, options: DinoOptions, context: Context) -> Result:
    """Train on the training split, score the validation split by k-NN against it, and export."""
    learner, loader = prepare_training(spec, data, options, context)
    chosen = learner.exported
    if options.local_crops:
        context.note_lengths("attention_lengths_local", flops(chosen, options.local_size))
    return METHOD.train_and_score(learner, chosen, loader, knn_outcomes, data, options, context)


def prepare_training(
    spec: BackboneSpec, data: ClassificationData, options: DinoOptions, context: Context
) -> tuple[DinoLearner, RunLoader]:
    """Return student and teacher, and the loader of their batches."""
    seed_torch(context.seed)
    learner = make_learner(spec, options, METHOD.epoch_steps(data, options))
    operations = flops(learner.exported, options.size)
    micro_batch = context.micro_batch(2 * options.batch_size, options.grad_accum_steps)
    context.note_backbone(learner.exported, operations, micro_batch)
    return learner, train_loader(data.training, options, context)


def rescore(outcomes: Outcomes) -> Scores:
    """Return top-1 and top-5 accuracy from the rank of each image's true class; empty without a validation set."""
    if "rank" not in outcomes:
        return {}
    return {f"knn_top{k}": float((outcomes["rank"] < k).mean()) for k in (1, TOP)}


def make_learner(spec: BackboneSpec, options: DinoOptions, epoch_steps: int) -> DinoLearner:
    """Return student and teacher with equal weights; only the student has stochastic depth."""
    spec = with_train_size(spec, options.size)
    student = create(spec, img_size=options.size, drop_path=options.drop_path)
    teacher = create(spec, img_size=options.size, drop_path=0.0)
    return DinoLearner(student, teacher, options, epoch_steps)


def train_loader(split: Split, options: DinoOptions, context: Context) -> RunLoader:
    """Return the loader of multi-crop batches."""
    crops_of = (options.size, options.global_area, options.local_size, options.local_area, options.local_crops)
    colors = split.channels == 3 and not split.gives_arrays
    image_ops = "fast" if split.gives_arrays else options.image_ops
    crops = MultiCrop(*crops_of, blur=options.blur, image_ops=image_ops, colors=colors)
    return context.shuffled(SplitDataset(split, crops, seed=context.seed), options)


def knn_outcomes(backbone: Backbone, data: ClassificationData, options: DinoOptions, context: Context) -> Outcomes:
    """Return the rank of each validation image's true class in its neighbours' votes; the same on every rank.

    Empty without a validation split. Raises NotFinite.
    """
    if data.val is None or data.train is None:
        return {}
    k, temperature, size = options.knn_k, options.knn_temperature, options.eval_batch_size
    ranks = knn_class_ranks(backbone, data, view_of(options), context, k=[k], temperature=temperature, batch_size=size)
    return {**image_outcomes(data.val), "rank": ranks[k]}
