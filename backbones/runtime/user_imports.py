"""The files of a user that a user's file imports, read from its text. Importing this runs nothing of the user's."""

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

OWN = ("transfer", "backbones", "tasks", "configs", "tests")
"""Packages of the suite, which lie in the working directory of a checkout."""


def imported_files(file: Path) -> list[Path]:
    """Return the Python files that a file imports, directly or not, from its folder or the working directory.

    Modules that are installed, or found in other ways, are not among them.

    Returns:
        Absolute paths, sorted, without the file itself.
    """
    first = file.resolve()
    known, waiting = {first}, [first]
    while waiting:
        path = waiting.pop()
        for name in _imported_names(path.read_bytes()):
            for found in _files_of(name, (path.parent, first.parent, Path.cwd())):
                if found not in known:
                    known.add(found)
                    waiting.append(found)
    return sorted(known - {first})


def or_its_imports(file: Path) -> str:
    """Return the files that count with a user's file, for a sentence about it: " or what it imports (a.py, b.py)"."""
    others = imported_files(file) if file.suffix == ".py" and file.is_file() else []
    return f" or what it imports ({', '.join(other.name for other in others)})" if others else ""


@lru_cache
def _imported_names(content: bytes) -> list[str]:
    """Return the dotted names that a file of this content imports; empty if it is not Python."""
    names: list[str] = []
    try:
        tree = ast.parse(content)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return names  # what runs it says what is wrong with it
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names += [module] * bool(module) + [f"{module}.{alias.name}".lstrip(".") for alias in node.names]
    return names


def _files_of(name: str, folders: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files that importing a dotted name reads, in the first folder that has it."""
    parts = name.split(".")
    if parts[0] in OWN or not all(part.isidentifier() for part in parts):
        return
    for folder in folders:
        places = [folder.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
        paths = [path for place in places for path in (place / "__init__.py", place.with_name(f"{place.name}.py"))]
        # folders need no __init__.py to be imported from
        if found := [path.resolve() for path in paths if path.is_file()]:
            yield from found
            return
