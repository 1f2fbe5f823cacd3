"""Imports of users' files, and of those that they import: of what the files hold when their digest is taken.

Python keeps what it has imported, so a file that was edited while a notebook is running would act as it did before.
"""

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from transfer.core.errors import Replaced

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


MODULES = "_user_part_"
"""Beginning of the names of the modules that `transfer.core.user_code` imports from users' files."""
_imported: dict[Path, str] = {}
"""The sha256 (hex) of what was imported last of each file that a user's file imports."""
_known: set[str] = set()
"""What `remember` was given in this process."""
_contents: dict[str, dict[Path, bytes]] = {}
"""What `contents` returned for each joint digest that was imported in this process."""


def file_shas(path: Path) -> dict[Path, str]:
    """Return the sha256 (hex) of a user's file, first, and of those that it imports; see `imported_files`."""
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, *imported_files(path))}


def joint_digest(shas: Mapping[Path, str]) -> str:
    """Return the digest of a user's file and of those that it imports, from what `file_shas` returned."""
    own, *others = shas.items()
    named = sorted(f"{file.name} {sha}" for file, sha in others)
    return hashlib.sha256("\n".join([own[1], *named]).encode()).hexdigest() if named else own[1]


def contents(path: Path, digest: str = "") -> dict[Path, bytes]:
    """Return the content of a user's file, first, and of those that it imports, by paths relative to the folder that
    they are imported from; as they were when this joint digest was imported, if it was.
    """
    return _contents.get(digest) or {_relative(file, path): file.read_bytes() for file in file_shas(path)}


def _relative(file: Path, first: Path) -> Path:
    folders = (first.resolve().parent, Path.cwd())
    return next((file.relative_to(folder) for folder in folders if folder in file.parents), Path(file.name))


def execute(name: str, path: Path, shas: Mapping[Path, str]) -> ModuleType:
    """Import a file as a module of this name. Its own folder is searched first for what it imports.

    Args:
        shas: what `file_shas` returned for it.

    Raises:
        Replaced: the file, or one that it imports, is another by now.
        Exception: whatever its code raises.
    """
    forget_changed(shas, path)
    _contents[joint_digest(shas)] = contents(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by name
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
        if file_shas(path) != shas:
            raise Replaced(path)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        with suppress(ValueError):  # the file may have removed it
            sys.path.remove(folder)
    return module


def forget_changed(shas: Mapping[Path, str], executed: Path | None = None) -> None:
    """Let the files be imported again if one of them has changed since it was imported; they may import each other.

    Modules of other folders that have the names of what a file imports are forgotten, too, before it is `executed`.
    """
    modules: dict[str, Path] = {}
    names = {file.name for file in shas}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.basename(file) in names and not name.startswith(MODULES):  # noqa: PTH119
            modules[name] = Path(file).resolve()
    changed = any(_imported.get(file, shas[file]) != shas[file] for file in modules.values() if file in shas)
    imports = [_relative(file, executed) for file in shas if file != executed] if executed else []
    wanted = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in imports}
    for name, file in modules.items():
        if changed if file in shas else name in wanted:
            del sys.modules[name]
    for file in shas:  # compiled code counts as that of a file of the same size and second
        with suppress(OSError):
            Path(importlib.util.cache_from_source(str(file))).unlink()
    _imported.update(shas)


def remember(digest: str) -> None:
    """Record that the user has named a file with this joint digest, wherever it is, for code to run; see `is_known`.

    Where it cannot be written, it is kept for this process alone.
    """
    _known.add(digest)
    with suppress(OSError, RuntimeError):  # RuntimeError: the home folder is missing
        folder = _named_code()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / digest).touch()


def is_known(digest: str) -> bool:
    """Return whether the user has named a file with this joint digest before, in any process."""
    with suppress(OSError, RuntimeError):
        return digest in _known or (_named_code() / digest).exists()
    return False


def _named_code() -> Path:
    """Return the folder with an empty file for each digest of code that the user has named."""
    named = os.environ.get("XDG_STATE_HOME")
    return (Path(named) if named else Path.home() / ".local" / "state") / "vit-transfer" / "named-code"
