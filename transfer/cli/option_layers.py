"""Lays the values of YAML files and the flags over each other, and checks the result. Imports no torch."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from backbones.errors import UserError, errors_in, errors_naming, kept, reject
from backbones.settings import as_flags, copy_to_schema, flat_schema, parse, without_checks
from transfer.cli.help import print_help
from transfer.cli.yaml_layers import check_keys, with_full_paths

Groups = Mapping[str, type[Any]]
_known: dict[str, tuple[Any, dict[str, Path], list[type[Any]]]] = {}
"""What layers made before, by what they hold."""


def combined_options(
    task: str,
    program: str,
    groups: Groups,
    layers: Sequence[tuple[Path, dict[str, Any]]],
    argv: list[str],
    called: str | None,
) -> Any:
    """Return the groups of options from the layers and the flags over them.

    Values are checked together at the end, because a later layer may resolve a contradiction.

    Args:
        task: the name of the task or recipe.
        program: the command in usage texts.
        groups: the dataclasses of options by the name of their group.
        layers: files with their values; later ones win.
        argv: the flags.
        called: see `transfer.cli.command.read_command`.

    Raises:
        UsageError: a layer has a wrong key or value; the layer is named.
        SystemExit: after `--help`.
    """
    schema = _unchecked(groups)
    combined, contradictions = _combined_layers(task, program, groups, layers)
    print_help(program, groups, combined, argv)
    options = parse(schema, argv, prog=program, default=copy_to_schema(combined, schema), layer=called)
    options = copy_to_schema(options, flat_schema(**groups))
    for text in _contradictions(options):
        where = contradictions.get(text, called)
        reject(f"{where}: {text}" if where else text)
    return options


def _unchecked(groups: Groups) -> type[Any]:
    return flat_schema(**{name: without_checks(group) for name, group in groups.items()})


def _combined_layers(
    task: str, program: str, groups: Groups, layers: Sequence[tuple[Path, dict[str, Any]]]
) -> tuple[Any, dict[str, Path]]:
    """Return the options that the layers make, unchecked, and the contradictions in them, each with its layer.

    A process that checks the commands of many cells has few different layers, each of which takes a tenth of a second.
    """
    contents = [(layer, with_full_paths(layer, values)) for layer, values in layers]
    key = repr((task, program, [(name, id(group)) for name, group in groups.items()], contents))
    if key not in _known:
        schema, checked = _unchecked(groups), flat_schema(**groups)
        combined, contradictions = None, dict[str, Path]()
        for layer, content in contents:
            with errors_naming(str(layer)):
                flags = as_flags(content)
            check_keys(layer, content, groups.values())
            combined = parse(schema, flags, prog=program, default=combined, layer=str(layer))
            texts = _contradictions(copy_to_schema(combined, checked))
            contradictions = {text: contradictions.get(text, layer) for text in texts}
        _known[key] = combined, contradictions, [*groups.values()]  # kept, for another class may get a lost one's id
    return copy.deepcopy(_known[key][:2])


def _contradictions(options: Any) -> list[str]:
    """Return an error message for each contradiction between values."""
    errors: list[UserError] = []
    with errors_in(errors):
        for group in vars(options).values():
            if hasattr(group, "__post_init__"):
                with kept(), suppress(ArithmeticError, LookupError, TypeError, ValueError):
                    group.__post_init__()
    return [str(error) for error in errors]
