"""Reads which method a pretraining recipe is for, and checks that there is one. Imports no torch."""

from pathlib import Path

import backbones
from backbones.errors import UsageError, did_you_mean
from backbones.settings import read_yaml
from transfer.cli.command import Recipe


def method_of(recipe: Recipe) -> str:
    """Return the name of a recipe's method. Raises UsageError with the nearest names when there is no such method."""
    name = read_yaml(recipe.path).get("method")
    if name not in method_names():
        raise UsageError(
            f"{recipe.path}: `method` is {name!r}{did_you_mean(str(name), method_names())}: {', '.join(method_names())}"
        )
    return str(name)


def method_names() -> list[str]:
    """Return the names of the modules in `backbones/pretrain/` that define a method."""
    files = (Path(next(iter(backbones.__path__))) / "pretrain").glob("*.py")
    return sorted(path.stem for path in files if "\nMETHOD = " in path.read_text(encoding="utf-8"))
