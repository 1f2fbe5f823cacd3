"""Lays the values of YAML files and the flags over each other, and checks the result. Imports no torch."""

import ast
import copy
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

from transfer.core.errors import UsageError, UserError, did_you_mean, errors_in, errors_naming, kept, reject
from transfer.core.settings import (
    CONFIGS,
    as_flags,
    choices_of,
    config_names,
    copy_to_schema,
    flat_schema,
    is_positional,
    parse,
    read_yaml,
    value_name,
    without_checks,
)

# Options whose values may be paths beside the YAML file that has them.
_PATH_OPTIONS = ("arch", "stem", "attention", "ffn", "backbone", "dataset", "weights", "detector", "metric", "method")


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


def with_full_paths(layer: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a YAML file in which files that lie beside it have their full paths. Raises UsageError."""
    if "config" in content:
        raise UsageError(f"{layer}: `config` is not allowed in a YAML; use --config with both files")

    def full_path(value: Any) -> Any:
        if isinstance(value, list):
            return [full_path(item) for item in value]
        path = value.rpartition(":")[0] if isinstance(value, str) and ".py:" in value else value
        if isinstance(path, str) and path and (layer.parent / path).is_file():
            return str((layer.parent / path).resolve()) + value[len(path) :]
        return value

    return {name: full_path(value) if name in _PATH_OPTIONS else value for name, value in content.items()}


T = TypeVar("T")
COLUMNS, _INDENT = 100, 30
MOST = 30
"""A command of more options shows only the common ones by default."""
COMMON = (
    *("backbone", "weights", "stem", "attention", "dataset", "data", "subset", "smoke", "size", "shots", "k"),
    *("detector", "n_last_blocks", "num_instances", "images", "trainable", "epochs", "batch_size", "lr"),
    *("warmup_epochs", "loss", "weight_decay", "drop_path", "rerank", "test_dataset", "name", "replace", "config"),
    *("seeds", "device", "workers", "precision", "out", "dry_run"),
)
"""The options of a task or recipe that `--help` shows, in this order; all other options are shown by `--help-all`."""
OURS = ("backbones", "tasks", "transfer")


def read_options(schema: type[T], argv: list[str], program: str) -> T:
    """Return the options of a command without recipe; `--help` prints its help and leaves. Raises as `parse`."""
    print_help(program, {"options": schema}, None, argv)
    return parse(schema, argv, prog=program)


def print_help(program: str, groups: Mapping[str, type[Any]], values: Any, argv: list[str]) -> None:
    """Print the help that the arguments ask for, if they do, and leave by SystemExit."""
    if {"-h", "--help", "--help-all"} & {*argv}:
        print(help_page(program, groups, values, everything="--help-all" in argv))
        raise SystemExit(0)


def help_page(program: str, groups: Mapping[str, type[Any]], values: Any, *, everything: bool) -> str:
    """Return the help of a command.

    Args:
        program: the command, as `python -m transfer.run reid`.
        groups: its dataclasses of options.
        values: an object with an attribute for each group, whose values are the defaults; None: those of the fields.
        everything: whether all options are shown, by the classes that declare them, or the common ones.
    """
    titles: dict[str, dict[str, str]] = {}
    usage, own = [f"usage: {program}"], list[str]()
    for name, dataclass in groups.items():
        texts, kinds = meanings(dataclass), typing.get_type_hints(dataclass, include_extras=True)
        for item in fields(dataclass):
            usual = item.default if item.default_factory is MISSING else item.default_factory()
            default = usual if values is None else getattr(getattr(values, name), item.name)
            if is_positional(kinds[item.name]):
                usage.append(f"{item.name.upper()}" if default is MISSING else f"[{item.name.upper()} ...]")
            owner = _owner(item.name, dataclass)
            own += [] if owner.__module__.partition(".")[0] in OURS else [item.name]
            entry = _entry(item.name, kinds[item.name], texts.get(item.name, ""), default)
            titles.setdefault(_title(owner), {})[item.name] = entry
    entries = {name: entry for of_title in titles.values() for name, entry in of_title.items()}
    usage += [*(["--backbone NAME"] if "backbone" in entries else []), "[options]"]
    parts = [" ".join(usage)]
    if everything or len(entries) <= MOST:
        parts += ["\n".join([f"{title}:", *of_title.values()]) for title, of_title in titles.items()]
    else:
        shown = [name for name in (*COMMON, *own) if name in entries]
        parts.append("\n".join(entries[name] for name in dict.fromkeys(shown)))
        rest = len(entries) - len(shown)
        parts.append(f"--help-all shows the other {rest} options. docs/guide has a page for each task.")
    return "\n\n".join([*parts, "--debug shows the traceback of an error."])


def _owner(option: str, dataclass: type[Any]) -> type[Any]:
    """Return the class that declares an option: the dataclass or one of its bases."""
    return next(base for base in reversed(dataclass.__mro__) if option in vars(base).get("__annotations__", ()))


def _title(owner: type[Any]) -> str:
    text = owner.__doc__ or ""
    return owner.__name__ if text.startswith(f"{owner.__name__}(") else first_sentence(" ".join(text.split()))


def meanings(dataclass: type[Any]) -> Mapping[str, str]:
    """Return the string under each field of a dataclass and of its bases, on one line."""
    texts: dict[str, str] = {}
    for base in reversed(dataclass.__mro__[:-1]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:]):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(statement, ast.AnnAssign) and isinstance(text, ast.Constant):
                assert isinstance(statement.target, ast.Name)
                texts[statement.target.id] = " ".join(str(text.value).split())
    return types.MappingProxyType(texts)


def _entry(option: str, kind: Any, meaning: str, default: Any) -> str:
    """Return the lines of an option: its flag, and beside it the first sentence of its meaning with the default."""
    name = option.strip("_")
    flag = f"  {name.upper()}" if is_positional(kind) else f"  --{name.replace('_', '-')} {value_name(kind)}".rstrip()
    sentence = first_sentence(meaning)
    if "CHOICE" in flag:
        sentence += f" ({', '.join(choices_of(kind))})"
    stated = f"on; --no-{name.replace('_', '-')} turns it off" if default is True else _default(default)
    if stated and "by default" not in sentence.lower():
        sentence += f" [{textwrap.shorten(stated, 60, placeholder='...')}]"
    lines = textwrap.wrap(sentence, COLUMNS - _INDENT, break_on_hyphens=False, break_long_words=False)
    if len(flag) < _INDENT - 1:
        lines[0] = f"{flag:{_INDENT}}{lines[0]}"
        return f"\n{'':{_INDENT}}".join(lines)
    return f"\n{'':{_INDENT}}".join([flag, *lines])


def first_sentence(text: str) -> str:
    """Return the first sentence of a text without its stop; a stop within brackets ends none."""
    for stop in re.finditer(r"\.(?= |$)", text):
        sentence = text[: stop.start()]
        if sentence.count("(") == sentence.count(")"):
            return sentence
    return text


def _default(value: Any) -> str:
    """Return a default in words; none of a value that is not set, nor of a flag that is off."""
    if value is MISSING:
        return "required"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if value is None or value is False:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


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
