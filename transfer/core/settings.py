"""YAML files and option dataclasses. The only file that imports yaml and tyro; it imports no torch."""

import contextlib
import copy
import dataclasses
import functools
import io
import math
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
import yaml
from tyro.conf import Positional as Positional

from transfer.core.errors import UsageError, UserError, did_you_mean, errors_together, reject, unknown
from transfer.core.files import ROOT, decoded, with_home
from transfer.core.options import mapping, plain

T = TypeVar("T")
CONFIGS = ROOT / "configs"


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; one of configs/ is read again only when it has changed.

    Raises:
        UsageError: the file is missing, is not YAML, or holds something else than a mapping with text keys.
    """
    if CONFIGS not in path.parents or not path.is_file():
        return _mapping(path)
    return copy.deepcopy(_shipped(path, path.stat().st_mtime_ns))


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = read_value(decoded(path), str(path))
    except FileNotFoundError:
        near = did_you_mean(path, map(str, path.parent.glob("*.y*ml")))
        raise UsageError(f"{path}: file not found{near}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    return {} if content is None else mapping(content, str(path))


@functools.cache
def _shipped(path: Path, changed: int) -> dict[str, Any]:
    return _mapping(path)


def read_value(text: str, where: str) -> Any:
    """Return the value of a piece of YAML. Raises UsageError, in one line, naming `where` and the line."""
    try:
        return yaml.load(text, Loader=_Reader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{where}{line}: not valid YAML: {error.problem or error.context or 'damaged'}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None


def write_yaml(content: dict[str, Any]) -> str:
    """Return YAML text with the keys in the order given."""
    return yaml.dump(content, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=120)


class _Reader(yaml.SafeLoader):
    """Reads scalars as YAML 1.2's core schema has them, in which `1:30`, `2020-01-01` and `yes` are texts."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return a mapping before `<<` is merged. Raises ConstructorError for a duplicated key."""
        node = super().compose_mapping_node(anchor)
        keys = [key.value for key, _ in node.value]
        for place, (key, _) in enumerate(node.value):
            if key.value in keys[:place]:
                problem = f"the key {key.value!r} is duplicated"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return node


class _Writer(yaml.SafeDumper):
    """Writes text such that `_Reader` reads it again as text."""


_CORE_SCHEMA = {
    "merge": ("<<", "<"),
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
"""Tag -> pattern of its plain scalars, and how they begin (https://yaml.org/spec/1.2.2/#103-core-schema)."""


for _side in (_Reader, _Writer):
    _side.yaml_implicit_resolvers = {}
    for _tag, (_pattern, _first) in _CORE_SCHEMA.items():
        _begins = [*_first, ""] if _tag == "null" else list(_first)
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _begins)
# `010` is ten
_Reader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def config_names(room: str) -> list[str]:
    """Return the sorted names of the YAML files in one folder of `configs/` ("tasks", "backbones", "datasets", ...)."""
    return sorted(path.stem for path in (CONFIGS / room).glob("*.yaml"))


def config_path(room: str, kind: str, name: str) -> Path:
    """Return the path of a user's YAML file, or of a shipped file as `shipped_path` does."""
    return Path(name) if Path(name).suffix in (".yaml", ".yml") else shipped_path(room, kind, name, "; or a YAML file")


def shipped_path(room: str, kind: str, name: str, more: str = "") -> Path:
    """Return the path of a file of a folder of `configs/` by its name.

    Args:
        kind: what it names. more: what else can be named.

    Raises:
        UsageError: no shipped file has the name; the message has the nearest.
    """
    if name not in config_names(room):
        raise unknown(kind, name, config_names(room), more)
    return CONFIGS / room / f"{name}.yaml"


def as_flags(layer: dict[str, Any]) -> list[str]:
    """Return the arguments that `parse_flags` reads for the `key: value` lines of one YAML layer."""
    arguments: list[str] = []
    for key, value in layer.items():
        flag = "--" + key.replace("_", "-")
        if isinstance(value, list | tuple):
            arguments += [flag, *(_word(key, item) for item in value)]
        elif isinstance(value, dict):
            arguments += as_flags({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            arguments += [flag, _word(key, value)]
    return arguments


def as_words(options: dict[str, Any], valued: Collection[str] = ()) -> list[str]:
    """Return options as the arguments that a person would type, with `--flip` and `--no-flip` for switches.

    Args:
        valued: the switches that take a value, because they may also be unset.
    """
    arguments: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool) and name not in valued:
            arguments.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
        else:
            arguments += as_flags({name: value})
    return arguments


def _word(key: str, value: Any) -> str:
    """Return the argument for a value. Raises UsageError for a text that would be read as a flag, as `-h`."""
    word = with_home(str(value))
    if isinstance(value, str) and re.match("-+[A-Za-z]", word) and word.lower().strip("-+") not in ("inf", "nan"):
        raise UsageError(f"{key}: the value {word!r} begins like a flag")
    return word


def parse_flags(schema: type[T], arguments: list[str], *, prog: str, below: Sequence[str] = ()) -> T:
    """Read flags into `schema`, a dataclass.

    Args:
        below: flags that YAML layers stand for, each with its value; later ones win, and `arguments` win over all.

    Raises:
        UsageError: a wrong flag, type or value, or a flag of several values that is given twice; all that is wrong.
    """
    kinds = _kinds_of_flags(schema)
    with errors_together(join=True):
        return _read(schema, [*below, *_with_values(kinds, _with_known_flags(kinds, arguments))], prog, kinds)


def _with_known_flags(kinds: Mapping[str, Any], arguments: list[str]) -> list[str]:
    """Return the arguments without unknown flags, which are rejected, as is a list given twice: the parser would drop
    the values of the first without a word.
    """
    flags = [word.partition("=")[0].replace("_", "-") for word in arguments if re.match("--.", word)]
    for name in dict.fromkeys(flags):
        if name not in kinds and kinds.get(name.replace("--no-", "--", 1)) is not bool:
            reject(f"unknown option {name}{did_you_mean(name, kinds)}")
            arguments = _without_last(name, arguments)
        elif flags.count(name) > 1 and _is_list(kinds.get(name)):
            reject(f"{name} is given {flags.count(name)} times; write all its values after one {name}")
    return arguments


def _with_values(kinds: Mapping[str, Any], arguments: list[str]) -> list[str]:
    """Return the arguments with a value behind each flag that stands for one: `--flip` and `--no-flip`."""
    words = list[str]()
    for word, following in zip(arguments, [*arguments[1:], ""]):
        name = word.replace("_", "-")
        if kinds.get(name) is bool and following not in ("True", "False", "None"):
            words += [name, "True"]
        elif kinds.get(name.replace("--no-", "--", 1)) is bool and name not in kinds:
            words += [name.replace("--no-", "--", 1), "False"]
        else:
            words.append(word)
    return words


def _without_last(flag: str, arguments: list[str]) -> list[str]:
    """Return the arguments without a flag, as it was given last, and its values."""
    flags = [place for place, word in enumerate(arguments) if word.startswith("--")]
    matching = [place for place in flags if arguments[place].partition("=")[0].replace("_", "-") == flag]
    if not matching:
        return arguments
    end = next((place for place in flags if place > matching[-1]), len(arguments))
    return arguments[: matching[-1]] + arguments[end:]


def _is_list(hint: Any) -> bool:
    return any(typing.get_origin(part) in (tuple, list) for part in (hint, *typing.get_args(hint)))


def _kinds_of_flags(schema: type[Any]) -> dict[str, Any]:
    """Return the type of the value of each flag."""
    kinds: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(schema).items():
        if dataclasses.is_dataclass(hint):
            kinds |= _kinds_of_flags(typing.cast(type[Any], hint))
        else:
            kinds[f"--{name.replace('_', '-')}"] = bool if hint == bool | None else hint
    return kinds


def _read(schema: type[T], arguments: list[str], prog: str, kinds: Mapping[str, Any]) -> T:
    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text):
            options: T = tyro.cli(schema, args=arguments, prog=prog, config=(tyro.conf.FlagConversionOff,))
    except SystemExit:
        flag, reason = _reason_in(text.getvalue(), kinds)
        reject(reason)
        if (others := _without_last(flag, arguments)) == arguments:
            raise UsageError(reason) from None
        return _read(schema, others, prog, kinds)  # for what else is wrong
    for name, value in plain(options).items():
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            reject(f"--{name.replace('_', '-')} {value}: must be finite")
    return options


def _reason_in(box: str, kinds: Mapping[str, Any]) -> tuple[str, str]:
    """Return the flag that tyro prints about in a frame, if there is one, and in one line what is wrong with it."""
    lines = [line.strip(" │|╭╮╰╯─+") for line in box.splitlines()]
    texts = [line for line in lines if line.strip("-")]
    ends = [place for place, line in enumerate(texts) if line.startswith(("Argument helptext", "For full helptext"))]
    reason = " ".join(texts[1 : ends[0]] if ends else texts)
    flag = next((word for word in re.findall(r"--[\w-]+", reason) if word in kinds), "")
    if reason.startswith(("Error parsing --", "invalid choice")):
        quoted = re.findall(r"""\[['"].*?['"]\]|'[^']*'|"[^"]*\"""", reason)[0]
        got = " ".join(text for _, text in re.findall(r"""(['"])(.*?)\1""", quoted))
        if count := re.search(r"expected argument count (\d+)", reason):
            return flag, f"{flag} needs {count[1]} values, got {got!r}"
        choices, wanted = choices_of(kinds[flag]), value_name(kinds[flag])
        if wanted == "{" + ",".join(choices) + "}":
            wanted = f"one of {', '.join(choices)}"
        return flag, f"{flag} must be {wanted}, got {got!r}{did_you_mean(got, choices)}"
    if reason.startswith("Missing value"):
        pair = "2 values, height and width, as in {0} 128 128" if "size" in flag else "2 values: {1}"
        wanted = pair if "Expected 2 values" in reason else "a value: {1}"
        return flag, f"{flag} needs {wanted.format(flag, value_name(kinds[flag]))}"
    if reason.startswith("Missing from"):
        return "", f"{flag or 'an argument'} is missing; --help shows what is required"
    return "", reason.replace("Unrecognized options:", "unexpected argument:")


def value_name(kind: Any) -> str:
    """Return how help writes the value of an option: {a,b}, INT, FLOAT|{learned}, INT INT, TEXT ...; empty for bool."""
    inner = typing.get_args(kind)
    match typing.get_origin(kind):
        case origin if origin is Annotated:
            return value_name(inner[0])
        case origin if origin is Literal:
            return "{" + ",".join(map(str, inner)) + "}"
        case origin if origin is tuple:
            return " ".join(map(value_name, inner))
        case origin if origin in (typing.Union, types.UnionType):
            return "|".join(filter(None, map(value_name, inner)))
    return {int: "INT", float: "FLOAT", Path: "PATH", str: "TEXT", Ellipsis: "..."}.get(kind, "")


def choices_of(kind: Any) -> list[str]:
    """Return the words of the `Literal`s in the type of an option."""
    if typing.get_origin(kind) is Literal:
        return list(map(str, typing.get_args(kind)))
    return [choice for inner in typing.get_args(kind) for choice in choices_of(inner)]


def is_positional(hint: Any) -> bool:
    """Return whether a field, by its hint with annotations, is an argument without a flag."""
    return Positional in getattr(hint, "__metadata__", ())


def flat_schema(**groups: type[Any]) -> type[Any]:
    """Return a dataclass with one field per group of options, whose flags carry no group's name.

    The groups are without their `__post_init__`, which their values pass once they are complete.
    """
    flat = []
    for name, group in groups.items():
        checks_nothing = {"__post_init__": lambda self: None, "__doc__": group.__doc__}
        unchecked = type(group.__name__, (group,), checks_nothing)
        # without `help`, tyro would search the groups' source files for it, at every command
        flat.append((name, Annotated[unchecked, tyro.conf.arg(name="", help=group.__doc__ or "")]))
    return dataclasses.make_dataclass("Options", flat, kw_only=True)
