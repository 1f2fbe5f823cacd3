"""Features of a frozen backbone for the images of a split, and their store on disk: `FEATURES/<key>.safetensors`.

A key stands for weights, resolved model, view of the image, precision, code and the contents of the images. Rows of its
file are different images, numbered in the order of their content digests. A file is read and written under its lock:
whole or absent, and by one process, for which others wait.
Shapes: M images of a split, B at a time, K images in a file, F channels of the features.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.utils.data import Subset

import backbones
from backbones.backbone import CPU_BATCH, Backbone
from tasks.fewshot.task import FewshotOptions
from transfer.core.errors import UserError, print_safe, unusable
from transfer.core.files import check_writable, lock, write_atomic
from transfer.data.formats.users_reader import ArraySplit
from transfer.data.loading.augment import view_of
from transfer.data.splits.dataset import SplitDataset
from transfer.data.splits.split import Split
from transfer.engine.context import Context
from transfer.engine.dist import broadcast_object
from transfer.engine.extract import extract
from transfer.task import Array

CACHE_FLAG = "--feature-cache"


class Stored(NamedTuple):
    """Features of some images."""

    rows: Array
    """Numbers [K] of the images, int64, rising."""
    features: Array
    """Their features [K, F], float32."""
    seconds: Array
    """Seconds [K] of the device that each took, float64."""

    def merged(self, added: "Stored") -> "Stored":
        """Return these and the features of other images."""
        if not len(self.rows):
            return added
        order = np.argsort(np.concatenate([self.rows, added.rows]))
        return Stored(*(np.concatenate(columns)[order] for columns in zip(self, added)))

    def seconds_of(self, rows: Array) -> float:
        """Return the seconds that those of the images took that are here."""
        return float(self.seconds[np.isin(self.rows, rows)].sum())


EMPTY = Stored(np.empty(0, np.int64), np.empty((0, 0), np.float32), np.empty(0))


@contextmanager
def locked_file(store: Path, key: dict[str, Any], wait: Callable[[], None]) -> Iterator[Path]:
    """Give the file of a key to this process alone; the file may not exist yet.

    Args:
        store: folder of all files.
        key: values that determine the features.
        wait: called every second while another process has it.

    Raises:
        UserError: the folder cannot be written, or keeps no locks.
    """
    check_writable(store, CACHE_FLAG)
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path = store / f"{digest[:32]}.safetensors"
    with path.with_suffix(".lock").open("wb") as file:
        while not lock(file, path, flag=CACHE_FLAG):
            wait()
            time.sleep(1)
        yield path


def read_features(path: Path) -> Stored:
    """Return the content of a file, `EMPTY` when there is none. Raises UserError when it is not as it was written."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return EMPTY
    kinds = (SafetensorError, OSError, ValueError, KeyError, TypeError)
    with unusable(f"{path}: damaged", *kinds), safe_open(path, framework="np") as file:
        content, written = Stored(*map(file.get_tensor, Stored._fields)), file.metadata()["sha256"]
    if written != _checksum(content):
        raise UserError(f"{path}: damaged (its bytes are not those that were written)")
    return content


def write_features(path: Path, content: Stored, about: dict[str, Any]) -> None:
    """Write a file; `about` says in its metadata what the features are. Raises UserError when the disk is full."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in content._asdict().items()}
    metadata = {"sha256": _checksum(content), "about": json.dumps(about, ensure_ascii=False)}
    write_atomic(path, save(arrays, metadata=metadata), flag=CACHE_FLAG)


def _checksum(content: Stored) -> str:
    digest = hashlib.sha256()
    for array in content:
        digest.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@dataclass
class Extractor:
    """Features of images, computed or read from the store, with counts of both."""

    backbone: Backbone
    options: FewshotOptions
    context: Context
    images: int = 0
    """Number of different images asked for."""
    computed: int = 0
    """Number of images that went through the network in this run; the store had the others."""
    entries: list[str] = field(default_factory=list)
    """Names of the files used, without suffix."""

    @cached_property
    def fingerprint(self) -> str:
        """Return the backbone's fingerprint, computed once."""
        return self.backbone.fingerprint

    def features(self, split: Split, indices: Array, contents: Sequence[bytes], name: str) -> Tensor:
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
        context = self.context
        assert context.features is not None, "a task that extracts features needs a store"
        key, first = self._key(order, split), context.ranks.first
        with locked_file(context.features, key, context.check_stop) if first else nullcontext(Path()) as path:
            stored = broadcast_object(_stored(path) if first else None)
            missing = np.setdiff1d(needed, stored.rows)
            stored_seconds = stored.seconds_of(needed)
            if len(missing):
                images = [image_of[row] for row in missing.tolist()]
                stored = stored.merged(self._computed(split, missing, images, name))
                if first:
                    about = {"backbone": self.backbone.spec.name, "images": name, "rows": len(order), "key": key}
                    write_features(path, stored, about)
            else:
                context.say(f"{name}: {len(needed)} features from {path}")
        self.computed += len(missing)
        self.images += len(needed)
        self.entries.append(broadcast_object(path.stem))
        cores = 1 if context.on_gpu else torch.get_num_threads() + context.workers
        spent = {"extraction_seconds": stored.seconds_of(needed), "found_hours": stored_seconds * cores / 3600}
        before = context.cost.extraction
        context.cost.extraction = {name: before.get(name, 0.0) + value for name, value in spent.items()}
        return torch.from_numpy(stored.features[np.searchsorted(stored.rows, rows)])

    def _key(self, contents: Sequence[bytes], split: Split) -> dict[str, Any]:
        """Return every value that determines the features of images of these digests, different and sorted.

        Digests are those of files, so that arrays have an entry for the user's code that decodes them.
        """
        options = self.options
        view = {"size": options.size, "resize": options.resize, "view": options.resize_mode, "block": options.block}
        return {
            "backbone": self.fingerprint,
            "features": view,
            "precision": f"{self.context.eval_precision} on {self.context.device.type}",
            "images": hashlib.sha256(b"".join(contents)).hexdigest(),
            "code": code_version(),
            **({"decode": split.source} if isinstance(split, ArraySplit) else {}),
        }

    def _computed(self, split: Split, rows: Array, images: list[int], label: str) -> Stored:
        """Compute the features of `images`, whose numbers in the store are `rows`."""
        start = time.monotonic()
        views = Subset(SplitDataset(split, view_of(self.options), preload=False), images)
        encode = encoder(self.backbone, self.options.block)
        features = extract(encode, views, self.context, batch_size=self.options.eval_batch_size, label=label)
        split.check_unchanged(images)  # features are kept under the contents that were known before
        of_image = (time.monotonic() - start) * self.context.ranks.world / len(images)
        return Stored(rows, features.numpy(), np.full(len(images), of_image))


def _stored(path: Path) -> Stored:
    """Return what the store has; nothing where its file is damaged, which is said."""
    try:
        return read_features(path)
    except UserError as damage:
        print_safe(f"{damage}; its features are computed again", file=sys.stderr)
        return EMPTY


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
    files = [*root.glob("*.py"), root.parent / "transfer/core/exports.py", Path(__file__).resolve()]
    for room in (root / "kernels", root / "weights", root.parent / "transfer/data/loading"):
        files += room.rglob("*.py")
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
