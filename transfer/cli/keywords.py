"""Keyword arguments of the Python interface as the arguments that commands read. Imports no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from transfer.core.errors import UsageError, did_you_mean
from transfer.core.settings import as_flags

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
