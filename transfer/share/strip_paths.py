"""Records without the paths of the machine that they come from. Paths are no part of a run's identity."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backbones.errors import UserError
from transfer.records.record import Record

# Options that say where things lie on one machine; the others repeat the run elsewhere.
PLACES = ("data", "out", "features", "weights_to", "config", "receipt")
_PATH = re.compile(r"(?<![\w.:/~-])(?:~[\w.-]*|\.\.?)?/(?:[^\s/'\":;,()]+/)*[^\s/'\":;,()]+")
_WHOLE = re.compile(r"(?:local-dir:)?(?:/|~|\.\.?/)")


def without_paths(record: Record) -> Record:
    """The record with each path cut to its last name: `/home/me/my_stem.py:Stem` is `my_stem.py:Stem`.

    Options that name a place alone (`PLACES`) are dropped. The sha256 of users' files stays.

    Raises:
        UserError: the identity itself names a path, so that it could not be verified any more.
    """
    if paths := found_in(record.identity_content):
        raise UserError(f"{record.run_id}: its identity names {paths[0]}; it cannot be shared without that path")
    values = asdict(record) | {"identity_content": {}, "files": {}}
    return Record(**(portable(values) | {"identity_content": record.identity_content, "files": record.files}))


def portable(content: dict[str, Any]) -> dict[str, Any]:
    """The same for other descriptions of a run, whose `options` and `backbone` are flat."""
    options, backbone = content.get("options", {}), content.get("backbone", {})
    kept = {name: value for name, value in options.items() if name not in PLACES}
    short = {"options": short_values(kept), "backbone": short_values(backbone)}
    known = _known(options) | _known(backbone)
    return _texts(content | {name: value for name, value in short.items() if name in content}, known)


def short_values(options: dict[str, Any]) -> dict[str, Any]:
    """Options whose values, where they are paths as a whole (spaces and all), are cut to their last names."""
    return {
        name: [_short(item) for item in value] if isinstance(value, list) else _short(value)
        for name, value in options.items()
    }


def found_in(value: Any) -> list[str]:
    """The paths in nested values."""
    if isinstance(value, dict):
        return [path for item in value.values() for path in found_in(item)]
    if isinstance(value, list | tuple):
        return [path for item in value for path in found_in(item)]
    return _PATH.findall(value) if isinstance(value, str) else []


def _short(value: Any) -> Any:
    if not isinstance(value, str) or not _WHOLE.match(value):
        return value
    path, colon, name = value.rpartition(":") if ".py:" in value else (value, "", "")
    return Path(path).name + colon + name


def _known(options: dict[str, Any]) -> dict[str, str]:
    """Paths that may stand within a text, and what takes their place. No pattern can see those with spaces."""
    values = [item for value in options.values() for item in (value if isinstance(value, list) else [value])]
    named = [value for value in values if isinstance(value, str) and _WHOLE.match(value) and len(value) > 1]
    here = {str(Path.cwd()): ".", str(Path.home()): "~"}
    return {value.removeprefix("local-dir:"): _short(value) for value in named} | here


def _texts(value: Any, known: dict[str, str]) -> Any:
    """Nested values whose texts have no paths."""
    if isinstance(value, dict):
        return {name: _texts(item, known) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_texts(item, known) for item in value]
    if not isinstance(value, str):
        return value
    for path in sorted(known, key=len, reverse=True):
        value = value.replace(path + "/", known[path] + "/").replace(path, known[path])
    return _PATH.sub(lambda found: Path(found.group()).name, value)
