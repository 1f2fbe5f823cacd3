"""The seal of a packed data set: which Parquet files belong to it, with their sizes and digests, and whether all do."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from backbones.errors import UserError
from backbones.runtime.files import parse_json, write_atomic

SEAL = "pack.json"
FORM = 1


@dataclass(frozen=True)
class Shard:
    """One Parquet file."""

    rows: int
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        """Raise TypeError for entries of other types, which a seal may have that somebody edited."""
        if not (type(self.rows) is type(self.bytes) is int and isinstance(self.sha256, str)):
            raise TypeError("rows and bytes of a shard are whole numbers, its sha256 is a text")


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What is written, or being written, in a folder."""

    dataset: str
    """Name of the data set that is packed."""
    source_digest: str
    """Digest of its images, see `ClassificationData.digest`."""
    shorter_side: int | None
    """Pixels to which larger images were resized; None: the files as they were."""
    shard_mib: int
    """Size of a shard in MiB, of the images as they were."""
    shards: dict[str, Shard] = field(default_factory=dict)
    """Finished shards by their file names."""
    complete: bool = False
    """Whether no shard is missing."""

    def __post_init__(self) -> None:
        """Raise TypeError for entries of other types, as `Shard` does."""
        texts = isinstance(self.dataset, str) and isinstance(self.source_digest, str)
        numbers = type(self.shard_mib) is int and (self.shorter_side is None or type(self.shorter_side) is int)
        if not (texts and numbers and isinstance(self.complete, bool)):
            raise TypeError("an entry is of another type")

    def same_work(self, other: "Pack") -> bool:
        """Return whether both are packs of the same images made in the same way."""
        ignored = {"shards": {}, "complete": False}
        return asdict(self) | ignored == asdict(other) | ignored

    def write(self, folder: Path) -> None:
        """Write the seal into a folder. Raises UserError if it cannot be written."""
        content = json.dumps({"form": FORM, **asdict(self)}, indent=1)
        write_atomic(folder / SEAL, content.encode(), flag="--to")


def read_pack(folder: Path) -> Pack | None:
    """Return the seal of a folder; None if it has none. Raises UserError for a damaged one."""
    path = folder / SEAL
    try:
        content: dict[str, Any] = parse_json(path.read_bytes())
        if content.pop("form") != FORM:
            raise ValueError("of another version")
        shards = {name: Shard(**shard) for name, shard in content.pop("shards").items()}
        return Pack(**content, shards=shards)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); pack the data set again into an empty folder") from None


def check_pack(folder: Path) -> None:
    """Check that a folder is no half of a pack; one without a seal passes. Nothing but sizes is read of the shards.

    Raises:
        UserError: the pack is not complete, or a shard is missing or of another size.
    """
    pack = read_pack(folder)
    if pack is None:
        return
    again = f"`python -m transfer.doctor pack {pack.dataset} --to {folder}` goes on with it"
    if not pack.complete:
        raise UserError(f"{folder}: packing {pack.dataset} has not ended ({len(pack.shards)} shards so far); {again}")
    for name, shard in pack.shards.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: missing, but part of the packed data set; {again}")
        if (size := path.stat().st_size) != shard.bytes:
            raise UserError(f"{path}: has {size:,} bytes, sealed were {shard.bytes:,}; remove it: {again}")
