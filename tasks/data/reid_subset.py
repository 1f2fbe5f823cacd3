"""`--subset N`: a small part of a real dataset, chosen by content, so that it is the same part on every machine."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from backbones.errors import UserError
from tasks.data.reid_layouts import Sample


def choose_identities(
    train: list[Sample], query: list[Sample], gallery: list[Sample], n: int
) -> tuple[list[Sample], list[Sample], list[Sample]]:
    """Return N training identities and N test identities with all their images.

    An identity's rank is the sha256 of the bytes of its first image. Test identities are those with a query that has a
    match. Of the other gallery images (distractors) the same proportion is kept, ranked each by its own bytes.

    Raises:
        UserError: there are fewer than N of either.
    """
    people = {sample.identity for sample in matched(query, gallery)}
    others = [sample for sample in gallery if sample.identity not in people]
    trainable = len({sample.identity for sample in train})
    if n < 1 or n > len(people) or (train and n > trainable):
        raise UserError(f"subset {n}: the dataset has {trainable} training and {len(people)} test identities")
    trained = _first_by_content(train, n)
    tested = _first_by_content([sample for sample in query if sample.identity in people], n)
    ranked = sorted(others, key=lambda sample: (_content(sample), sample.path))
    kept = set(ranked[: round(len(others) * n / len(people))])
    return (
        [sample for sample in train if sample.identity in trained],
        [sample for sample in query if sample.identity in tested],
        [sample for sample in gallery if sample.identity in tested or sample in kept],
    )


def matched(query: Iterable[Sample], gallery: Iterable[Sample]) -> list[Sample]:
    """Return the queries whose identity another camera saw: the queries that the score is averaged over."""
    cameras = defaultdict(set)
    for sample in gallery:
        cameras[sample.identity].add(sample.camera)
    return [sample for sample in query if cameras[sample.identity] - {sample.camera}]


def _first_by_content(samples: list[Sample], n: int) -> set[int]:
    first: dict[int, Sample] = {}
    for sample in samples:
        first.setdefault(sample.identity, sample)
    return set(sorted(first, key=lambda identity: (_content(first[identity]), identity))[:n])


def _content(sample: Sample) -> bytes:
    return hashlib.sha256(Path(sample.path).read_bytes()).digest()
