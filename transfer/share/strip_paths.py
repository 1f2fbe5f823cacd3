"""Removes the paths of this machine from records. Paths are no part of a run's identity."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backbones.errors import UserError
from transfer.records.record import Record

# Options that name places on one machine; the other options repeat the run elsewhere.
PLACES = ("data", "out", "feature_cache", "export_dir", "config", "result_file")
_PATH = re.compile(r"(?<![\w.:/~-])(?:~[\w.-]*|\.\.?)?/(?:[^\s/'\":;,()]+/)*[^\s/'\":;,()]+")
_WHOLE = re.compile(r"(?:local-dir:)?(?:/|~|\.\.?/)")


def without_paths(record: Record) -> Record:
    """Return the record with each path cut to its last name: `/home/me/my_stem.py:Stem` becomes `my_stem.py:Stem`.

    Options that only name a place (`PLACES`) are dropped. The sha256 of users' files is kept.

    Raises:
        UserError: the identity itself names a path, and could not be verified without it.
    """
    if paths := paths_in(record.run_key_content):
        raise UserError(f"{record.run_id}: its identity names {paths[0]}; it cannot be shared without that path")
    kept = {"run_key_content": record.run_key_content, "files": record.files}
    options = {name: value for name, value in record.options.items() if name not in PLACES}
    content = asdict(record) | {"options": options} | dict.fromkeys(kept)
    return Record(**(texts_without_paths(content, known_paths(record)) | kept))


def paths_in(value: Any) -> list[str]:
    """Return the paths in nested values."""
    if isinstance(value, dict):
        return [path for item in value.values() for path in paths_in(item)]
    if isinstance(value, list | tuple):
        return [path for item in value for path in paths_in(item)]
    return _PATH.findall(value) if isinstance(value, str) else []


def known_paths(record: Record) -> dict[str, str]:
    """Return the paths that a record names and their replacements; those with spaces match no pattern."""
    files = {part: code["file"] for part, code in record.user_code.items()}
    values = [*record.options.values(), *record.backbone.values(), *files.values()]
    values = [item for value in values for item in (value if isinstance(value, list) else [value])]
    paths = [value for value in values if isinstance(value, str) and _WHOLE.match(value) and len(value) > 1]
    known = {str(Path.cwd()): ".", str(Path.home()): "~"}
    for value in paths:
        path, colon, name = value.rpartition(":") if ".py:" in value else (value, "", "")
        known[value] = Path(path).name + colon + name
    return known


def texts_without_paths(value: Any, known: dict[str, str]) -> Any:
    """Return nested values with the paths removed from their texts; `known` are those of `known_paths`."""
    if isinstance(value, dict):
        return {name: texts_without_paths(item, known) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [texts_without_paths(item, known) for item in value]
    if not isinstance(value, str):
        return value
    for path in sorted(known, key=len, reverse=True):
        value = value.replace(path + "/", known[path] + "/").replace(path, known[path])
    return _PATH.sub(lambda match: Path(match.group()).name, value)
