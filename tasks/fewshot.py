"""Accuracy of a linear probe on frozen features, fitted to k images of each class; several draws of them.

The protocol is that of big_vision (evaluators/fewshot_lsr.py and configs/common_fewshot.py of its repository), used by
"Replacing softmax with ReLU in Vision Transformers" (arXiv 2309.08586): regularised least squares on the representation
of the images, nested support sets. Letters: M test images.
"""

import time
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch

from backbones.backbone import create
from backbones.data.classification import ClassificationData
from backbones.engine.context import Context
from backbones.engine.flops import flops
from backbones.engine.options import check_ranges
from backbones.errors import UsageError
from backbones.pretrain.accuracy import image_outcomes
from backbones.pretrain.options import shorter_side
from backbones.runtime.files import check_writable, write_atomic
from backbones.runtime.seeding import seed_torch
from backbones.spec import BackboneSpec
from tasks.labelled_images import Classification, FrozenOptions
from tasks.probes import LeastSquares, Logistic, Neighbours
from tasks.probing.draws import spread
from tasks.probing.feature_store import FLAG
from tasks.probing.features import Extractor, Features
from tasks.probing.fewshot_probe import Fit, FrozenFeatures, probe_all
from tasks.probing.support_sets import SupportSets, draw_support_sets, image_digest
from tasks.task import Metric, Outcomes, Scores

STRENGTHS = {"ridge": "l2", "logistic": "logistic_l2", "knn": "k"}  # the option that holds those of a probe


@dataclass(kw_only=True)
class FewshotOptions(FrozenOptions):
    """Options of `transfer.run fewshot`."""

    view: Literal["squash", "bicubic", "area"]
    """How the image is resized before the centre crop. It is resized to a square (big_vision's probes), bicubic, or by
    area."""
    block: int | None
    """Features from behind this block (from 0; -1 is the last) instead of the network's own, pooled as those are."""
    shots: tuple[int, ...]
    """Images per class of the nested support sets; each gives a score."""
    draws: int
    """Support sets of each size. The run's --seeds change random weights alone."""
    support: Literal["digest", "bigvision"]
    """What draws the support sets. By the images' contents they are the same on every machine;
    big_vision's generator draws in file order."""
    probe: Literal["ridge", "logistic", "knn"]
    """Least squares, logistic regression, or nearest images. Logistic regression is scikit-learn's."""
    l2: tuple[float, ...]
    """Strength of least squares. Of several, each draw takes the best on training images outside its support sets."""
    logistic_l2: tuple[float, ...]
    """Strength of logistic regression (1 / C); several: as for --l2."""
    k: tuple[int, ...]
    """Neighbours (all support images where there are fewer); several: as for --l2."""
    temperature: float
    """Temperature of the neighbours' votes."""
    select: int
    """Training images per class for choosing a strength. They lie outside the support sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, 1, None, "shots", "draws", "k", "select")
        check_ranges(self, 1e-9, None, "temperature")
        check_ranges(self, 1e-9, None, "l2", "logistic_l2")
        for name in ("shots", "l2", "logistic_l2", "k"):
            values = getattr(self, name)
            if not values or len({*values}) < len(values):
                raise UsageError(f"--{name.replace('_', '-')}: give one or more different numbers")
            setattr(self, name, tuple(sorted(values)))  # their order changes nothing
        self.resize = shorter_side(self.size, self.resize)

    @property
    def strengths(self) -> tuple[float, ...]:
        """Return the strengths that the probe chooses from."""
        return tuple(map(float, getattr(self, STRENGTHS[self.probe])))

    def support_sets(self, data: ClassificationData) -> SupportSets:
        """Return the support sets of a data set. Raises UserError."""
        select = self.select if len(self.strengths) > 1 else 0
        return draw_support_sets(data, rule=self.support, draws=self.draws, shots=self.shots, select=select)

    def features(self) -> Features:
        """Return the settings of the extracted features."""
        assert self.resize is not None
        return Features(size=self.size, resize=self.resize, view=self.view, block=self.block)

    def fit(self) -> Fit:
        """Return the function that fits a probe to support images."""
        neighbours = partial(Neighbours, temperature=self.temperature)
        fits: dict[str, Fit] = {"ridge": LeastSquares, "logistic": Logistic, "knn": neighbours}
        return fits[self.probe]


class Fewshot(Classification):
    """Mean accuracy over the draws, as `accuracy_<k>shot`."""

    name, version, options, primary = "fewshot", 2, FewshotOptions, "accuracy_10shot"
    metrics = {f"accuracy_{shots}shot": Metric(averaged=True) for shots in (1, 5, 10, 25)}  # noqa: RUF012

    def metric(self, name: str) -> Metric:
        """Return the metric of any number of shots, an accuracy whose mean over data sets is reported."""
        return Metric(averaged=True)

    def check(self, spec: BackboneSpec, dataset: ClassificationData, options: FewshotOptions, context: Context) -> None:
        """Check the size and block of the backbone, the support sets, and that the store can be written."""
        super().check(spec, dataset, options, context)
        if options.block is not None:
            backbone = create(spec, img_size=options.size, weights="random", load="strict")
            if not -backbone.depth <= options.block < backbone.depth:
                raise UsageError(f"--block {options.block}: {spec.name} has {backbone.depth} blocks, counted from 0")
        options.support_sets(dataset)
        if context.features:
            check_writable(context.features, FLAG)

    def content(self, dataset: ClassificationData, options: FewshotOptions) -> dict[str, str]:
        """Return the images' contents, and their order if the draws depend on it."""
        return {"images": image_digest(dataset, ordered=options.support == "bigvision")}

    def run(
        self, spec: BackboneSpec, dataset: ClassificationData, options: FewshotOptions, context: Context
    ) -> tuple[Scores, Outcomes]:
        """Extract the features of support and test images, fit a probe per draw, and score the validation split."""
        assert dataset.train is not None
        assert dataset.val is not None
        start = time.monotonic()
        if context.seed and spec.weights != "random":
            context.note("with given weights the seed changes nothing: the support sets are those of --draws")
        seed_torch(context.seed)
        backbone = create(spec, img_size=options.size).to(context.device).eval()
        context.note_backbone(backbone, flops(backbone, options.size), options.eval_batch)
        sets = options.support_sets(dataset)
        features = self._extract(Extractor(backbone, options.features(), context, options.eval_batch), dataset, sets)
        self._describe(sets, dataset, context)
        outcomes: Outcomes = {}
        if features.usable(context):
            correct, strengths, unconverged = probe_all(features, sets, options.fit(), options.strengths, context)
            if unconverged:
                fits = f"{unconverged} of the fits of --probe {options.probe} did not converge"
                context.note(f"{dataset.name}: {fits}; a larger --logistic-l2 helps")
            outcomes = image_outcomes(dataset.val) | correct
            for name, values in correct.items():
                score = name.replace("correct", "accuracy")
                context.details[score] = spread(values.mean(0).tolist()) | {"strengths": strengths[name]}
        context.cost.eval_seconds += time.monotonic() - start
        return (self.rescore(outcomes), outcomes) if outcomes else ({}, {})

    def _describe(self, sets: SupportSets, data: ClassificationData, context: Context) -> None:
        """Describe data and support sets for the record; the run's support.csv lists the images."""
        assert data.train is not None
        context.details["data"] = {"form": data.storage, "origin": data.origin}
        context.details["support"] = sets.facts(data.train.labels)
        twice = context.details["support"]["duplicates"]
        if twice["test_also_in_train"]:
            context.note(f"{data.name}: {twice['test_also_in_train']} test images are training images, too")
        if twice["train_of_several_classes"]:
            context.note(f"{data.name}: {twice['train_of_several_classes']} training images stand in several classes")
        if context.folder and context.ranks.first:
            write_atomic(context.folder / "support.csv", sets.table(data).encode())

    def _extract(self, extractor: Extractor, data: ClassificationData, sets: SupportSets) -> FrozenFeatures:
        assert data.train is not None
        assert data.val is not None
        rows = sets.needed()
        features = FrozenFeatures(
            train=extractor.features(data.train, rows, sets.train, f"{data.name} train"),
            train_labels=torch.from_numpy(data.train.labels[rows]),
            rows=rows,
            test=extractor.features(data.val, np.arange(len(data.val)), sets.test, f"{data.name} test"),
            test_labels=torch.from_numpy(data.val.labels),
            classes=len(data.classes),
            train_names=[data.train.names[row] for row in rows.tolist()],
            test_names=data.val.names,
        )
        extractor.context.details["features"] = extractor.facts() | features.facts(extractor.context)
        return features

    def rescore(self, outcomes: Outcomes) -> Scores:
        """Compute `accuracy_<k>shot` from `correct_<k>shot` [M, draws]."""
        correct = {name: values for name, values in outcomes.items() if name.startswith("correct_")}
        return {name.replace("correct", "accuracy"): float(values.mean()) for name, values in correct.items()}


TASK = Fewshot()
