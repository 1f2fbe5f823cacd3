"""Reads which method a pretraining recipe is for, and checks that there is one. Imports no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import backbones
from transfer.cli.command import Recipe
from transfer.core.errors import UsageError, did_you_mean
from transfer.core.settings import as_flags
from transfer.core.user_code import is_in_file, locate


def method_of(recipe: Recipe) -> str:
    """Return the task that a recipe is for: `pretrain-METHOD`, or a user's method, as `path/to/file.py:NAME`.

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
    return f"pretrain-{name}"


def method_names() -> list[str]:
    """Return the names of the pretraining methods, the folders of `backbones/pretrain/`."""
    return sorted(path.parent.name for path in Path(next(iter(backbones.__path__))).glob("pretrain/*/method.py"))


_NOT_IN_PYTHON = {
    "result_file": "the records are returned",
    "dry_run": "the command line prints the options of a run: python -m transfer.run TASK ... --dry-run",
}
"""Options of the command line without a meaning in Python, and why."""


def keyword_arguments(function: str, keywords: Mapping[str, Any], groups: Iterable[type[Any]]) -> list[str]:
    """Return the arguments for `transfer.cli.command.read_command`, where every boolean has its value.

    Args:
        function: the name of the function for messages, as "evaluate".
        keywords: option -> value. A single value stands for a list of one.
        groups: the dataclasses that have the options.

    Raises:
        UsageError: an unknown option, with the nearest names.
    """
    known = [item.name for group in groups for item in fields(group)]
    for name in keywords:
        if name in _NOT_IN_PYTHON:
            raise UsageError(f"{function}(): {name} has no use in Python: {_NOT_IN_PYTHON[name]}")
        if name not in known:
            raise UsageError(
                f"{function}(): unknown option {name!r}{did_you_mean(name, known)}; see the flags of the command line, "
                "with _ for -"
            )
    # read_command takes the word --smoke for the wish
    return as_flags({name: value for name, value in keywords.items() if not (name == "smoke" and not value)})
