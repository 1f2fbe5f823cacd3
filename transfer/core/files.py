"""Files that are whole or absent, and JSON that others may have written."""

import codecs
import contextlib
import csv
import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from transfer.core.errors import MissingInput, UserError, visible_lines

if TYPE_CHECKING:
    from numpy.typing import NDArray


ROOT = Path(__file__).resolve().parents[2]
"""Folder of the packages `transfer`, `backbones`, `tasks` and `configs`."""

_SCRAP = re.compile(r"\..+(\.\d+|-[a-z0-9_]{8})\.tmp|\..+\.\d+\.old|\.probe\.\d+")
"""Names of what takes its own name once it is whole, and of what it replaces."""


def read_lines(path: Path) -> list[str]:
    """Return the lines of a user's text file that are not blank; see `numbered_lines`."""
    return [*numbered_lines(path).values()]


def numbered_lines(path: Path) -> dict[int, str]:
    """Return the lines of a user's text file that are not blank by their number, from 1, without spaces at their ends.

    Raises:
        UserError: it cannot be read, or decoded; see `decoded`.
    """
    try:
        text = decoded(path)
    except OSError as error:
        raise MissingInput(f"{path}: cannot be read as a list ({error.strerror})") from None
    return {number: line for number, line in enumerate(map(str.rstrip, text.splitlines()), start=1) if line}


def decoded(path: Path) -> str:
    """Return a user's text file, in UTF-8, with or without the mark that Windows puts before it, or in UTF-16 with its
    mark.

    Raises:
        OSError: it cannot be read.
        UserError: it is in another encoding.
    """
    content = path.read_bytes()
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    wrong = -1 if wide else content.find(0)  # as in UTF-16 without its mark
    try:
        text = content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong >= 0:
        line = content.count(b"\n", 0, wrong) + 1
        raise UserError(f"{path}:{line}: neither UTF-8 nor UTF-16 with a byte order mark; save the file as UTF-8")
    return text


def with_home(text: str) -> str:
    """Return a path with `~` and `$NAME` replaced, also behind a flag, as in `--out=~/runs`; other texts unchanged."""
    flag, path = re.fullmatch(r"(--[\w.-]+=)?(.*)", text, re.DOTALL).groups("")  # type: ignore[union-attr]
    return flag + os.path.expanduser(os.path.expandvars(path)) if path.startswith(("~", "$")) else text  # noqa: PTH111


def listed_path(folder: Path | str, name: str) -> str:
    """Return the path of a file below a folder, or an absolute path, as a list names it, as the disk does.

    Backslashes become slashes. Without such an entry, its accents are taken as letters of their own, or as marks
    behind their letters (Unicode's NFC and NFD; macOS writes the latter). A file that is missing keeps its name.
    """
    if name.isascii() and "\\" not in name:
        return name
    folder, parts = "" if name.startswith("/") else folder, list[str]()
    for part in (name if os.path.lexists(f"{folder}/{name}") else name.replace("\\", "/")).split("/"):
        forms = (part, *(unicodedata.normalize(form, part) for form in ("NFC", "NFD")))
        parts.append(next((form for form in forms if os.path.lexists("/".join([str(folder), *parts, form]))), part))
    return "/".join(parts)


def write_atomic(path: Path, content: bytes, *, flag: str = "--out") -> None:
    """Write a file by way of a neighbour and a rename: readers, and a power cut, find the old file or the new one.

    Args:
        flag: the option that names its folder, for messages.

    Raises:
        UserError: the disk is full or not writable; the old file is as it was.
    """
    with atomic_replacement(path, flag) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def atomic_replacement(path: Path, flag: str = "--out", *, keep: Path | None = None) -> Iterator[Path]:
    """Give a temporary neighbour of a file, which replaces it if the block ends well and is removed if not.

    Args:
        path: the file.
        flag: see `write_atomic`.
        keep: where the old file is kept; there is a moment in which it has this name alone.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with writing(path, flag):
            yield temporary
            _flush_to_disk(temporary)
            if keep is not None and path.exists():
                path.replace(keep)
            temporary.replace(path)
            _flush_to_disk(path.parent)
    finally:
        with contextlib.suppress(OSError):  # a disk that cannot be written keeps nothing to remove either
            temporary.unlink(missing_ok=True)


def write_arrays(path: Path, arrays: "Mapping[str, NDArray[Any]]", flag: str = "--out") -> None:
    """Write arrays to a compressed .npz file that loads without pickle; it is whole or absent; see `write_atomic`.

    Raises:
        UserError: it cannot be written.
        TypeError: an array of Python objects, which would be pickled.
    """
    import numpy as np

    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise TypeError(f"{path.name}: {name} is an array of Python objects")
    with atomic_replacement(path, flag) as temporary, temporary.open("wb") as file:
        # numpy 1.26 would take `allow_pickle=False` for one more array
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


@contextlib.contextmanager
def folder_replacement(target: Path) -> Iterator[Path]:
    """Give an empty folder, which takes the place of `target` if the block ends well: a power cut leaves one of them,
    whole. The target is absent for a moment, its content kept beside it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(".tmp", f".{target.name}-", target.parent, True) as scratch:
        new, old = Path(scratch, "new"), target.with_name(f".{target.name}.{os.getpid()}.old")
        new.mkdir()
        yield new
        flush_folder(new)
        if target.exists():
            target.rename(old)
        new.rename(target)
        remove(old)
        _flush_to_disk(target.parent)


def flush_folder(folder: Path) -> None:
    """Wait until a folder and all that is in it have reached the disk, which comes before it gets its name."""
    for path in sorted(folder.rglob("*"), reverse=True):
        _flush_to_disk(path)
    _flush_to_disk(folder)


def scraps_in(folder: Path) -> list[Path]:
    """Return what a process left in a folder that was killed while it wrote: files and folders, sorted.

    A replaced folder whose successor is absent is none: it is the only copy.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        return []
    scraps = [name for name in names if _SCRAP.fullmatch(name)]
    replaced = [name for name in scraps if name.endswith(".old")]
    only_copies = {name for name in replaced if name[1:].rsplit(".", 2)[0] not in names}
    return [folder / name for name in scraps if name not in only_copies]


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content; one that is gone already is not an error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def check_writable(folder: Path, flag: str) -> None:
    """Make the folder that `flag` names and check that it can be written. Raises UserError when it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{flag} {folder}: cannot be written ({error.strerror}); choose another folder") from None


def lock(file: IO[Any], path: Path, *, flag: str = "--out", wait: bool = False) -> bool:
    """Lock an open file for this process alone, until it is closed; return False when another process holds it.

    Args:
        file: opened for writing. path: its path, and flag: the option that names its folder, for errors.
        wait: until the other process is done.

    Raises:
        UserError: the file system keeps no locks.
    """
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES) and not wait:
            return False
        fault = f"cannot be locked ({error.strerror}): this file system keeps no locks"
        raise UserError(f"{path}: {fault}; choose another folder with {flag}") from None
    return True


@contextlib.contextmanager
def writing(path: Path, flag: str = "--out") -> Iterator[None]:
    """Raise UserError for a file that cannot be written inside; `flag` names its folder."""
    try:
        yield
    except OSError as error:
        # of a whole folder: a list of (source, target, reason)
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror or error
        hint = f"free some space or choose another folder with {flag}, then rerun the command"
        hint += ": it resumes from the last checkpoint" if flag == "--out" else "; files already written are kept"
        fix = "choose another file with --output" if flag == "--output" else hint
        raise UserError(f"{path}: cannot be written ({reason}); {fix}") from error


def _flush_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    """Return the sha256 (hex) of a file's content. Raises OSError that names the file."""
    with path.open("rb") as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:  # of reading, which does not say of what
            raise OSError(error.errno, error.strerror, str(path)) from error


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as comma-separated values, without the last line's end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().rstrip("\n")


def rendered(template: Path, shown: Callable[[str], str] = visible_lines, **content: Any) -> str:
    """Return a template of jinja2 with its content, whose texts are escaped if it is HTML.

    Args:
        template: the file.
        shown: makes a text harmless; by default control characters are shown.
        content: by names in the template; `Markup` is taken as it is.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        autoescape=template.suffix == ".html",
        finalize=lambda value: value if isinstance(value, Markup) else shown(str(value)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template(template.name).render(content)
