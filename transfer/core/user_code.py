"""A user's own part, `path/to/file.py:Name`: where it lies, what its contents hash to, and the object it names.

Stems, attentions, FFNs, backbones, tasks, metrics, readers of data and pretraining methods may be such parts.
A live module (`live:NAME`, see `transfer.core.live_modules`) is such a part too.

The sha256 of the file, and of the files that it imports from its folder or the working directory, is part of the key of
every run that uses it. What it imports from elsewhere, such as installed packages, is not.
Importing this module costs nothing; only `load_part` runs the user's file.
"""

import ast
import hashlib
import importlib.util
import os
import re
import shlex
import sys
import traceback
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from transfer.core import live_modules
from transfer.core.errors import UsageError, UserError, did_you_mean, first_line, unknown, unusable
from transfer.core.files import ROOT

T = TypeVar("T")
VARIED_PARTS = ("stem", "attention", "ffn")
"""Parts of a backbone that have built-in names, see `builtin_names`, and that variants differ in."""
USER_PARTS = ("arch", *VARIED_PARTS)
"""Fields of a backbone that can be a user's own part."""
_loaded: dict[str, dict[Path, bytes]] = {}
"""What `sources` returned when a user's file was last imported."""
MODULES = "_user_part_"
"""Beginning of the names of the modules that are imported from users' files."""
SUITE_PACKAGES = ("transfer", "backbones", "tasks", "configs", "tests")
"""Packages of the suite, which lie in the working directory of a checkout."""
_imported: dict[str, bytes] = {}
"""The content that was imported last under the name of a module that users' files import."""
_trusted: set[str] = set()
"""The digests that `trust` was given in this process."""
_DEFINED = re.compile(r"^(?:class|def|async def) +(\w+)|^(\w+)(?: *:[^=\n]+)? *=(?!=)", re.MULTILINE)
_TABLES = {"stem": ("stems.py", "STEMS"), "attention": ("attention.py", "ATTENTIONS"), "ffn": ("ffn.py", "FFNS")}


@lru_cache
def builtin_names(part: str) -> tuple[str, ...]:
    """Return the short names of a part ("stem", "attention", "ffn"): the keys of its table, read without importing
    torch.
    """
    if part != "attention":
        return _keys(*_TABLES[part])
    scores = _keys("kernels/functions.py", "SCORE_FUNCTIONS")
    return (*_keys(*_TABLES[part]), *scores, *(f"{h}_sum" for h in scores))


def _keys(file: str, table: str) -> tuple[str, ...]:
    """Return the keys that a table is written with."""
    for node in ast.parse((ROOT / "backbones" / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == table:
            assert isinstance(node.value, ast.Dict)
            return tuple(str(ast.literal_eval(key)) for key in node.value.keys if key is not None)
    raise LookupError(f"{file} has no annotated table {table}")


def check_name(part: str, text: str) -> None:
    """Raise UsageError, with the nearest names, unless `text` is a built-in part or a user's."""
    known = builtin_names(part)
    if text not in known and not is_user_part(text):
        raise unknown(part, text, known, "; or path/to/file.py:Name")


def is_user_part(text: str) -> bool:
    """Return True for `file.py:Name` and `live:NAME`; every other text is a built-in name (or a component string)."""
    return is_in_file(text) or live_modules.is_live(text)


def is_in_file(text: str) -> bool:
    """Return True for `file.py:Name`."""
    return ".py:" in text


def locate(text: str, folder: Path | None = None) -> str:
    """Return `file.py:Name` with the file's absolute path, searched for in `folder` (the YAML's) and the working
    directory.

    Raises:
        UsageError: the file does not exist, or its text has no such name; the message has the nearest.
    """
    if live_modules.is_live(text):
        live_modules.find(text)
        return text
    path, _, name = text.rpartition(":")
    places = [place / path for place in (folder, Path.cwd()) if place is not None]
    for place in places:
        if place.is_file():
            # `load_part` has the last word on a name that the file mentions
            if not name or not re.search(rf"\b{re.escape(name)}\b", place.read_text(errors="replace")):
                raise _not_found(place.resolve(), name)
            return f"{place.resolve()}:{name}"
    tried = " and ".join(dict.fromkeys(str(place.resolve()) for place in places))
    near = [file.name for place in places for file in place.parent.glob("*.py")]
    raise UsageError(f"'{text}': file not found: {tried}{did_you_mean(Path(path).name, near)}")


def digest(text: str) -> str:
    """Return the sha256 (hex) of the contents of the file in a located `file.py:Name`, or of a live module's source.

    Where the file imports others of the user's, it is the sha256 of the file's and theirs; see `imported_files`.
    """
    if live_modules.is_live(text):
        return live_modules.find(text).source_digest
    return file_digest(Path(_file_of(text)))


def _file_of(text: str) -> str:
    return text.rpartition(":")[0]


def sources(text: str) -> dict[Path, bytes]:
    """Return the file of a located `file.py:Name`, first, and those that it imports: their contents when they were last
    imported, by relative path. A copy of them in another folder has the same digest.
    """
    return _loaded.get(_file_of(text)) or contents_of(Path(_file_of(text)))


def allow(text: str) -> None:
    """Let exports and records import this located `file.py:Name`, and any file of the same content."""
    trust(digest(text))


def is_allowed(text: str) -> bool:
    """Return whether a located `file.py:Name` that only an export or a record names may be imported.

    It may if the user has imported or allowed a file of this content before: nothing else distinguishes the user's own
    file from an untrusted one. Live modules have been imported already.
    """
    if live_modules.is_live(text):
        return True
    named = digest(text)
    return named in _trusted or (named_code() / named).exists()


def check_allowed(text: str) -> None:
    """Raise UserError unless a record may have a part imported; see `is_allowed`."""
    if is_user_part(text) and not is_allowed(located := locate(text)):
        fix = f"read it, then use `python -m transfer.verify RUN --trust-code {shlex.quote(located)}`"
        raise UserError(f"{located}: only the record names this file, and code runs only if you name it; {fix}")


def loaded_digest(text: str) -> str:
    """Return the digest, as `digest` gave it, of what was last imported of a located `file.py:Name`; if nothing was,
    that of the file.
    """
    return digest(text) if live_modules.is_live(text) else joint_digest(sources(text))


def load_part(text: str) -> Any:
    """Return the class or function that a located `file.py:Name` names.

    Raises:
        UsageError: the file has no such name, or something else under it.
        UserError: the file is missing, or fails while it is imported; the message gives its line.
    """
    if live_modules.is_live(text):
        return live_modules.find(text).make
    part = load_object(text)
    if not callable(part):
        path, _, name = text.rpartition(":")
        raise UsageError(f"{path}: '{name}' is neither a class nor a function")
    return part


def load_object(text: str) -> Any:
    """Return whatever a located `file.py:Name` names. Raises the errors of `load_part`."""
    path, _, name = text.rpartition(":")
    module = import_file(path)
    if not hasattr(module, name):
        raise _not_found(Path(path), name)
    return getattr(module, name)


def load_instance(text: str, base: type[T], lacking: Sequence[str]) -> T:
    """Return the object of a class derived from `base` that a located `file.py:Name` names, or is the class of.

    Args:
        text: the located part.
        base: the base, as `transfer.task.Task`.
        lacking: the attributes and methods that the base leaves to derived classes.

    Raises:
        UsageError: it is something else, or lacks one of them.
        UserError: see `load_part`.
    """
    part = load_object(text)
    part = part() if isinstance(part, type) and issubclass(part, base) else part
    kind = base.__name__.lower()
    if not isinstance(part, base):
        wanted = f"an object of a class derived from {base.__module__}.{base.__name__}"
        got = f"the class {part.__name__}" if isinstance(part, type) else f"of type {type(part).__name__}"
        raise UsageError(f"{text}: a {kind} is {wanted}, and this is {got}")
    missing = [name for name in lacking if getattr(type(part), name, None) is getattr(base, name, None)]
    missing = [name for name in missing if name not in vars(part)]
    if missing:
        raise UsageError(f"{text}: the {kind} lacks {', '.join(f'`{name}`' for name in missing)}")
    return part


def check_new_name(file: str, name: Any, taken: Collection[str]) -> None:
    """Raise UsageError unless the `name` of a user's task or method fits into the name of a run and is not taken."""
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):
        raise UsageError(f"{file}: `name` is {name!r}; use a letter, then letters, digits and _")
    if name in taken:
        raise UsageError(f"{file}: `name` is {name!r}, which is a name of the suite; choose another")


def parameters(text: str) -> list[str] | None:
    """Return the parameters of the function, or of `forward` of the class, that a located `file.py:Name` names, read
    without running it; None where the file does not show them.
    """
    node = _definition(text)
    if isinstance(node, ast.ClassDef):
        node = next((item for item in node.body if getattr(item, "name", "") == "forward"), None)
    if not isinstance(node, ast.FunctionDef):
        return None
    return [parameter.arg for parameter in (*node.args.args, *node.args.kwonlyargs)]


def place(text: str) -> str:
    """Return a located `file.py:Name` with the line of its definition, where the file shows it."""
    node = _definition(text)
    return f"{text} (line {node.lineno})" if node else text


def _definition(text: str) -> ast.stmt | None:
    path, _, name = text.rpartition(":")
    try:
        body = ast.parse(Path(path).read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return None  # `load_part` says what is wrong with it
    return next((node for node in body if getattr(node, "name", "") == name), None)


def _not_found(file: Path, name: str) -> UsageError:
    names = ["".join(match) for match in _DEFINED.findall(file.read_text(errors="replace"))]
    hint = did_you_mean(name, names) or f"; it defines {', '.join(names) or 'no component'}"
    return UsageError(f"{file}: {f'{name!r} not found in this file' if name else f'use {file}:NAME'}{hint}")


def import_file(path: str) -> ModuleType:
    """Import a file as a module, again whenever its contents, or those of files that it imports, change."""
    with unusable(f"{path}: cannot be read"):
        contents = contents_of(Path(path))
    content = joint_digest(contents)
    key = f"{MODULES}{hashlib.sha256(f'{path} {content}'.encode()).hexdigest()[:16]}"
    if key not in sys.modules:
        forget_changed(contents, Path(path))
        spec = importlib.util.spec_from_file_location(key, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[key] = importlib.util.module_from_spec(spec)  # where dataclasses and pickle look a class up
        folder = str(Path(path).resolve().parent)
        sys.path.insert(0, folder)
        try:
            spec.loader.exec_module(sys.modules[key])
        except (Exception, SystemExit) as error:
            del sys.modules[key]
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
            place = f" at line {lines[-1]}" if lines else ""  # that of a SyntaxError is part of its text
            raise UserError(f"{path}: importing this file failed{place}: {first_line(error)}") from error
        finally:
            with suppress(ValueError):  # the file may have removed it
                sys.path.remove(folder)
        trust(content)
    _loaded[path] = contents
    return sys.modules[key]


def file_digest(path: Path) -> str:
    """Return the digest of a user's file and of those that it imports; see `digest`."""
    return joint_digest(contents_of(path))


def joint_digest(contents: dict[Path, bytes]) -> str:
    """Return the digest of a user's file, the first of these, and of those that it imports."""
    (_, first), *imports = ((file.name, hashlib.sha256(content).hexdigest()) for file, content in contents.items())
    lines = [first, *sorted(f"{name} {sha}" for name, sha in imports)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if imports else first


def contents_of(path: Path) -> dict[Path, bytes]:
    """Return the contents of a user's file, first, and of those that it imports, by their paths relative to the folder
    that they are imported from.
    """
    folders = (path.resolve().parent, Path.cwd())
    contents = dict[Path, bytes]()
    for file in (path.resolve(), *imported_files(path)):
        relative = (file.relative_to(folder) for folder in folders if folder in file.parents)
        contents[next(relative, Path(file.name))] = file.read_bytes()
    return contents


def imported_files(file: Path) -> list[Path]:
    """Return the Python files that a file imports, directly or not, from its folder or the working directory, as
    absolute paths, sorted, without the file itself. Modules that are found in other ways are not among them.
    """
    first = file.resolve()
    known, waiting = {first}, [first]
    while waiting:
        path = waiting.pop()
        for name in _imported_names(path.read_bytes()):
            new = _files_of(name, (path.parent, first.parent, Path.cwd())) - known
            known |= new
            waiting += new
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
    names = list[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names]
    return names


def _files_of(name: str, folders: tuple[Path, ...]) -> set[Path]:
    """Return the files that importing a dotted name reads, in the first folder that has it."""
    parts = name.split(".")
    for folder in folders if parts[0] not in SUITE_PACKAGES else ():
        places = [folder.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
        paths = [place / "__init__.py" for place in places] + [place.parent / f"{place.name}.py" for place in places]
        # folders need no __init__.py to be imported from
        if files := {path.resolve() for path in paths if path.is_file()}:
            return files
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


def trust(digest: str) -> None:
    """Record that the user has named code of this digest; where it cannot be written, for this process alone."""
    _trusted.add(digest)
    with suppress(OSError):
        named_code().mkdir(parents=True, exist_ok=True)
        (named_code() / digest).touch()
