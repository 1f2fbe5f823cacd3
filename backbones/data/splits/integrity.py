"""Every image of a data set is decoded once before it is used, so that a damaged file is named at the start."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from backbones.data.array_index import stamp_of
from backbones.data.cache import recall, remember
from backbones.data.loading.read_image import read_image
from backbones.data.splits.split import Split
from backbones.errors import UserError
from backbones.runtime.files import parse_json
from backbones.runtime.threads import usable_cores

SHOWN = 5


def stat_files(paths: Sequence[str], *, name: str) -> dict[str, os.stat_result]:
    """Return size and time of every file. Raises UserError that names the missing ones."""
    stats, missing = {}, []
    for path in paths:
        try:
            stats[path] = os.stat(path)  # noqa: PTH116 (called 100,000 times)
        except OSError as error:
            missing.append(f"{path}: {error.strerror}")
    if missing:
        raise UserError(f"{name}: {len(missing)} file(s) of the data set cannot be opened{_list_some(missing)}")
    return stats


def check_images(stats: dict[str, os.stat_result], *, name: str, skip: bool = False) -> list[str]:
    """Return the sorted paths of the files that are no images or are truncated.

    Args:
        stats: what `stat_files` returned.
        name: the name of the data set, for messages.
        skip: return the damaged files instead of raising.

    Raises:
        UserError: there are such files, and `skip` is off.
    """
    paths = sorted(stats)
    listing = [f"{path}\0{stamp_of(stats[path])}" for path in paths]
    sound = read_verdicts(lambda index: _is_sound(read_image, paths[index]), listing, name)
    bad = [path for path, good in zip(paths, sound, strict=True) if not good]
    raise_if_damaged(bad, len(paths), name, skip=skip)
    return bad


def check_split(split: Split, *, name: str, skip: bool = False) -> NDArray[Any]:
    """Return the indices [K] of the damaged images of a split, in order; see `check_images`."""
    listing = split.stamps(range(len(split)))
    sound = read_verdicts(lambda index: _is_sound(split.decoded, index), listing, name)
    bad = [index for index, good in enumerate(sound) if not good]
    raise_if_damaged([split.place(index) for index in bad], len(split), name, skip=skip)
    return np.array(bad, dtype=np.int64)


def read_verdicts(verdict: Callable[[int], Any], listing: Sequence[str], name: str) -> list[Any]:
    """Return a plain value for each image by its index, taken in threads (PIL releases the interpreter's lock).

    They are kept in the cache folder under a key of all paths and stamps: each state of a data set is read once.

    Args:
        verdict: gives the value of an image.
        listing: path and stamp of each image.
        name: the name of the data set, for the progress bar.
    """
    digest = hashlib.sha256("\n".join(listing).encode()).hexdigest()
    key = f"checked/{digest}.json"
    try:
        kept = parse_json(recall(key) or b"")
    except ValueError:
        kept = None
    if isinstance(kept, list) and len(kept) == len(listing):
        return kept
    with ThreadPoolExecutor(min(16, usable_cores())) as pool:
        count = len(listing)
        found = pool.map(verdict, range(count))
        verdicts = list(tqdm(found, f"checking {name}", count, unit=" images", delay=2, leave=False, disable=None))
    remember(key, json.dumps(verdicts).encode(), what="the check of the images")
    return verdicts


def _is_sound(read: Callable[[Any], Any], image: Any) -> bool:
    try:
        read(image)
    except UserError:
        return False
    return True


def raise_if_damaged(bad: Sequence[str], count: int, name: str, *, skip: bool) -> None:
    """Raise UserError that names damaged images, unless there are none or they are to be skipped."""
    if bad and not skip:
        raise UserError(
            f"{name}: {len(bad)} of {count} images cannot be decoded{_list_some(bad)}\n"
            "restore them, or leave them out with `--skip-unreadable`"
        )


def _list_some(entries: Sequence[str]) -> str:
    rest = f"\n  and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
    return ":" + "".join(f"\n  {entry}" for entry in entries[:SHOWN]) + rest
