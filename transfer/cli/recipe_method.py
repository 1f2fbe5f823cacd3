"""Reads which method a pretraining recipe is for, and checks that there is one. Imports no torch."""

from pathlib import Path

import backbones
from backbones.errors import UsageError, did_you_mean
from backbones.user_code import is_in_file, locate
from transfer.cli.command import Recipe


def method_of(recipe: Recipe) -> str:
    """Return the name of a recipe's method, or where a user's stands, as `path/to/file.py:NAME`.

    Raises:
        UsageError: unknown method; the message has the nearest names.
    """
    if is_in_file(recipe.name):
        return recipe.name
    name = recipe.values().get("method")
    if isinstance(name, str) and is_in_file(name):
        return locate(name, recipe.path.parent)
    if name not in method_names():
        known = ", ".join(method_names())
        raise UsageError(
            f"{recipe.path}: `method` is {name!r}{did_you_mean(name, method_names())}: {known}; or path/to/file.py:NAME"
        )
    return str(name)


def method_names() -> list[str]:
    """Return the names of the modules in `backbones/pretrain/` that define a method."""
    files = (Path(next(iter(backbones.__path__))) / "pretrain").glob("*.py")
    return sorted(path.stem for path in files if "\nMETHOD = " in path.read_text(encoding="utf-8"))
