"""Support sets: the k training images of each class that a few-shot probe sees, drawn several times.

They depend on the data alone, so all backbones share them. Shapes: M training images, N test images, C classes.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.labelled_images import check_classes
from transfer.core.errors import UserError, shortened, visible
from transfer.core.files import csv_text
from transfer.data.classification import ClassificationData
from transfer.data.splits.integrity import content_digests

Rule = Literal["digest", "bigvision"]


@dataclass(frozen=True, eq=False)
class SupportSets:
    """Nested support sets of a dataset: the set of k images per class contains those of fewer."""

    rule: Rule
    """Rule of the draws; see `draw_support_sets`."""
    orders: tuple[tuple[NDArray[Any], ...], ...]
    """Indices of the training images of every draw and class, in the order in which they are taken."""
    shots: tuple[int, ...]
    """Numbers of images per class, rising."""
    select: int
    """Number of images per class beyond the largest set, for choosing a strength; 0 for none."""
    train: tuple[bytes, ...]
    """Content digest of every training image."""
    test: tuple[bytes, ...]
    """Content digest of every test image."""

    def support(self, draw: int, shots: int) -> NDArray[Any]:
        """Return the indices of the training images in one set, class by class; all of a class that has fewer."""
        return np.concatenate([order[:shots] for order in self.orders[draw]])

    def selection(self, draw: int) -> NDArray[Any]:
        """Return the indices of the training images on which a draw chooses its strength; none is in its sets."""
        first = self.shots[-1]
        return np.concatenate([order[first : first + self.select] for order in self.orders[draw]])

    def needed(self) -> NDArray[Any]:
        """Return the indices, sorted, of all training images that any draw takes."""
        most = self.shots[-1] + self.select
        return np.unique(np.concatenate([order[:most] for orders in self.orders for order in orders]))

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

    def facts(self, labels: NDArray[Any]) -> dict[str, Any]:
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
    if rule == "digest":
        orders = tuple(tuple(_by_content(group, train, draw) for group in groups) for draw in range(draws))
    else:
        orders = tuple(permuted(groups, draw) for draw in range(draws))
    sets = SupportSets(rule, orders, tuple(sorted(shots)), select, tuple(train), tuple(test))
    if select and not all(len(sets.selection(draw)) for draw in range(draws)):
        raise UserError(
            f"{data.name}: no class has more than {sets.shots[-1]} training images, so none remain to choose among "
            "several strengths on; lower --shots, or set a single strength"
        )
    return sets


def image_digest(data: ClassificationData, *, ordered: bool) -> str:
    """Return the sha256 (hex) over split, class and content of every image, sorted or in the order of the splits."""
    lines = [
        f"{split.name}/{data.classes[label]}/".encode() + content
        for split in (data.train, data.val)
        if split is not None
        for label, content in zip(split.labels.tolist(), content_digests(split), strict=True)
    ]
    return hashlib.sha256(b"\n".join(lines if ordered else sorted(lines))).hexdigest()


def _by_content(group: NDArray[Any], contents: Sequence[bytes], draw: int) -> NDArray[Any]:
    first = {contents[index]: index for index in reversed(group.tolist())}
    ranked = sorted(first, key=lambda content: hashlib.sha256(content + f"draw {draw}".encode()).digest())
    return np.array([first[content] for content in ranked], dtype=np.int64)


def permuted(groups: Sequence[NDArray[Any]], draw: int) -> tuple[NDArray[Any], ...]:
    """Return the images of every class in the order of big_vision's generator; one stream for all classes."""
    generator = np.random.default_rng(draw)
    return tuple(generator.permutation(group) for group in groups)
