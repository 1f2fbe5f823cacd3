"""Imports of users' files, and of those that they import: of what the files hold when their digest is taken.

Python takes compiled code for that of a file whose size and second of change are the same, and keeps what it has
imported. A file that was edited within a second, or while a notebook goes on, would act as it did before.
"""

import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from backbones.errors import Replaced
from backbones.runtime.user_faults import MODULES
from backbones.runtime.user_imports import imported_files

_INSTALLED = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_contents: dict[str, str] = {}
"""The sha256 (hex) of each user's file that may be imported, when it was last asked for."""
_imported: dict[str, str] = {}
"""The sha256 (hex) of what was imported last of each file."""
_known: set[str] = set()
"""What `remember` was given in this process."""


def file_shas(path: Path) -> dict[Path, str]:
    """Return the sha256 (hex) of a user's file, first, and of those that it imports; see `imported_files`."""
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, *imported_files(path))}


def joint_digest(shas: Mapping[Path, str]) -> str:
    """Return the digest of a user's file and of those that it imports, from what `file_shas` returned."""
    own, *others = shas.items()
    named = sorted(f"{file.name} {sha}" for file, sha in others)
    return hashlib.sha256("\n".join([own[1], *named]).encode()).hexdigest() if named else own[1]


def expect(shas: Mapping[Path, str]) -> None:
    """Let what these files import, at once or later, be what their digests, from `file_shas`, were taken of."""
    _contents.update({str(file.resolve()): sha for file, sha in shas.items()})
    _forget_changed({str(file.resolve()) for file in shas})


def execute(name: str, path: Path, shas: Mapping[Path, str]) -> ModuleType:
    """Import a file as a module of this name.

    Args:
        shas: what `file_shas` returned for it.

    Raises:
        Replaced: the file, or one that it imports, is another by now.
        Exception: whatever its code raises.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    expect(shas)
    _imported.pop(str(path.resolve()), None)
    loader = _Loader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up by name
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def remember(path: Path, digest: str) -> None:
    """Keep that the user has named a file, with what it and its imports hold, for code to run; see `is_known`.

    Where it cannot be written, it is kept for this process alone.
    """
    key = _key(path, digest)
    _known.add(key)
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home folder
        folder = _named_code()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / key).touch()


def is_known(path: Path, digest: str) -> bool:
    """Return whether the user has named this file, with this joint digest, before, in any process."""
    key = _key(path, digest)
    with suppress(OSError, RuntimeError):
        return key in _known or (_named_code() / key).exists()
    return False


def _key(path: Path, digest: str) -> str:
    return hashlib.sha256(f"{path.resolve()} {digest}".encode(errors="surrogateescape")).hexdigest()


def _named_code() -> Path:
    """Return the folder with an empty file for each file of code that the user has named; no cache of others'."""
    named = os.environ.get("XDG_STATE_HOME")
    return (Path(named) if named else Path.home() / ".local" / "state") / "vit-transfer" / "named-code"


def _forget_changed(files: Collection[str]) -> None:
    """Let modules of these files be imported anew if one of them has changed since; they may import each other."""
    modules = {}
    for name, module in list(sys.modules.items()) if files else ():
        file = getattr(module, "__file__", None)
        # those in `MODULES` are named by their digests
        if isinstance(file, str) and (place := _place(file)) in files and not name.startswith(MODULES):
            modules[name] = place
    # what something else has imported before is taken for what the file holds now
    changed = [name for name, file in modules.items() if _imported.setdefault(file, _contents[file]) != _contents[file]]
    for name, file in modules.items() if changed else ():
        del sys.modules[name]
        _imported.pop(file, None)


@functools.cache  # all of a program's modules are asked for at each file of a user
def _place(file: str) -> str:
    """Return a module's file without symbolic links, as they were when it was first seen; "" for an installed one."""
    return "" if file.startswith(_INSTALLED) else str(Path(file).resolve())


class _Loader(SourceFileLoader):
    """Compiles what a file holds, and checks that it is what its digest was taken of."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        content, file = self.get_data(path), str(Path(path).resolve())
        sha = hashlib.sha256(content).hexdigest()
        reloaded = file in _imported  # by a notebook, which goes on with what the file holds now
        if _contents.get(file) != sha and not reloaded:
            raise Replaced(path)
        _imported[file] = sha
        code: CodeType = self.source_to_code(content, path)
        return code


class _Finder(MetaPathFinder):
    """Finds the files that users' files import where Python finds them, for `_Loader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target) if _contents else None
        if found is None or not found.origin or str(Path(found.origin).resolve()) not in _contents:
            return None
        found.loader = _Loader(fullname, found.origin)
        return found


_finder = _Finder()
