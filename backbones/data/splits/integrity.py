"""Every image of a data set is decoded once before it is used, so that a damaged file is named at the start."""

import hashlib
import json
import os
import stat
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
    stats: dict[str, os.stat_result] = {}
    missing = []
    for path in paths:
        try:
            stats[path] = os.stat(path)  # noqa: PTH116 (called 100,000 times)
            if not stat.S_ISREG(stats[path].st_mode):  # a pipe would be waited on for ever
                missing.append(f"{path}: not a regular file")
        except OSError as error:
            missing.append(f"{path}: {error.strerror}")
    if missing:
        raise UserError(f"{name}: {len(missing)} file(s) of the data set cannot be opened{_list_some(missing)}")
    return stats


def check_images(stats: dict[str, os.stat_result], *, name: str, skip: bool = False) -> list[str]:
    """Return the sorted paths of the files that are no images or are truncated.

    The verdict is kept in the cache folder under a key of every path and stamp, so each state of a data set is
    decoded once. Decoding runs in threads (PIL releases the interpreter's lock).

    Args:
        stats: what `stat_files` returned.
        name: the name of the data set, for messages.
        skip: return the damaged files instead of raising.

    Raises:
        UserError: there are such files, and `skip` is off.
    """
    paths = sorted(stats)
    listing = "".join(f"{path}\0{stamp_of(stats[path])}\n" for path in paths)
    bad = _find_damaged(len(paths), lambda index: _decodes(paths[index]), listing, name)
    if not skip:
        _raise_if_damaged([paths[index] for index in bad], len(paths), name)
    return [paths[index] for index in bad]


def check_split(split: Split, *, name: str, skip: bool = False) -> NDArray[Any]:
    """Return the indices [K] of the damaged images of a split, in order; see `check_images`."""
    listing = "\n".join(split.stamps(range(len(split))))
    bad = _find_damaged(len(split), lambda index: _reads(split, index), listing, name)
    if not skip:
        _raise_if_damaged([split.place(index) for index in bad], len(split), name)
    return np.array(bad, dtype=np.int64)


def _find_damaged(count: int, sound: Callable[[int], bool], listing: str, name: str) -> list[int]:
    """Return the damaged images among 0..count-1, remembered under the listing of all."""
    key = f"checked/{hashlib.sha256(listing.encode(errors='surrogateescape')).hexdigest()}.json"
    bad = _recall_damaged(key)
    if bad is None:
        with ThreadPoolExecutor(min(16, usable_cores())) as pool:
            verdicts = pool.map(sound, range(count))
            bar = tqdm(verdicts, f"checking {name}", count, unit=" images", delay=2, leave=False, disable=None)
            bad = [index for index, good in enumerate(bar) if not good]
        remember(key, json.dumps({"undecodable": bad}).encode(), what="the check of the images")
    return bad


def _decodes(path: str) -> bool:
    try:
        read_image(path)
    except UserError:
        return False
    return True


def _reads(split: Split, index: int) -> bool:
    try:
        split.decoded(index)
    except UserError:
        return False
    return True


def _raise_if_damaged(bad: Sequence[str], count: int, name: str) -> None:
    if bad:
        raise UserError(
            f"{name}: {len(bad)} of {count} images cannot be decoded{_list_some(bad)}\n"
            "restore them, or leave them out with `--skip-unreadable`"
        )


def _recall_damaged(key: str) -> list[int] | None:
    try:
        bad = parse_json(recall(key) or b"")["undecodable"]
        return [int(index) for index in bad]
    except (ValueError, KeyError, TypeError):
        return None


def _list_some(entries: Sequence[str]) -> str:
    rest = f"\n  and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
    return ":" + "".join(f"\n  {entry}" for entry in entries[:SHOWN]) + rest
