"""Accuracy of a linear probe on frozen features, fitted to k images of each class; several draws of them.

The protocol is that of big_vision (evaluators/fewshot_lsr.py and configs/common_fewshot.py of its repository), used by
"Replacing softmax with ReLU in Vision Transformers" (arXiv 2309.08586): regularised least squares on the representation
of the images, nested support sets. Shapes: S support images needed, M test images, F channels.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backbones.backbone import Backbone, create
from backbones.pretrain.accuracy import extract_view, image_outcomes, macro
from backbones.spec import BackboneSpec
from tasks.fewshot.features import CACHE_FLAG, Extractor, encoder
from tasks.fewshot.task import FewshotOptions, SupportSets
from tasks.labelled_images import frozen_backbone
from tasks.probes import Fitted, LeastSquares, Logistic, Neighbours, best_strength
from transfer.core.errors import UsageError
from transfer.core.files import check_writable, write_atomic
from transfer.data.classification import ClassificationData, Split
from transfer.engine.context import Context
from transfer.engine.dist import gather_objects
from transfer.engine.extract import FLAT, check_finite, check_varied, constant_channels
from transfer.task import Array, Outcomes, Result, Scores

Fit = Callable[[Tensor, Tensor, int], Fitted]


@dataclass(frozen=True, eq=False)
class FrozenFeatures:
    """Features and labels of the images that the probes need."""

    train: Tensor
    """Features [S, F] of the training images, float32."""
    train_labels: Tensor
    """Labels [S] of the training images, int64."""
    rows: Array
    """Index [S] of each among all training images, sorted."""
    test: Tensor
    """Features [M, F] of the test images."""
    test_labels: Tensor
    """Labels [M] of the test images."""
    classes: int
    """Number of classes."""

    def training(self, indices: Array) -> tuple[Tensor, Tensor]:
        """Return the features and labels of training images."""
        places = np.searchsorted(self.rows, indices)
        return self.train[places], self.train_labels[places]


def probe_all(
    features: FrozenFeatures, sets: SupportSets, fit: Fit, strengths: tuple[float, ...], context: Context
) -> tuple[dict[str, Array], dict[str, list[float]], int]:
    """Probe every draw with every number of shots; ranks share the draws, and all return the same.

    Args:
        features: features of all images needed.
        sets: support sets of every draw.
        fit: function of support features, labels and number of classes that returns the probe.
        strengths: strengths of the regularisation; each probe takes the best on the draw's selection images.
        context: ranks and signals of the run.

    Returns:
        `correct_<k>shot` [M, draws], bool; for each of these names the strengths chosen, one per draw; and the number
        of fits that did not converge.
    """

    def probed(draw: int, shots: int) -> tuple[Array, float, int]:
        """Return whether each test image [M] is classified correctly, the strength that was chosen, and the number of
        fits that did not converge, those for the choice included.
        """
        probe, strength = fit(*features.training(sets.support(draw, shots)), features.classes), strengths[0]
        if len(strengths) > 1:
            strength = best_strength(probe, *features.training(sets.selection(draw)), strengths)
        correct = (probe.predict(features.test, strength) == features.test_labels).numpy()
        return correct, strength, probe.unconverged

    draws_of_rank = range(context.ranks.rank, len(sets.orders), context.ranks.world)
    results: dict[tuple[int, int], tuple[Array, float, int]] = {}
    for draw in context.bar(draws_of_rank, "probes", total=len(draws_of_rank)):
        context.check_stop()
        for shots in sets.shots:
            results[draw, shots] = probed(draw, shots)
    for of_rank in gather_objects(results):
        results |= of_rank
    correct, best_strengths, unconverged = dict[str, Array](), dict[str, list[float]](), 0
    for shots in sets.shots:
        columns, strengths_of, counts = zip(*(results[draw, shots] for draw in range(len(sets.orders))))
        correct[f"correct_{shots}shot"] = np.stack(columns, axis=1)
        best_strengths[f"correct_{shots}shot"] = [*strengths_of]
        unconverged += sum(counts)
    return correct, best_strengths, unconverged


def spread(accuracies: Sequence[float]) -> dict[str, Any]:
    """Return mean and spread of the accuracies of several draws, on the same test images, as plain values for a record.

    The variance is unbiased; it and the standard error of the mean are None for a single draw.
    """
    n, variance = len(accuracies), None if len(accuracies) < 2 else float(np.var(accuracies, ddof=1))
    error = None if variance is None else math.sqrt(variance / n)
    return {"draws": [*accuracies], "mean": float(np.mean(accuracies)), "standard_error": error, "variance": variance}


def check(spec: BackboneSpec, dataset: ClassificationData, options: FewshotOptions, context: Context) -> None:
    """Check the size and block of the backbone, the support sets, and that the store can be written."""
    if options.block is not None:
        backbone = create(spec, img_size=options.size, weights="random", load="strict")
        if not -backbone.depth <= options.block < backbone.depth:
            raise UsageError(f"--block {options.block}: {spec.name} has {backbone.depth} blocks, counted from 0")
    options.support_sets(dataset)
    if context.features:
        check_writable(context.features, CACHE_FLAG)


def run(spec: BackboneSpec, dataset: ClassificationData, options: FewshotOptions, context: Context) -> Result:
    """Extract the features of support and test images, fit a probe per draw, and score the validation split."""
    if context.seed and spec.weights != "random":
        context.note("the seed has no effect with pretrained weights: --draws sets the support sets")
    backbone = frozen_backbone(spec, options, context)
    sets = options.support_sets(dataset)
    features = _extract(Extractor(backbone, options, context), dataset, sets)
    _describe(sets, dataset, context)
    trained = [dataset.training.names[row] for row in features.rows.tolist()]
    check_finite(features.train, trained, "features of the train images")
    check_finite(features.test, dataset.validation.names, "features of the test images")
    check_varied(features.test, context.eval_precision, "test")
    check_varied(features.train, context.eval_precision, "training")
    neighbours = partial(Neighbours, temperature=options.temperature, device=context.device)
    fits: dict[str, Fit] = {"ridge": LeastSquares, "logistic": Logistic, "knn": neighbours}
    correct, strengths, unconverged = probe_all(features, sets, fits[options.probe], options.strengths, context)
    if unconverged:
        failing = f"{unconverged} of the fits of --probe {options.probe} did not converge"
        context.note(f"{dataset.name}: {failing}; a larger --logistic-l2 helps")
    outcomes = image_outcomes(dataset.validation) | correct
    for name, values in correct.items():
        score = name.replace("correct", "accuracy")
        context.details[score] = spread(values.mean(0).tolist()) | {"strengths": strengths[name]}
    return rescore(outcomes), outcomes


def features(backbone: Backbone, images: Split, options: FewshotOptions, context: Context) -> Tensor:
    """Return the features [M, F] of images that the probes see."""
    return extract_view(encoder(backbone, options.block), images, options, context, "features")


def _describe(sets: SupportSets, data: ClassificationData, context: Context) -> None:
    """Describe data and support sets for the record; the run's support.csv lists the images."""
    context.details["data"] = {"form": data.storage, "origin": data.origin}
    context.details["support"] = sets.facts(data.training.labels)
    twice = context.details["support"]["duplicates"]
    if twice["test_also_in_train"]:
        context.note(f"{data.name}: {twice['test_also_in_train']} test images are also training images")
    if twice["train_of_several_classes"]:
        context.note(f"{data.name}: {twice['train_of_several_classes']} training images have several classes")
    if context.folder and context.ranks.first:
        write_atomic(context.folder / "support.csv", sets.table(data).encode())


def _extract(extractor: Extractor, data: ClassificationData, sets: SupportSets) -> FrozenFeatures:
    rows = sets.needed()
    features = FrozenFeatures(
        train=extractor.features(data.training, rows, sets.train, f"{data.name} train"),
        train_labels=torch.from_numpy(data.training.labels[rows]),
        rows=rows,
        test=extractor.features(data.validation, np.arange(len(data.validation)), sets.test, f"{data.name} test"),
        test_labels=torch.from_numpy(data.validation.labels),
        classes=len(data.classes),
    )
    constant = int(constant_channels(features.test, FLAT[extractor.context.eval_precision]).sum())
    extractor.context.details["features"] = {
        "images": extractor.images,
        "computed": extractor.computed,
        "entries": extractor.entries,
        "channels": features.test.shape[1],
        "constant_channels": constant,
    }
    return features


def rescore(outcomes: Outcomes) -> Scores:
    """Compute `accuracy_<k>shot` and `macro_accuracy_<k>shot` from `correct_<k>shot` [M, draws]."""
    probed = {name.replace("correct", "accuracy"): x for name, x in outcomes.items() if name.startswith("correct_")}
    scores = {name: float(correct.mean()) for name, correct in probed.items()}
    for name, correct in probed.items():
        scores |= macro(name, correct.mean(1), outcomes)
    return scores
