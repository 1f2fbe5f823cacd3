"""Training identities: those of several datasets as one set, and a share of them split off for validation."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from transfer.core.errors import UserError
from transfer.data.reid.dataset import ReidData, relabel
from transfer.data.reid.market1501 import Sample
from transfer.data.splits.integrity import shared_images


def join(parts: Sequence[ReidData]) -> ReidData:
    """Return a dataset that trains on the images of several; each has identities and cameras of its own.

    Both are numbered over the datasets by name, so the order of `parts` has no effect. Query and gallery are empty:
    each dataset is evaluated by itself. Raises UserError for training images that two share, as of two identities.
    """
    parts = sorted(parts, key=lambda part: (part.name, part.digest))
    for one, other in combinations(parts, 2):
        if shared := len(shared_images(*(part.images()["train"] for part in (one, other)))):
            both = f"{one.name} and {other.name} have {shared} training images in common"
            raise UserError(f"--joint: {both}, which would be of two identities; leave out one dataset")
    train, people, cameras = list[Sample](), 0, 0
    for part in parts:
        train += [Sample(one.path, people + one.identity, cameras + one.camera) for one in part.train]
        people, cameras = (
            1 + max((getattr(one, kind) for one in train), default=-1) for kind in ("identity", "camera")
        )
    counts = [part.counts["train"] for part in parts]
    return replace(
        parts[0],
        name="+".join(part.name for part in parts),
        version=None,
        root=type(parts[0].root)(os.path.commonpath([part.root for part in parts])),
        train=train,
        query=[],
        gallery=[],
        joined=[[part.name, part.digest] for part in parts],
        counts={"train": {unit: sum(own[unit] for own in counts) for unit in counts[0]}},
        digest=hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest(),
        skipped=sum(part.skipped for part in parts),
        manifests={part.digest: manifest for part in parts for manifest in part.manifests.values()},
        notes=tuple(f"{part.name}: {note}" for part in parts for note in part.notes),
    )


def split_off(data: ReidData, share: float, seed: int) -> ReidData:
    """Return the dataset with a share of its training identities as query and gallery, and the others to train on.

    They are drawn by `seed` among the identities that several cameras saw. As in DukeMTMC-reID (README of
    sxzrt/DukeMTMC-reID_evaluation), one image of an identity from each camera is a query, and the others are the
    gallery. A camera's only image of an identity is both: the ranking leaves out the query's own camera.

    Raises:
        UserError: fewer than two identities are split off, or more than there are.
    """
    seen, groups = defaultdict(set), defaultdict(list)
    for sample in data.train:
        seen[sample.identity].add(sample.camera)
        groups[sample.identity, sample.camera].append(sample)
    several = sorted(identity for identity, own in seen.items() if len(own) > 1)
    count, most = round(share * len(seen)), min(len(several), len(seen) - 2)
    if not 2 <= count <= most:
        raise UserError(
            f"{data.name}: --validation-share {share:g} of {len(seen)} training identities is {count}; it must be from "
            f"2 to {most} ({len(several)} identities were seen by several cameras, and 2 must remain)"
        )
    generator = np.random.default_rng([seed, count])
    drawn = {several[place] for place in generator.choice(len(several), count, replace=False)}
    query, gallery = list[Sample](), list[Sample]()
    for group in (group for (identity, _), group in groups.items() if identity in drawn):
        query.append(group.pop(int(generator.integers(len(group)))))
        gallery += group or query[-1:]
    rest = relabel([sample for sample in data.train if sample.identity not in drawn])
    return replace(data, train=rest, query=query, gallery=gallery)
