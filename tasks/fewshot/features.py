"""Features of a frozen backbone for the images of a split, through the store (`tasks.fewshot.feature_store`).

Shapes: M images of a split, R different ones among them, B images, F channels of the features.
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
from torch.utils.data import Dataset
from tqdm import tqdm

import backbones
from backbones.backbone import Backbone
from tasks.fewshot.feature_store import Entry
from transfer.data.loading.augment import FastView, Step, View, apply_steps, view_steps
from transfer.data.loading.images import to_pixels
from transfer.data.splits.split import Split
from transfer.engine.context import Context
from transfer.engine.dist import gather_objects
from transfer.engine.extract import load_batches

SHARD_ROWS = 1024
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

    def steps(self) -> list[Step]:
        """Return the steps from an image to the pixels that the network sees."""
        return view_steps(self.size, self.resize, view=self.view)


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
    """Number of images that went through the network in this process; the store or other processes had the others."""
    entries: list[str] = field(default_factory=list)
    """Names of the entries used."""
    all_seconds: float = 0.0
    """Seconds of the device that all the features took, whenever they were computed."""
    found_seconds: float = 0.0
    """Those of the features that the store had, or that other runs wrote meanwhile."""

    @cached_property
    def fingerprint(self) -> str:
        """Return the backbone's fingerprint, computed once."""
        return self.backbone.fingerprint

    def facts(self) -> dict[str, Any]:
        """Return plain values for a record; images computed are summed over the ranks, which all call this."""
        computed = sum(gather_objects(self.computed))
        return {"images": self.images, "computed": computed, "entries": self.entries}

    def features(self, split: Split, indices: NDArray[Any], contents: Sequence[bytes], name: str) -> Tensor:
        """Return features [len(indices), F], float32 on the CPU, of images of a split; the same on every rank.

        Features in the store are read; the others are computed, a shard at a time, by all ranks. Nothing is padded.

        Args:
            split: images.
            indices: indices of images of the split, in the order of the result.
            contents: content digest of each of the split's M images.
            name: name of the dataset and split, for messages and for the list of entries.

        Raises:
            UserError: an image cannot be read, or the store cannot be written.
            Stopped: a signal came; finished shards are kept.
        """
        order = sorted({*contents})
        row_of = {content: row for row, content in enumerate(order)}
        image_of = {row_of[content]: index for index, content in reversed([*enumerate(contents)])}
        rows = np.array([row_of[contents[index]] for index in indices.tolist()], dtype=np.int64)
        needed = np.unique(rows)
        entry = self._open(order, name)
        before = self.computed
        values = None
        while values is None:
            self._fill(entry, needed, Pixels(split, image_of, self.kind.steps()), name)
            values = entry.read(rows)
        if self.computed == before:
            self.context.say(f"{name}: {len(needed)} features from {entry.folder}")
        mine = set().union(*gather_objects(entry.made))
        self.all_seconds += entry.extraction_seconds(needed)
        self.found_seconds += entry.extraction_seconds(needed, exclude=mine)
        cores = 1 if self.context.on_gpu else torch.get_num_threads() + self.context.workers
        self.context.cost.extraction = {
            "extraction_seconds": self.all_seconds,
            "found_hours": self.found_seconds * cores / 3600,
        }
        self.images += len(needed)
        self.entries.append(entry.folder.name)
        return torch.from_numpy(values)

    def _open(self, contents: Sequence[bytes], name: str) -> Entry:
        assert self.context.features is not None, "a task that extracts features needs a store"
        device = self.context.device.type
        key = entry_key(self.fingerprint, self.kind, f"{self.context.eval_precision} on {device}", contents)
        about = {"backbone": self.backbone.spec.name, "images": name, "rows": len(contents)}
        return Entry.open(self.context.features, key, about)

    def _fill(self, entry: Entry, needed: NDArray[Any], images: "Pixels", label: str) -> None:
        """Make the shards of missing rows; ranks share them."""
        ranks = self.context.ranks
        size = min(SHARD_ROWS, -(-len(needed) // ranks.world))
        while len(missing := np.unique(np.concatenate(gather_objects(entry.missing(needed))))):
            # the same ones in every process that needs these rows, whatever it finds missing
            shards = [np.intersect1d(needed[start : start + size], missing) for start in range(0, len(needed), size)]
            mine = [shard for shard in shards if len(shard)][ranks.rank :: ranks.world]
            first = os.getpid() % max(len(mine), 1)  # another run begins elsewhere
            self._make(entry, mine[first:] + mine[:first], images, label)

    @torch.inference_mode()
    def _make(self, entry: Entry, shards: list[NDArray[Any]], images: "Pixels", label: str) -> None:
        """Compute the shards that no other process has made meanwhile."""
        context, encode = self.context, encoder(self.backbone, self.kind.block)
        begun: deque[NDArray[Any]] = deque()

        def chunks() -> Iterator[list[int]]:
            for rows in shards:
                if not entry.has(rows):
                    begun.append(rows)
                    for start in range(0, len(rows), self.batch_size):
                        yield rows[start : start + self.batch_size].tolist()

        bar: tqdm[Any] = context.bar([], label, total=sum(map(len, shards)))
        batches, start = [], time.monotonic()
        try:
            for pixels in load_batches(images, chunks(), context):
                context.check_stop()
                with context.scoring():
                    batches.append(encode(pixels.to(context.device, non_blocking=True)).float().cpu())
                bar.update(len(pixels))
                if sum(map(len, batches)) == len(begun[0]):
                    rows = begun.popleft()
                    took, start = time.monotonic() - start, time.monotonic()
                    images.check_unchanged(rows)
                    entry.write(rows, torch.cat(batches).numpy(), took)
                    self.computed += len(rows)
                    batches = []
        except Exception:
            context.check_stop()  # a signal to the whole process group also ends the loader's workers
            raise
        finally:
            bar.close()


def entry_key(fingerprint: str, kind: Features, precision: str, contents: Sequence[bytes]) -> dict[str, Any]:
    """Return the key of an entry: every value that determines its features.

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


class Pixels(Dataset[Tensor]):
    """Image of each row, uint8 [size, size, C]: a fourth of the bytes of floats on the way to the network."""

    def __init__(self, split: Split, image_of: dict[int, int], steps: Sequence[Step]) -> None:
        self.split, self.image_of, self.steps = split, image_of, steps
        self.read = split.reader(isinstance(steps[0], FastView))

    def __getitem__(self, row: int) -> Tensor:
        """Return the image of a row. Raises UserError when it cannot be read."""
        return to_pixels(apply_steps(self.steps, self.read(self.image_of[row]))).permute(1, 2, 0)

    def check_unchanged(self, rows: NDArray[Any]) -> None:
        """Raise Replaced for an image of these rows whose file has changed: features are kept under old contents."""
        self.split.check_unchanged([self.image_of[row] for row in rows.tolist()])


def encoder(backbone: Backbone, block: int | None) -> Callable[[Tensor], Tensor]:
    """Return a function from images [B, H, W, C] to features [B, F]; called in the precision of scoring.

    Tokens of a block are normalised and pooled as the model does at its end; in a model that is not a plain vision
    transformer, features are the mean over the block's map.
    """
    model = backbone.model

    def encode(pixels: Tensor) -> Tensor:
        if pixels.device.type == "cpu" and len(pixels) > CPU_BATCH:
            return torch.cat([encode(chunk) for chunk in pixels.split(CPU_BATCH)])
        images = pixels.permute(0, 3, 1, 2)
        if block is None:
            return backbone.pooled(images)
        if isinstance(model, VisionTransformer):
            entries = backbone.tokens(images, norm=True)[2:]
            return model.forward_head(entries[block], pre_logits=True)
        return backbone.maps(images, [block])[0].mean((2, 3))

    return encode
