"""What lies in a folder: its folders and files, without what programs leave there and links that lead back."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path

from transfer.core.errors import shortened
from transfer.core.grouped import grouped_by
from transfer.data.loading.read_image import is_image

PROGRAM_FILES = (".", "SYNOPHOTO_THUMB", "SYNOFILE_THUMB", "Thumbs.db", "desktop.ini")
PROGRAM_FOLDERS = re.compile(
    r"[.@].*|__MACOSX|#recycle|#snapshot|[$]recycle[.]bin|System Volume Information|lost[+]found|_?thumbnails", re.I
)
"""How the names of files begin, and names of folders, that systems, disk stations and programs of pictures leave."""
LINK = " -> "
"""Stands between a link that is left out and where it leads."""


def listed(folder: str | Path, most: int | None = None) -> tuple[list[str], list[str], list[str]]:
    """Return the names of folders and files in a folder, and of what is left out: links back, and what programs leave.

    Args:
        folder: it may be a link.
        most: look at no more entries.

    Raises:
        OSError: it cannot be listed.
    """
    folders: list[str] = []
    files: list[str] = []
    left: list[str] = []
    with os.scandir(folder) as entries:
        for entry in islice(entries, most):
            name = entry.name
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link to itself
                left.append(f"{name}{LINK}{os.readlink(entry.path)}")  # noqa: PTH115
                continue
            if not is_folder:
                (left if name.startswith(PROGRAM_FILES) else files).append(name)
            elif PROGRAM_FOLDERS.fullmatch(name):
                left.append(f"{name}/")
            elif entry.is_symlink() and _leads_back(entry.path):
                left.append(f"{name}{LINK}{os.readlink(entry.path)}")  # noqa: PTH115
            else:
                folders.append(name)
    return folders, files, left


def _leads_back(link: str) -> bool:
    """Return whether a link leads to a folder that it lies in, at any depth."""
    target = os.path.join(os.path.realpath(link), "")  # noqa: PTH118
    places = (os.path.join(os.path.realpath(place), "") for place in Path(link).absolute().parents)  # noqa: PTH118
    return any(place.startswith(target) for place in places)


def folders_below(folder: str | Path) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Yield a folder and each one below: "PATH/" below it, real path, names of files, and what is left out.

    Links are followed after all else, and no folder is read twice.
    """
    seen = set[str]()
    places, links = [("", os.path.realpath(folder))], list[tuple[str, str]]()
    while places or links:
        below, real = (places or links).pop()
        if real in seen:
            yield below, real, [], [f"{LINK}{real}"]
            continue
        seen.add(real)
        folders, files, left = listed(f"{folder}/{below}")
        yield below, real, files, left
        for name in sorted(folders, reverse=True):
            path = f"{real}/{name}"
            entry = f"{below}{name}/", os.path.realpath(path)
            (places if entry[1] == path else links).append(entry)


def scan_images(folder: str | Path) -> tuple[list[str], list[str], list[str]]:
    """Return the images in a folder and below it, and all else there, sorted, and the real paths of all folders.

    Raises OSError where it cannot be listed.
    """
    images: list[str] = []
    others: list[str] = []
    reals: list[str] = []
    for below, real, files, left in folders_below(folder):
        reals.append(real)
        others += [below + name for name in left]
        endings = [name[name.rfind(".") :] for name in files]
        known = {ending for ending in {*endings} if is_image(ending)}  # a call for each name would take twice as long
        images += [below + name for name, ending in zip(files, endings) if ending in known]
        others += [below + name for name, ending in zip(files, endings) if ending not in known]
    return sorted(images), sorted(others), reals


def holds_images(folder: Path) -> bool:
    """Return whether there is an image in a folder or below it."""
    return any(any(map(is_image, files)) for _, _, files, _ in folders_below(folder))


def passed_over(others: Sequence[str]) -> list[str]:
    """Return a line for each reason why entries of a folder are skipped."""
    reasons = sorted(grouped_by(others, _reason).items())
    return [f"{len(names)} skipped, {reason}: {shortened(names, 3)}" for reason, names in reasons]


def beside(folder: Path, parts: Collection[str]) -> list[str]:
    """Return a line for each reason why entries of a dataset's folder are skipped that are not its parts.

    Args:
        folder: of the dataset.
        parts: folders and files below it that are read or named otherwise; those elsewhere do not matter.
    """
    known = {Path(os.path.normpath(part)) for part in parts}
    inside = [part for part in known if part.parts[:1] not in (("..",), ("/",))]
    above = set[Path]().union(*(part.parents for part in inside))
    skipped, programs = [], []
    for place in sorted(above) if Path() not in known else ():
        folders, files, left = listed(folder / place)
        shown = "" if place == Path() else f"{place}/"
        names = sorted([*(f"{name}/" for name in folders), *files])
        skipped += [shown + name for name in names if place / name not in known | above]
        programs += [shown + name for name in sorted(left)]
    notes = [f"{len(skipped)} skipped, beside the splits: {shortened(skipped, 3)}"] if skipped else []
    return passed_over(programs) + notes


def _reason(name: str) -> str:
    last = name.rpartition("/")[2]  # nothing of a folder's
    if LINK in name:
        return "links to folders that are read already"
    return "left by programs" if not last or last.startswith(PROGRAM_FILES) else "not images"
