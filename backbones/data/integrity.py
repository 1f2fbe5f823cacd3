"""Every image of a data set is decoded once before it is used, so that a damaged file is named at the start."""

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from backbones.data.cache import cache_folder
from backbones.data.images import read_image
from backbones.errors import UserError
from backbones.files import write_atomic

SHOWN = 5


def stat_files(paths: Sequence[str], *, name: str) -> dict[str, os.stat_result]:
    """Size and time of every file. Raises UserError that names the missing ones."""
    found: dict[str, os.stat_result] = {}
    missing = []
    for path in paths:
        try:
            found[path] = os.stat(path)  # noqa: PTH116 (called 100,000 times)
        except OSError as error:
            missing.append(f"{path}: {error.strerror}")
    if missing:
        raise UserError(f"{name}: {len(missing)} file(s) of the data set cannot be opened{_some(missing)}")
    return found


def check_images(stats: dict[str, os.stat_result], *, name: str, skip: bool = False) -> list[str]:
    """Paths of the files that are no images or are truncated, sorted.

    The verdict is kept in the cache folder under a key of every path, size and time, so each state of a data set is
    decoded once. Decoding runs in threads (PIL releases the interpreter's lock).

    Args:
        stats: what `stat_files` returned.
        name: of the data set, for messages.
        skip: return the damaged files instead of raising.

    Raises:
        UserError: there are such files, and `skip` is off.
    """
    listing = "".join(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n" for path, stat in sorted(stats.items()))
    key = hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()
    bad = _stamped(key)
    if bad is None:
        bad = _undecodable(sorted(stats), name)
        _stamp(key, bad)
    if bad and not skip:
        raise UserError(
            f"{name}: {len(bad)} of {len(stats)} images cannot be decoded{_some(bad)}\n"
            "restore them, or leave them out with `--skip-unreadable`"
        )
    return bad


def _undecodable(paths: list[str], name: str) -> list[str]:
    threads = min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with ThreadPoolExecutor(threads) as pool:
        sound = pool.map(_decodes, paths, chunksize=64)
        verdicts = list(
            tqdm(sound, desc=f"checking {name}", total=len(paths), unit=" images", delay=2, leave=False, disable=None)
        )
    return [path for path, good in zip(paths, verdicts, strict=True) if not good]


def _decodes(path: str) -> bool:
    try:
        read_image(path)
    except UserError:
        return False
    return True


def _stamp_file(key: str) -> Path:
    return cache_folder() / "checked" / f"{key}.json"


def _stamped(key: str) -> list[str] | None:
    try:
        return json.loads(_stamp_file(key).read_text(encoding="utf-8"))["undecodable"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _stamp(key: str, bad: list[str]) -> None:
    try:
        _stamp_file(key).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(_stamp_file(key), json.dumps({"undecodable": bad}).encode())
    except (OSError, UserError) as error:
        print(f"the check of the images is not remembered: {error}", file=sys.stderr)


def _some(entries: list[str]) -> str:
    rest = f"\n  and {len(entries) - SHOWN} more" if len(entries) > SHOWN else ""
    return ":" + "".join(f"\n  {entry}" for entry in entries[:SHOWN]) + rest
