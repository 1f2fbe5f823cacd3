"""Accuracy of a linear probe on frozen features, fitted to k images of each class; several draws of them.

The protocol is that of big_vision (evaluators/fewshot_lsr.py and configs/common_fewshot.py of its repository), used by
"Replacing softmax with ReLU in Vision Transformers" (arXiv 2309.08586): regularised least squares on the representation
of the images, nested support sets. Shapes: M test images.
"""

import time
from functools import partial

import numpy as np
import torch

from backbones.backbone import create
from backbones.data.classification import ClassificationData
from backbones.engine.context import Context
from backbones.engine.flops import flops
from backbones.errors import UsageError
from backbones.pretrain.accuracy import image_outcomes
from backbones.runtime.files import check_writable, write_atomic
from backbones.runtime.seeding import seed_torch
from backbones.spec import BackboneSpec
from tasks.facts.fewshot import FewshotFacts, FewshotOptions
from tasks.probes import LeastSquares, Logistic, Neighbours
from tasks.probing.feature_store import FLAG
from tasks.probing.features import Extractor, Features
from tasks.probing.fewshot_probe import Fit, FrozenFeatures, probe_all, spread
from tasks.probing.support_sets import SupportSets
from tasks.task import Outcomes, Scores


class Fewshot(FewshotFacts):
    """Mean accuracy over the draws, as `accuracy_<k>shot`."""

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

    def run(
        self, spec: BackboneSpec, dataset: ClassificationData, options: FewshotOptions, context: Context
    ) -> tuple[Scores, Outcomes]:
        """Extract the features of support and test images, fit a probe per draw, and score the validation split."""
        assert dataset.train is not None
        assert dataset.val is not None
        start = time.monotonic()
        if context.seed and spec.weights != "random":
            context.note("the seed has no effect with pretrained weights: --draws sets the support sets")
        seed_torch(context.seed)
        backbone = create(spec, img_size=options.size).to(context.device).eval()
        context.note_backbone(backbone, flops(backbone, options.size), options.eval_batch_size)
        sets = options.support_sets(dataset)
        extractor = Extractor(backbone, feature_settings(options), context, options.eval_batch_size)
        features = self._extract(extractor, dataset, sets)
        self._describe(sets, dataset, context)
        features.check(context)
        correct, strengths, unconverged = probe_all(features, sets, probe_fit(options), options.strengths, context)
        if unconverged:
            fits = f"{unconverged} of the fits of --probe {options.probe} did not converge"
            context.note(f"{dataset.name}: {fits}; a larger --logistic-l2 helps")
        outcomes = image_outcomes(dataset.val) | correct
        for name, values in correct.items():
            score = name.replace("correct", "accuracy")
            context.details[score] = spread(values.mean(0).tolist()) | {"strengths": strengths[name]}
        context.cost.eval_seconds += time.monotonic() - start
        return self.rescore(outcomes), outcomes

    def _describe(self, sets: SupportSets, data: ClassificationData, context: Context) -> None:
        """Describe data and support sets for the record; the run's support.csv lists the images."""
        assert data.train is not None
        context.details["data"] = {"form": data.storage, "origin": data.origin}
        context.details["support"] = sets.facts(data.train.labels)
        twice = context.details["support"]["duplicates"]
        if twice["test_also_in_train"]:
            context.note(f"{data.name}: {twice['test_also_in_train']} test images are also training images")
        if twice["train_of_several_classes"]:
            context.note(f"{data.name}: {twice['train_of_several_classes']} training images have several classes")
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


def feature_settings(options: FewshotOptions) -> Features:
    """Return the settings of the extracted features."""
    assert options.resize is not None
    return Features(size=options.size, resize=options.resize, view=options.resize_mode, block=options.block)


def probe_fit(options: FewshotOptions) -> Fit:
    """Return the function that fits a probe to support images."""
    neighbours = partial(Neighbours, temperature=options.temperature)
    fits: dict[str, Fit] = {"ridge": LeastSquares, "logistic": Logistic, "knn": neighbours}
    return fits[options.probe]


TASK = Fewshot()
