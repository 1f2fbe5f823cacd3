"""What belongs to a user's file: the files that it imports, their joint digest, and what Python has imported of them.

Python keeps what it has imported, so a file that was edited while a notebook is running would act as it did before.
"""

import ast
import hashlib
import importlib.util
import os
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

MODULES = "_user_part_"
"""Beginning of the names of the modules that are imported from users' files."""
OWN = ("transfer", "backbones", "tasks", "configs", "tests")
"""Packages of the suite, which lie in the working directory of a checkout."""
_imported: dict[str, bytes] = {}
"""The content that was imported last under the name of a module that users' files import."""
_named: set[str] = set()
"""The digests that `remember` was given in this process."""


def file_digest(path: Path) -> str:
    """Return the digest of a user's file and of those that it imports; see `digest`."""
    return joint_digest(contents_of(path))


def joint_digest(contents: dict[Path, bytes]) -> str:
    own, *others = ((file.name, hashlib.sha256(content).hexdigest()) for file, content in contents.items())
    named = sorted(f"{name} {sha}" for name, sha in others)
    return hashlib.sha256("\n".join([own[1], *named]).encode()).hexdigest() if named else own[1]


def contents_of(path: Path) -> dict[Path, bytes]:
    """Return the contents of a user's file, first, and of those that it imports, by their paths relative to the folder
    that they are imported from.
    """
    folders = (path.resolve().parent, Path.cwd())
    relative = {
        next((file.relative_to(folder) for folder in folders if folder in file.parents), Path(file.name)): file
        for file in (path.resolve(), *imported_files(path))
    }
    return {name: file.read_bytes() for name, file in relative.items()}


def imported_files(file: Path) -> list[Path]:
    """Return the Python files that a file imports, directly or not, from its folder or the working directory, as
    absolute paths, sorted, without the file itself. Modules that are found in other ways are not among them.
    """
    first = file.resolve()
    known, waiting = {first}, [first]
    while waiting:
        path = waiting.pop()
        for name in _imported_names(path.read_bytes()):
            found = _files_of(name, (path.parent, first.parent, Path.cwd())) - known
            known |= found
            waiting += found
    return sorted(known - {first})


def or_its_imports(file: Path) -> str:
    """Return the files that count with a user's file, for a sentence about it: " or what it imports (a.py, b.py)"."""
    others = imported_files(file) if file.suffix == ".py" and file.is_file() else []
    return f" or what it imports ({', '.join(other.name for other in others)})" if others else ""


@lru_cache
def _imported_names(content: bytes) -> list[str]:
    """Return the dotted names that a file of this content imports; empty if it is not Python."""
    try:
        nodes = list(ast.walk(ast.parse(content)))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []  # what runs it says what is wrong with it
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names]
    return names


def _files_of(name: str, folders: tuple[Path, ...]) -> set[Path]:
    """Return the files that importing a dotted name reads, in the first folder that has it."""
    parts = name.split(".")
    for folder in folders if parts[0] not in OWN else ():
        places = [folder.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
        paths = [path for place in places for path in (place / "__init__.py", place.parent / f"{place.name}.py")]
        # folders need no __init__.py to be imported from
        if found := {path.resolve() for path in paths if path.is_file()}:
            return found
    return set()


def forget_changed(contents: dict[Path, bytes], path: Path) -> None:
    """Let Python import again what a user's file imports if any of it has another content than what was imported."""
    imports = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): file for file in [*contents][1:]}
    changed = False
    for name, file in imports.items():
        known: Any = getattr(sys.modules.get(name), "__file__", None)
        with suppress(OSError):
            changed |= bool(known) and _imported.get(name, Path(known).read_bytes()) != contents[file]
    for name, file in imports.items():
        if changed:
            sys.modules.pop(name, None)
        _imported[name] = contents[file]
    for file in (path, *imported_files(path)):  # compiled code counts as that of a file of the same size and second
        with suppress(OSError):
            Path(importlib.util.cache_from_source(str(file))).unlink()


def named_code() -> Path:
    """Return the folder with an empty file for each digest of code that the user has named, wherever the file lies."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111
    return Path(state) / "vit-transfer" / "named-code"


def remember(digest: str) -> None:
    """Record that the user has named code of this digest; where it cannot be written, for this process alone."""
    _named.add(digest)
    with suppress(OSError):
        named_code().mkdir(parents=True, exist_ok=True)
        (named_code() / digest).touch()


def is_known(digest: str) -> bool:
    """Return whether the user has named code of this digest before, in any process."""
    return digest in _named or (named_code() / digest).exists()
