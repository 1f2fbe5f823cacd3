"""DINO: self-distillation without labels (Caron et al. 2021, arXiv 2104.14294), scored by online k-NN.

The recipe of the paper's ViT-S/16 is `configs/pretrain/dino.yaml`.
"""

import time

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import CenterCrop, InterpolationMode, Resize

from backbones.backbone import Backbone, create, probe
from backbones.data.classification import ClassificationData, Split, SplitDataset
from backbones.data.loader import RunLoader
from backbones.data.samplers import shuffled_batches
from backbones.engine.context import Context
from backbones.engine.dist import broadcast_object
from backbones.engine.extract import extract
from backbones.engine.loop import fit
from backbones.engine.outcome import Outcome
from backbones.engine.seeding import seed_torch
from backbones.errors import UserError, WrongWords
from backbones.flops import flops
from backbones.pretrain.augment import CROP_PCT, Augmentation
from backbones.pretrain.dino_learner import DinoLearner
from backbones.pretrain.dino_options import DinoOptions
from backbones.pretrain.method import Method, Outcomes, Scores
from backbones.pretrain.multicrop import MultiCrop
from backbones.pretrain.neighbours import weighted_knn
from backbones.spec import BackboneSpec

TOP = 5


class Dino(Method):
    """A backbone whose features agree across crops of an image with those of its own moving average."""

    name, version, options, primary = "dino", 1, DinoOptions, "knn_top1"
    metrics = ("knn_top1", "knn_top5")

    def check(self, spec: BackboneSpec, data: ClassificationData, options: DinoOptions, context: Context) -> None:
        """Both crop sizes suit the backbone, the ranks can share a batch, and there are images enough."""
        check_crops(spec, options)
        batch, parts, world = options.batch, options.accumulate, context.ranks.world
        if batch // parts % world:
            raise WrongWords(f"--batch {batch} in {parts} micro-batches cannot be shared evenly by {world} ranks")
        if data.train is None:
            raise UserError(f"{data.name}: has no training split")
        if len(data.train) < batch:
            raise UserError(f"{data.name}: {len(data.train)} training images, but a batch takes --batch {batch}")
        if data.val is not None and len(data.train) < options.knn_k:
            raise UserError(f"{data.name}: {len(data.train)} training images are fewer than --knn-k {options.knn_k}")

    def run(
        self, spec: BackboneSpec, data: ClassificationData, options: DinoOptions, context: Context
    ) -> tuple[Scores, Outcomes]:
        """Trains on the training split, scores the validation split by its neighbours there, exports."""
        assert data.train is not None
        seed_torch(context.seed)
        learner = make_learner(spec, options, len(data.train) // options.batch)
        chosen = learner.teacher.backbone if options.export == "teacher" else learner.student.backbone
        context.note_backbone(chosen, flops(chosen, (options.size, options.size))["total"])
        if data.val is None:
            context.note(f"{data.name} has no validation split: nothing is scored")

        def validate(epoch: int) -> Scores:
            if not options.validates(epoch):
                return {}
            learner.eval()
            return self.rescore(knn_outcomes(chosen, data, options, context) or {})

        outcome = fit(learner, train_loader(data.train, options, context), options, context, validate)
        if outcome.broke_down:
            return {}, {}
        start = time.monotonic()
        outcomes = knn_outcomes(chosen, data, options, context)
        context.cost.eval_seconds += time.monotonic() - start
        if outcomes is None:
            reason = "the weights are finite, but the features they give are not"
            context.outcome = Outcome("nonfinite", reason, outcome.step)
            return {}, {}
        scores = self.rescore(outcomes)
        context.export(chosen, network=options.export, scores=scores)
        return scores, outcomes

    def rescore(self, outcomes: Outcomes) -> Scores:
        """Top-1 and top-5 accuracy from the rank of each image's true class; nothing without a validation split."""
        if "rank" not in outcomes:
            return {}
        return {f"knn_top{k}": float((outcomes["rank"] < k).mean()) for k in (1, TOP)}


def check_crops(spec: BackboneSpec, options: DinoOptions) -> None:
    """Raises WrongWords where the backbone cannot be trained on crops of both sizes."""
    if spec.drop_path not in (0, options.drop_path):
        raise WrongWords(f"backbone {spec.name}: `drop_path` is the recipe's here, give --drop-path {spec.drop_path}")
    probe(spec, options.size, drop_path=options.drop_path)
    if not options.local_crops:
        return
    if spec.divisor and options.local_size % spec.divisor:
        raise WrongWords(f"--local-size {options.local_size}: {spec.name} needs a multiple of {spec.divisor} pixels")
    backbone = create(spec, img_size=options.size, weights="random", load="strict").eval()
    try:
        with torch.inference_mode():
            backbone.pooled(torch.zeros(1, 3, options.local_size, options.local_size))
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WrongWords(
            f"backbone {spec.name}: made for --size {options.size}, not for --local-size {options.local_size}: {reason}"
        ) from error


def make_learner(spec: BackboneSpec, options: DinoOptions, epoch_steps: int) -> DinoLearner:
    """Student and teacher with equal weights; only the student has stochastic depth."""
    student = create(spec, img_size=options.size, drop_path=options.drop_path)
    teacher = create(spec, img_size=options.size, drop_path=0.0)
    return DinoLearner(student, teacher, options, epoch_steps)


def train_loader(split: Split, options: DinoOptions, context: Context) -> RunLoader:
    """Batches of multi-crops."""
    crops = MultiCrop(
        options.size,
        options.global_area,
        options.local_size,
        options.local_area,
        options.local_crops,
        blur=options.blur,
    )

    def batches(epoch: int) -> list[list[int]]:
        return shuffled_batches(len(split), options.batch, seed=context.seed, epoch=epoch, drop_last=True)

    return context.loader(SplitDataset(split, crops, seed=context.seed), batches, parts=options.accumulate)


def knn_outcomes(
    backbone: Backbone, data: ClassificationData, options: DinoOptions, context: Context
) -> Outcomes | None:
    """The rank of each validation image's true class in its neighbours' votes; the same on every rank.

    Empty without a validation split, None when a feature is not finite.
    """
    if data.val is None or data.train is None:
        return {}
    resize = options.resize or round(options.size / CROP_PCT)
    transform = Augmentation([Resize(resize, InterpolationMode.BICUBIC), CenterCrop(options.size)])
    train, test = (
        extract(backbone.pooled, SplitDataset(split, transform), context, batch_size=options.eval_batch, label=label)
        for split, label in ((data.train, "training features"), (data.val, "validation features"))
    )
    if not (torch.isfinite(train).all() and torch.isfinite(test).all()):
        return None
    found = None
    if context.ranks.first:
        ranked = weighted_knn(
            train.to(context.device),
            torch.from_numpy(data.train.labels),
            test,
            k=[options.knn_k],
            temperature=options.knn_temperature,
            classes=len(data.classes),
            top=TOP,
        )
        found = places(ranked[options.knn_k], torch.from_numpy(data.val.labels))
    return {
        "sample": np.array(list(data.val.names)),
        "cluster": np.arange(len(data.val)),
        "rank": broadcast_object(found),
    }


def places(ranked: Tensor, labels: Tensor) -> np.ndarray:
    """[N]: how many of the classes [N, top], by falling votes, stand before the true one; top where it is missing."""
    hits = ranked == labels[:, None]
    return torch.where(hits.any(1), hits.int().argmax(1), hits.shape[1]).numpy()


METHOD = Dino()
