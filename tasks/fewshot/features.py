"""Features of a frozen backbone for the images of a split, through the store (`tasks.fewshot.feature_store`).

Shapes: M images of a split, R different ones among them, B images, F channels of the features.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.utils.data import Subset

import backbones
from backbones.backbone import Backbone
from tasks.fewshot import feature_store
from tasks.fewshot.feature_store import Stored
from transfer.core.errors import UserError, print_safe
from transfer.data.loading.augment import View, eval_transform
from transfer.data.splits.dataset import SplitDataset
from transfer.data.splits.split import Split
from transfer.engine.context import Context
from transfer.engine.dist import broadcast_object
from transfer.engine.extract import extract

CPU_BATCH = 16
"""Images at a time on a CPU: activations of more leave the cache, and the allocator maps them again in every layer."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """Description of the features extracted: the view of an image, and the place in the network."""

    size: int
    """Side of the view in pixels."""
    resize: int
    """Side in pixels that images are resized to; see `view_steps`."""
    view: View
    """Kind of the view; see `view_steps`."""
    block: int | None
    """Index of the block whose tokens are pooled; None stands for the network's own pooled features."""


@dataclass
class Extractor:
    """Features of images, computed or read from the store, with counts of both."""

    backbone: Backbone
    kind: Features
    context: Context
    batch_size: int
    images: int = 0
    """Number of different images asked for."""
    computed: int = 0
    """Number of images that went through the network in this run; the store had the others."""
    entries: list[str] = field(default_factory=list)
    """Names of the files used, without suffix."""
    all_seconds: float = 0.0
    """Seconds of the device that all the features took, whenever they were computed."""
    found_seconds: float = 0.0
    """Those of the features that the store had."""

    @cached_property
    def fingerprint(self) -> str:
        """Return the backbone's fingerprint, computed once."""
        return self.backbone.fingerprint

    def facts(self) -> dict[str, Any]:
        """Return plain values for a record."""
        return {"images": self.images, "computed": self.computed, "entries": self.entries}

    def features(self, split: Split, indices: NDArray[Any], contents: Sequence[bytes], name: str) -> Tensor:
        """Return features [len(indices), F], float32 on the CPU, of images of a split; the same on every rank.

        Features in the store are read; the others are computed by all ranks, and added to it when all are there.

        Args:
            split: images.
            indices: indices of images of the split, in the order of the result.
            contents: content digest of each of the split's M images.
            name: name of the dataset and split, for messages and for the file.

        Raises:
            UserError: an image cannot be read, or the store cannot be written.
            Stopped: a signal came; nothing is added.
        """
        order = sorted({*contents})
        row_of = {content: row for row, content in enumerate(order)}
        image_of = {row_of[content]: index for index, content in reversed([*enumerate(contents)])}
        rows = np.array([row_of[contents[index]] for index in indices.tolist()], dtype=np.int64)
        needed = np.unique(rows)
        context, precision = self.context, f"{self.context.eval_precision} on {self.context.device.type}"
        assert context.features is not None, "a task that extracts features needs a store"
        key = store_key(self.fingerprint, self.kind, precision, order)
        first = context.ranks.first
        with feature_store.locked(context.features, key, context.check_stop) if first else nullcontext(Path()) as path:
            held = broadcast_object(_held(path) if first else None)
            missing = np.setdiff1d(needed, held.rows)
            found = held.seconds[np.isin(held.rows, needed)].sum()
            if len(missing):
                held = held.merged(self._computed(split, missing, [image_of[row] for row in missing.tolist()], name))
                if first:
                    about = {"backbone": self.backbone.spec.name, "images": name, "rows": len(order), "key": key}
                    feature_store.write(path, held, about)
            else:
                context.say(f"{name}: {len(needed)} features from {path}")
        self.computed += len(missing)
        self.images += len(needed)
        self.entries.append(broadcast_object(path.stem))
        self._count_seconds(float(held.seconds[np.isin(held.rows, needed)].sum()), float(found))
        return torch.from_numpy(held.features[np.searchsorted(held.rows, rows)])

    def _computed(self, split: Split, rows: NDArray[Any], images: list[int], label: str) -> Stored:
        """Compute the features of `images`, whose numbers in the store are `rows`."""
        start = time.monotonic()
        transform = eval_transform(self.kind.size, self.kind.resize, view=self.kind.view)
        views = Subset(SplitDataset(split, transform, preload=False), images)
        encode = encoder(self.backbone, self.kind.block)
        features = extract(encode, views, self.context, batch_size=self.batch_size, label=label)
        split.check_unchanged(images)  # features are kept under the contents that were known before
        of_image = (time.monotonic() - start) * self.context.ranks.world / len(images)
        return Stored(rows, features.numpy(), np.full(len(images), of_image))

    def _count_seconds(self, seconds: float, found: float) -> None:
        self.all_seconds += seconds
        self.found_seconds += found
        cores = 1 if self.context.on_gpu else torch.get_num_threads() + self.context.workers
        found_hours = self.found_seconds * cores / 3600
        self.context.cost.extraction = {"extraction_seconds": self.all_seconds, "found_hours": found_hours}


def _held(path: Path) -> Stored:
    """Return what the store has; nothing where its file is damaged, which is said."""
    try:
        return feature_store.read(path)
    except UserError as damage:
        print_safe(f"{damage}; its features are computed again", file=sys.stderr)
        return feature_store.EMPTY


def store_key(fingerprint: str, kind: Features, precision: str, contents: Sequence[bytes]) -> dict[str, Any]:
    """Return the key of a file of the store: every value that determines its features.

    Args:
        fingerprint: fingerprint of the backbone.
        kind: description of the features.
        precision: precision and device of the computation.
        contents: digests of the different images, sorted.
    """
    return {
        "backbone": fingerprint,
        "features": asdict(kind),
        "precision": precision,
        "images": hashlib.sha256(b"".join(contents)).hexdigest(),
        "code": code_version(),
    }


@lru_cache
def code_version() -> str:
    """Return the sha256 (hex) of the sources of models and views and of the versions of the libraries below them."""
    digest = hashlib.sha256(" ".join(version(name) for name in ("torch", "torchvision", "timm", "pillow")).encode())
    for name, path in sorted(feature_sources().items()):
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


def feature_sources() -> dict[str, Path]:
    """Return the files that determine features, by name within the suite: models, weights, kernels and views."""
    root = Path(backbones.__path__[0])
    rooms = (root / "kernels", root / "weights", root.parent / "transfer/data/loading")
    files = [*root.glob("*.py"), *(path for room in rooms for path in room.rglob("*.py"))]
    files += [root.parent / "transfer/core/exports.py", Path(__file__).resolve()]
    return {path.relative_to(root.parent).as_posix(): path for path in files}


def encoder(backbone: Backbone, block: int | None) -> Callable[[Tensor], Tensor]:
    """Return a function from images [B, C, H, W] to features [B, F]; called in the precision of scoring.

    Tokens of a block are normalised and pooled as the model does at its end; in a model that is not a plain vision
    transformer, features are the mean over the block's map.
    """
    model = backbone.model

    def encode(images: Tensor) -> Tensor:
        if images.device.type == "cpu" and len(images) > CPU_BATCH:
            return torch.cat([encode(chunk) for chunk in images.split(CPU_BATCH)])
        images = images.contiguous(memory_format=torch.channels_last)
        if block is None:
            return backbone.pooled(images)
        if isinstance(model, VisionTransformer):
            entries = backbone.tokens(images, norm=True)[2:]
            return model.forward_head(entries[block], pre_logits=True)
        return backbone.maps(images, [block])[0].mean((2, 3))

    return encode
