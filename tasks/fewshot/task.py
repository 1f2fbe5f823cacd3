"""Few-shot probes on frozen features: support sets, options, metrics, version, identity; see `tasks.fewshot.scoring`.

Support sets are the k training images of each class that a probe sees, drawn several times. They depend on the data
alone, so all backbones share them. Shapes: M training images, N test images, C classes.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np

from backbones.spec import BackboneSpec
from tasks.labelled_images import Classification, FrozenOptions, check_classes
from transfer.core.errors import UserError, reject, shortened, visible
from transfer.core.files import csv_text
from transfer.core.options import Common, Needs, Range, several
from transfer.data.classification import ClassificationData
from transfer.data.loading.options import shorter_side
from transfer.data.splits.integrity import content_digests
from transfer.task import Array, Defaults, Metric, Outcomes

Rule = Literal["digest", "bigvision"]


@dataclass(frozen=True, eq=False)
class SupportSets:
    """Nested support sets of a dataset: the set of k images per class contains those of fewer."""

    rule: Rule
    """Rule of the draws; see `draw_support_sets`."""
    orders: tuple[tuple[Array, ...], ...]
    """Indices of the training images of every draw and class, in the order in which they are taken."""
    shots: tuple[int, ...]
    """Numbers of images per class, rising."""
    select: int
    """Number of images per class beyond the largest set, for choosing a strength; 0 for none."""
    train: tuple[bytes, ...]
    """Content digest of every training image."""
    test: tuple[bytes, ...]
    """Content digest of every test image."""

    def support(self, draw: int, shots: int) -> Array:
        """Return the indices of the training images in one set, class by class; all of a class that has fewer."""
        return np.concatenate([order[:shots] for order in self.orders[draw]])

    def selection(self, draw: int) -> Array:
        """Return the indices of the training images on which a draw chooses its strength; none is in its sets."""
        first = self.shots[-1]
        return np.concatenate([order[first : first + self.select] for order in self.orders[draw]])

    def needed(self) -> Array:
        """Return the indices, sorted, of all training images that any draw takes."""
        most = self.shots[-1] + self.select
        return np.unique(np.concatenate([order[:most] for order in chain(*self.orders)]))

    @property
    def digest(self) -> str:
        """Return the sha256 (hex) over the contents of all images drawn, by draw, size and class.

        Equal for the same images however they are stored, and whatever the classes are called.
        """
        text = hashlib.sha256()
        for orders in self.orders:
            for first, last in zip((0, *self.shots), (*self.shots, self.shots[-1] + self.select)):
                classes = [b"".join(sorted(self.train[index] for index in order[first:last])) for order in orders]
                text.update(b"set" + b"".join(sorted(hashlib.sha256(contents).digest() for contents in classes)))
        return text.hexdigest()

    def table(self, data: ClassificationData) -> str:
        """Return a CSV with a line for every image that a draw takes; ranks up to k are the set of k shots."""
        lines: list[tuple[object, ...]] = [("draw", "class", "rank", "use", "image", "content")]
        most = self.shots[-1] + self.select
        for draw, orders in enumerate(self.orders):
            for name, order in zip(data.classes, orders, strict=True):
                for rank, index in enumerate(order[:most].tolist(), start=1):
                    use = "support" if rank <= self.shots[-1] else "selection"
                    image = visible(data.training.names[index])
                    lines.append((draw, visible(name), rank, use, image, self.train[index].hex()))
        return f"{csv_text(lines)}\n"

    def facts(self, labels: Array) -> dict[str, Any]:
        """Return plain values for the record about the sets, and about images that occur more than once.

        Args:
            labels: labels [M] of the training images.
        """
        of_content: dict[bytes, set[int]] = {}
        for content, label in zip(self.train, labels.tolist(), strict=True):
            of_content.setdefault(content, set()).add(label)
        counts, sizes = Counter(self.train), [len(order) for order in self.orders[0]]
        return {
            "rule": self.rule,
            "digest": self.digest,
            "draws": len(self.orders),
            "shots": list(self.shots),
            "images": {str(shots): len(self.support(0, shots)) for shots in self.shots},
            "classes_with_fewer": {str(shots): sum(size < shots for size in sizes) for shots in self.shots},
            "duplicates": {
                "train": len(self.train) - len(counts),
                "train_of_several_classes": sum(len(classes) > 1 for classes in of_content.values()),
                "test_also_in_train": sum(content in of_content for content in self.test),
                "test": len(self.test) - len(set(self.test)),
            },
        }


def draw_support_sets(
    data: ClassificationData, *, rule: Rule, draws: int, shots: Sequence[int], select: int = 0
) -> SupportSets:
    """Draw the support sets of a dataset with a training and a validation (that is, test) split.

    Args:
        data: opened dataset.
        rule: `digest`: each class is ordered by sha256 of (content, draw), so that the same images are drawn wherever
            and however they are stored; an image that occurs twice in a class is taken once. `bigvision`: draw s
            permutes each class, in file order, by numpy.random.default_rng(s) (its evaluators/fewshot_lsr.py).
        draws: number of draws.
        shots: images per class of the nested sets.
        select: images per class beyond the largest set, for choosing a strength.

    Raises:
        UserError: a class has no training image, nothing remains to choose a strength on, or an image cannot be read.
    """
    labels = data.training.labels
    check_classes(data)
    empty = np.setdiff1d(np.arange(len(data.classes)), labels)
    if len(empty):
        names = shortened([data.classes[label] for label in empty])
        raise UserError(f"{data.name}: {len(empty)} class(es) have no training image to draw: {names}")
    train, test = content_digests(data.training), content_digests(data.validation)
    groups = [np.flatnonzero(labels == label) for label in range(len(data.classes))]
    order = partial(by_content, contents=train) if rule == "digest" else permuted
    orders = tuple(order(groups, draw) for draw in range(draws))
    sets = SupportSets(rule, orders, tuple(sorted(shots)), select, tuple(train), tuple(test))
    if select and not all(len(sets.selection(draw)) for draw in range(draws)):
        fault = f"no class has more than {sets.shots[-1]} training images"
        fix = "lower --shots, or set a single strength"
        raise UserError(f"{data.name}: {fault}, so none remain to choose among several strengths on; {fix}")
    return sets


def images_digest(data: ClassificationData, *, ordered: bool) -> str:
    """Return the sha256 (hex) over split, class and content of every image, sorted or in the order of the splits."""
    lines = list[bytes]()
    for split in (data.training, data.validation):
        images = zip(split.labels.tolist(), content_digests(split), strict=True)
        lines += [f"{split.name}/{data.classes[label]}/".encode() + content for label, content in images]
    return hashlib.sha256(b"\n".join(lines if ordered else sorted(lines))).hexdigest()


def by_content(groups: Sequence[Array], draw: int, contents: Sequence[bytes]) -> tuple[Array, ...]:
    """Return the images of every class in the order of the digest of content and draw, equal images once."""
    orders = list[Array]()
    for group in groups:
        first = {contents[index]: index for index in reversed(group.tolist())}
        ranked = sorted(first, key=lambda content: hashlib.sha256(content + f"draw {draw}".encode()).digest())
        orders.append(np.array([first[content] for content in ranked], dtype=np.int64))
    return tuple(orders)


def permuted(groups: Sequence[Array], draw: int) -> tuple[Array, ...]:
    """Return the images of every class in the order of big_vision's generator; one stream for all classes."""
    generator = np.random.default_rng(draw)
    return tuple(generator.permutation(group) for group in groups)


PRIMARY_SHOTS = 10
SEVERAL_STRENGTHS = Needs(l2=several, otherwise=Needs(logistic_l2=several, otherwise=Needs(k=several)))
STRENGTHS = {"ridge": "l2", "logistic": "logistic_l2", "knn": "k"}  # the option that holds those of a probe


@dataclass(kw_only=True)
class FewshotOptions(FrozenOptions):
    """Options of `transfer.run fewshot`."""

    resize_mode: Literal["squash", "bicubic", "fast", "area"]
    """How the image is resized before the centre crop. It is resized to a square (big_vision's probes), bicubic, so on
    bytes (`fast`), or by area."""
    block: int | None
    """Features after this block (from 0; -1 is the last) instead of the network's own, pooled as those are."""
    shots: Annotated[tuple[int, ...], Range(1), Common()]
    """Images per class of the nested support sets; each gives a score."""
    draws: Annotated[int, Range(1)]
    """Support sets of each size. The run's --seeds change random weights alone."""
    support: Rule
    """What draws the support sets. Chosen by content hash, they are the same on every machine;
    big_vision's generator samples in file order."""
    probe: Literal["ridge", "logistic", "knn"]
    """Least squares, logistic regression, or nearest images. Logistic regression is scikit-learn's."""
    l2: Annotated[tuple[float, ...], Needs(probe="ridge"), Range(1e-9)]
    """Regularization strength of least squares. Of several, each draw takes the best on training images outside its
    support sets."""
    logistic_l2: Annotated[tuple[float, ...], Needs(probe="logistic"), Range(1e-9)]
    """Regularization strength of logistic regression (1 / C). Several: as for --l2."""
    k: Annotated[tuple[int, ...], Needs(probe="knn"), Range(1), Common()]
    """Neighbours (all support images where there are fewer); several: as for --l2."""
    temperature: Annotated[float, Needs(probe="knn"), Range(1e-9)]
    """Temperature of the neighbours' votes."""
    val_shots: Annotated[int, SEVERAL_STRENGTHS, Range(1)]
    """Training images per class, outside the support sets, that choose among several strengths."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("shots", "l2", "logistic_l2", "k"):
            values = getattr(self, name)
            if not values or len({*values}) < len(values):
                reject(f"--{name.replace('_', '-')}: set one or more different numbers")
            setattr(self, name, tuple(sorted(values)))  # their order changes nothing
        self.resize = shorter_side(self.size, self.resize)

    @property
    def strengths(self) -> tuple[float, ...]:
        """Return the strengths that the probe chooses from."""
        return tuple(map(float, getattr(self, STRENGTHS[self.probe])))

    def support_sets(self, data: ClassificationData) -> SupportSets:
        """Return the support sets of a dataset. Raises UserError."""
        select = self.val_shots if len(self.strengths) > 1 else 0
        return draw_support_sets(data, rule=self.support, draws=self.draws, shots=self.shots, select=select)


class Fewshot(Classification):
    """Mean accuracy over the draws, as `accuracy_<k>shot`, and its mean over the classes, `macro_accuracy_<k>shot`."""

    module = "tasks.fewshot.scoring"
    name, version, options, primary = "fewshot", 1, FewshotOptions, f"accuracy_{PRIMARY_SHOTS}shot"
    metrics = {f"accuracy_{shots}shot": Metric(averaged=True) for shots in (1, 5, 10, 25)}  # noqa: RUF012

    def metric(self, name: str) -> Metric:
        """Return the metric of any number of shots: of an accuracy, the mean over datasets is reported."""
        return Metric(averaged=name.startswith("accuracy"))

    def defaults_for_data(self, spec: BackboneSpec, dataset: ClassificationData, options: FewshotOptions) -> Defaults:
        """Return the shots that the largest class has, and those of the primary score."""
        largest = int(np.bincount(dataset.training.labels).max())
        shots = tuple(k for k in options.shots if k in {PRIMARY_SHOTS, *range(largest + 1)})
        return {"shots": (shots or options.shots, f"the largest class has {largest} training images")}

    def per_sample(self, name: str, outcomes: Outcomes) -> Array | None:
        """Return the share of the draws whose probe classifies each image [M] correctly.

        The draws of support sets belong to the protocol: they are the same for all backbones.
        """
        correct = outcomes.get(name.replace("accuracy", "correct")) if name.startswith("accuracy_") else None
        return super().per_sample(name, outcomes) if correct is None else correct.mean(axis=1, dtype=np.float64)

    def content(self, dataset: ClassificationData, options: FewshotOptions) -> dict[str, str]:
        """Return the images' contents, and their order if the draws depend on it."""
        return {"images": images_digest(dataset, ordered=options.support == "bigvision")}


TASK = Fewshot()
