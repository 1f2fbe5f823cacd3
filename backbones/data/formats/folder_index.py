"""The index of a split in class folders: what listing its images gave, for the next process. Shapes: M images.

Listing ImageNet-1k takes every process ten seconds and half a GiB. The index holds while no class folder has changed:
names come and go only with another time of the folder.
"""

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from backbones.data.array_index import SETTLED, Index, keep_index, load_index
from backbones.data.splits.packed_names import PackedNames
from backbones.data.splits.split import FileSplit

VERSION = "class folders 2"
INDEXED = 100_000
"""Splits of fewer images are listed in a second, and get no index."""


class FolderIndex:
    """The index of one split.

    Args:
        folder: that holds the class folders.
        listed: names of the class folders.
        classes: all classes, in the order of their labels.
    """

    def __init__(self, folder: Path, listed: Sequence[str], classes: Sequence[str]) -> None:
        self.folder, self.listed = folder, listed
        names, ends = PackedNames([*listed, "", *classes]).arrays()
        self.meaning = hashlib.sha256(names.tobytes() + ends.tobytes()).hexdigest()
        self.stamp, self.newest = self._stamp()

    def load(self, name: str) -> tuple[FileSplit, int, list[str]] | None:
        """Return the split, the number of ignored files and notes; None if there is no valid index."""
        index = load_index(self.folder, VERSION, self.stamp)
        if index is None:
            return None
        names = PackedNames.from_arrays(index.arrays["names"], index.arrays["ends"])
        labels = index.arrays["labels"]
        split = FileSplit(name=name, labels=labels, names=names, sizes=np.zeros_like(labels), folder=self.folder)
        return split, index.facts["ignored"], index.facts["notes"]

    def keep(self, split: FileSplit, ignored: int, notes: list[str]) -> None:
        """Keep a large split that was listed since this was made, unless a folder has changed since or just before."""
        assert isinstance(split.names, PackedNames)
        if len(split) < INDEXED or self.newest > time.time() - SETTLED or self._stamp()[0] != self.stamp:
            return
        names, ends = split.names.arrays()
        arrays = {"names": names, "ends": ends, "labels": split.labels}
        keep_index(self.folder, VERSION, self.stamp, Index(arrays, {"ignored": ignored, "notes": notes}))

    def _stamp(self) -> tuple[str, float]:
        """Return what changes when a class folder changes, and the time of the last such change in seconds."""
        digest, newest = hashlib.sha256(self.meaning.encode()), 0.0
        for name in self.listed:
            try:
                stat = os.stat(f"{self.folder}/{name}")  # noqa: PTH116 (called 21,000 times)
            except OSError:
                continue  # listing it gives the error
            digest.update(f"{name}\0{stat.st_mtime_ns} {stat.st_ino}\n".encode())
            newest = max(newest, stat.st_mtime)
        return digest.hexdigest(), newest
