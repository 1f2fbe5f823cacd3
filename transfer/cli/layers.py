"""Lays the values of YAML files and the flags over each other, and checks the result. Imports no torch."""

import copy
import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from transfer.cli.help import print_help
from transfer.core.errors import (
    UsageError,
    UserError,
    did_you_mean,
    errors_in,
    errors_naming,
    kept,
    reject,
)
from transfer.core.options import CommandLine, Files, noted
from transfer.core.settings import CONFIGS, as_flags, config_names, flat_schema, parse, read_yaml


def flag_values(argv: list[str], flag: str) -> list[str]:
    """Return the values of a flag, written as `--flag A B` or `--flag=A`, in their order."""
    values: list[str] = []
    for position, argument in enumerate(argv):
        if argument.startswith(f"{flag}="):
            values.append(argument.partition("=")[2])
        elif argument == flag:
            for value in argv[position + 1 :]:
                if value.startswith("--"):
                    break
                values.append(value)
    return values


def names_of_flags(argv: list[str]) -> tuple[str, ...]:
    """Return the names of the options that flags set; `--no-NAME` gives NAME with and without its prefix."""
    flags = (argument.partition("=")[0].removeprefix("--") for argument in argv if argument.startswith("--"))
    names = (flag.replace("-", "_") for flag in flags)
    return tuple(dict.fromkeys(form for name in names for form in (name, name.removeprefix("no_"))))


def layer_values(path: Path) -> dict[str, Any]:
    """Return the values in a YAML file; none for the Python file of a user's task. Raises the errors of `read_yaml`."""
    return {} if path.suffix == ".py" else read_yaml(path)


def config_files(argv: list[str]) -> list[Path]:
    """Return the YAML files of `--config`: a user's own, or those of configs/schedules by name. Raises UsageError."""
    return [_config_file(name) for name in flag_values(argv, "--config")]


def _config_file(name: str) -> Path:
    path = Path(name)
    if path.suffix or path.exists():
        return path
    shipped = config_names("schedules")
    if name not in shipped:
        known = f"{did_you_mean(name, shipped)} (schedules: {', '.join(shipped)})"
        raise UsageError(f"--config {name}: file or schedule not found{known}")
    return CONFIGS / "schedules" / f"{name}.yaml"


def check_keys(layer: Path, content: Mapping[str, Any], groups: Iterable[type[Any]]) -> None:
    """Check that each key of a YAML file is an option. Raises UsageError with the nearest names."""
    known = [item.name for group in groups for item in fields(group)]
    for key in content:
        if key.partition(".")[0].replace("-", "_") not in known:
            raise UsageError(f"{layer}: unknown option `{key}`{did_you_mean(key, known)}")


def keyword_arguments(function: str, keywords: Mapping[str, Any], groups: Iterable[type[Any]]) -> list[str]:
    """Return the arguments that stand for keywords of the Python interface, where every boolean has its value.

    Args:
        function: the name of the function for messages, as "evaluate".
        keywords: option -> value. A single value stands for a list of one.
        groups: the dataclasses that have the options.

    Raises:
        UsageError: an unknown option, with the nearest names.
    """
    known = {item.name: noted(group, CommandLine).get(item.name) for group in groups for item in fields(group)}
    for name in keywords:
        if name not in known:
            more = f"{did_you_mean(name, known)}; see the flags of the command line, with _ for -"
            raise UsageError(f"{function}(): unknown option {name!r}{more}")
        if only := known[name]:
            raise UsageError(f"{function}(): {name} has no use in Python: {only.instead}")
    # read_command takes the word --smoke for the wish
    return as_flags({name: value for name, value in keywords.items() if not (name == "smoke" and not value)})


def with_full_paths(layer: Path, content: dict[str, Any], groups: Iterable[type[Any]]) -> dict[str, Any]:
    """Return the content of a YAML file in which files that lie beside it have their full paths. Raises UsageError."""
    may_be_files = {name for group in groups for name in noted(group, Files)}
    if "config" in content:
        raise UsageError(f"{layer}: `config` is not allowed in a YAML; use --config with both files")

    def full_path(value: Any) -> Any:
        if isinstance(value, list):
            return [full_path(item) for item in value]
        path = value.rpartition(":")[0] if isinstance(value, str) and ".py:" in value else value
        if isinstance(path, str) and path and (layer.parent / path).is_file():
            return str((layer.parent / path).resolve()) + value[len(path) :]
        return value

    return {name: full_path(value) if name in may_be_files else value for name, value in content.items()}


T = TypeVar("T")


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
    contents = [(layer, with_full_paths(layer, values, groups.values())) for layer, values in layers]
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


def without_checks(group: type[Any]) -> type[Any]:
    """Return the same dataclass without its `__post_init__`, for a layer that later layers may still make valid."""
    return type(group.__name__, (group,), {"__post_init__": lambda self: None, "__doc__": group.__doc__})


def copy_to_schema(options: Any, schema: type[T]) -> T:
    """Return the values of one schema's groups as another schema with the same fields; nothing is checked."""
    copy = object.__new__(schema)
    for field in dataclasses.fields(schema):  # type: ignore[arg-type]
        group = object.__new__(typing.get_args(field.type)[0])
        vars(group).update(vars(getattr(options, field.name)))
        setattr(copy, field.name, group)
    return copy
