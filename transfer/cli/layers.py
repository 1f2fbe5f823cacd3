"""Lays the values of YAML files and the flags over each other, and checks the result. Imports no torch."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transfer.cli.help import print_help
from transfer.core.errors import UsageError, did_you_mean, errors_in, errors_naming, kept, reject
from transfer.core.options import CommandLine, Files, noted
from transfer.core.settings import as_flags, flat_schema, parse_flags, read_yaml, shipped_path


def flag_values(argv: list[str], flag: str) -> list[str]:
    """Return the values of a flag, written as `--flag A B` or `--flag=A`, in their order."""
    values: list[str] = []
    for position, argument in enumerate(argv):
        if argument.startswith(f"{flag}="):
            values.append(argument.partition("=")[2])
        elif argument == flag:
            values += takewhile(lambda value: not value.startswith("--"), argv[position + 1 :])
    return values


def names_of_flags(argv: list[str]) -> tuple[str, ...]:
    """Return the names of the options that flags set; `--no-NAME` gives NAME with and without its prefix."""
    names: dict[str, None] = {}
    for argument in argv:
        if argument.startswith("--"):
            name = argument.partition("=")[0].removeprefix("--").replace("-", "_")
            names |= {name: None, name.removeprefix("no_"): None}
    return tuple(names)


def layer_values(path: Path) -> dict[str, Any]:
    """Return the values in a YAML file; none for the Python file of a user's task. Raises the errors of `read_yaml`."""
    return {} if path.suffix == ".py" else read_yaml(path)


def config_files(argv: list[str]) -> list[Path]:
    """Return the YAML files of `--config`: a user's own, or those of configs/schedules by name. Raises UsageError."""
    named = flag_values(argv, "--config")
    return [
        Path(name)
        if Path(name).suffix or Path(name).exists()
        else shipped_path("schedules", "schedule", name, "; --config takes a YAML file, too")
        for name in named
    ]


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


Layer = tuple[Path, dict[str, Any]]


def combined_options(
    program: str, groups: Mapping[str, type[Any]], layers: Sequence[Layer], argv: list[str], called: str | None
) -> Any:
    """Return the groups of options from the layers and the flags over them.

    Values are checked together at the end, because a later layer may resolve a contradiction.

    Args:
        program: the command in usage texts.
        groups: the dataclasses of options by the name of their group.
        layers: files with their values; later ones win.
        argv: the flags.
        called: see `transfer.cli.command.read_command`.

    Raises:
        UsageError: a layer has a wrong key or value; the layer is named.
        SystemExit: after `--help`.
    """
    known, schema = [item.name for group in groups.values() for item in fields(group)], flat_schema(**groups)
    words, values, checked = list[str](), dict[str, Any](), dict[str, Any]()
    places = dict[str, Path | str | None]()
    for layer, content in layers:
        for key, value in content.items():
            name = key.replace("-", "_")
            if name.partition(".")[0] not in known:
                raise UsageError(f"{layer}: unknown option `{key}`{did_you_mean(key, known)}")
            values[name], places[name] = value, layer
        with errors_naming(str(layer)):
            words += as_flags(with_full_paths(layer, content, groups.values()))
    print_help(program, groups, values, argv)
    places |= dict.fromkeys(names_of_flags(argv), called)
    with errors_in() as errors:
        unchecked = parse_flags(schema, argv, prog=program, below=words)
        checked |= {name: object.__new__(group) for name, group in groups.items()}
        for name, group in checked.items():
            vars(group).update(vars(getattr(unchecked, name)))
            with kept(), suppress(ArithmeticError, LookupError, TypeError, ValueError):
                getattr(group, "__post_init__", lambda: None)()
    texts = [_with_place(line, places, layers[0][0], called) for error in errors for line in str(error).split("\n")]
    if not checked:
        raise UsageError("\n".join(dict.fromkeys(texts)))
    for text in texts:
        reject(text)
    return SimpleNamespace(**checked)


def _with_place(text: str, places: Mapping[str, Path | str | None], recipe: Path, called: str | None) -> str:
    """Return an error message with the layer in front that set the option which it names first.

    Args:
        places: the layer that set each option last; None for the command line.
    """
    flag = next(iter(re.findall(r"--[\w-]+", text)), "")
    where = recipe if "is missing;" in text else places.get(flag[2:].replace("-", "_"), called)
    return f"{where}: {text}" if where else text
