"""Whether the entries of a record have the types of the fields of `Record`. Imports no torch."""

from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args, get_origin

STATUSES = ("completed", "nonfinite", "diverged", "collapsed", "at_chance")


def wrong_entries(content: Mapping[str, Any], hints: Mapping[str, Any]) -> list[str]:
    """Return the entries of a record that are missing, unknown, of another type, or without what every report reads.

    Args:
        content: the entries.
        hints: the type of each field.
    """
    wrong = sorted(content.keys() ^ hints.keys())
    wrong = wrong or [name for name, hint in hints.items() if not _is_a(content[name], hint)]
    return wrong or [name for name, is_right in _facts(content).items() if not is_right]


def _facts(content: Mapping[str, Any]) -> dict[str, bool]:
    status = content["outcome"].get("status")
    return {
        "outcome": status in STATUSES,
        "scores of a training that broke down": not content["scores"] or status == "completed",
        "dataset": isinstance(content["dataset"].get("name"), str),
        "backbone": isinstance(content["backbone"].get("name"), str),
        "run_id": content["run_id"] not in ("", "..") and "/" not in content["run_id"],
    }


def _is_a(value: Any, hint: Any) -> bool:
    """Return whether a value of JSON has a type; True and False are no numbers."""
    kind, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if kind is UnionType:
        return any(_is_a(value, one) for one in inner)
    if kind is dict:
        return isinstance(value, dict) and all(_is_a(one, inner[1]) for one in value.values())
    if kind is list:
        return isinstance(value, list) and all(_is_a(one, inner[0]) for one in value)
    kinds = (float, int) if hint is float else hint
    return isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))
