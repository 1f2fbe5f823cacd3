"""YAML files and option dataclasses. The only file that imports yaml and tyro; it imports no torch."""

import contextlib
import copy
import dataclasses
import functools
import math
import re
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
import yaml
from tyro.conf import Positional as Positional

from backbones.errors import UsageError, UserError, errors_naming

T = TypeVar("T")
LARGEST_YAML = 2**20
"""Characters of a YAML file that is read."""
MOST_VALUES = 100_000
"""Values of a YAML file, its aliases written out; so many take a slow processor some five seconds."""
DEEPEST = 50
"""Values of a YAML file in one another, its aliases written out."""
LONGEST_INTEGER = 400
"""Characters of an integer in a YAML file."""
CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; one of configs/ is read again only when it has changed.

    Raises:
        UsageError: the file is missing, is not YAML, or holds something else than a mapping with text keys.
    """
    if CONFIGS not in path.parents or not path.is_file():
        return _mapping(path)
    state = path.stat()
    return copy.deepcopy(_shipped(path, (state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)))


def _mapping(path: Path) -> dict[str, Any]:
    content = _loaded(_text_of(path), str(path))
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{path}: expected `key: value` lines at the top level")
    return content


def _text_of(path: Path) -> str:
    """Return the text of a file, or as much as says that it is too large."""
    try:
        if not path.is_file() and path.exists() and not path.is_dir():
            raise UserError(f"{path}: cannot be read: not a regular file")  # a pipe would be waited on for ever
        with path.open(encoding="utf-8") as file:
            return file.read(LARGEST_YAML + 1)
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


@functools.cache
def _shipped(path: Path, stamp: tuple[int, ...]) -> dict[str, Any]:
    return _mapping(path)


def read_value(text: str, where: str) -> Any:
    """Return the value of a piece of YAML. Raises UsageError naming `where`."""
    return _loaded(text, where)


def write_yaml(content: dict[str, Any]) -> str:
    """Return YAML text with the keys in the order given."""
    return yaml.dump(content, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=120)


def _loaded(text: str, where: str) -> Any:
    """Return what a piece of YAML stands for. Raises UsageError, in one line, naming `where` and the line."""
    if len(text) > LARGEST_YAML:
        raise UsageError(f"{where}: it is longer than the {LARGEST_YAML} characters that are read")
    try:
        with contextlib.closing(_Reader(text)) as loader:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_expanded(node, {}, where)
            return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        reason = " ".join(str(error.problem or error.context or "damaged").split())
        raise UsageError(f"{where}{line}: not valid YAML: {reason[:300]}") from None
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        reason = f"special characters are not allowed: #x{error.character:04x}"
        raise UsageError(f"{where}, line {number}: not valid YAML: {reason}") from None


def _check_expanded(node: Any, known: dict[int, tuple[int, int]], where: str) -> tuple[int, int]:
    """Return how many values a node stands for when its aliases are written out, and how deep they are nested.

    Raises:
        UsageError: more than `MOST_VALUES`, deeper than `DEEPEST`, or a value that holds itself.
    """
    line = f"{where}, line {node.start_mark.line + 1}"
    if id(node) in known:
        if known[id(node)] == (0, 0):
            raise UsageError(f"{line}: a value that holds itself")
        return known[id(node)]
    known[id(node)] = 0, 0
    inner = [] if isinstance(node, yaml.ScalarNode) else node.value
    children = [child for item in inner for child in (item if isinstance(item, tuple) else (item,))]
    below = [_check_expanded(child, known, where) for child in children]
    size, depth = 1 + sum(size for size, _ in below), 1 + max((depth for _, depth in below), default=0)
    if size > MOST_VALUES:
        raise UsageError(f"{line}: its aliases stand for more than {MOST_VALUES} values")
    if depth > DEEPEST:
        raise UsageError(f"{line}: nested too deeply: more than {DEEPEST} values in one another")
    known[id(node)] = size, depth
    return size, depth


class _Reader(yaml.SafeLoader):
    """Reads scalars as YAML 1.2's core schema has them, in which `1:30`, `2020-01-01` and `yes` are texts."""

    close = yaml.SafeLoader.dispose
    depth = values = 0

    def fetch_more_tokens(self) -> Any:
        """Read on. Raises ScannerError for an escape that stands for no character, as `"\\UFFFFFFFF"`."""
        try:
            return super().fetch_more_tokens()
        except (ValueError, OverflowError) as error:
            mark = self.get_mark()
            problem = f"an escape of no character ({error})"
            raise yaml.scanner.ScannerError(None, None, problem, mark) from None

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node. Raises ComposerError for one with a tag, in more than `DEEPEST` others, or after
        `MOST_VALUES`.
        """
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.depth, self.values = self.depth + 1, self.values + 1
        problem = ""
        if getattr(event, "tag", None) is not None:
            problem = f"tags, as {event.tag.replace('tag:yaml.org,2002:', '!!')}, are not read"
        if self.depth > DEEPEST:
            problem = f"nested too deeply: more than {DEEPEST} values in one another"
        if self.values > MOST_VALUES:
            problem = f"it holds more than {MOST_VALUES} values"
        if problem:
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return a mapping as it stands, before `<<` is merged. Raises ConstructorError for a key that stands twice."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is no plain value", key.start_mark)
            value = key.value if key.tag == _MERGE else self.construct_object(key)
            if value in seen:  # `0x1` and `1`, too
                problem = f"the key {key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(value)
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Return the text of a scalar. Raises ConstructorError where it holds half of a pair of surrogates alone."""
        text = super().construct_scalar(node)
        try:
            # JSON escapes a character beyond the first 65,536 as two halves
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            problem = "an escape of half a character (a surrogate)"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node. Raises ConstructorError for a value that its tag cannot have."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, TypeError) as error:
            value = str(getattr(node, "value", ""))[:60]
            problem = f"{value!r} is no {node.tag.rpartition(':')[2]} ({error})"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


class _Writer(yaml.SafeDumper):
    """Writes text such that `_Reader` reads it again as text."""


_MERGE = "tag:yaml.org,2002:merge"
_CORE_SCHEMA = {
    "null": (r"~|null|Null|NULL|", "~nN"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
"""Tag -> pattern of its plain scalars, and how they begin (https://yaml.org/spec/1.2.2/#103-core-schema)."""


def _use_core_schema() -> None:
    for side in (_Reader, _Writer):
        side.yaml_implicit_resolvers = {}
        side.add_implicit_resolver(_MERGE, re.compile("<<"), ["<"])
        for tag, (pattern, first) in _CORE_SCHEMA.items():
            begins = [*first, ""] if tag == "null" else list(first)
            side.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), begins)
    plain = {f"tag:yaml.org,2002:{tag}" for tag in (*_CORE_SCHEMA, "str", "seq", "map")}
    kept = {tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag in plain or tag is None}
    made: dict[str | None, Any] = {"tag:yaml.org,2002:int": _integer, "tag:yaml.org,2002:float": _number}
    _Reader.yaml_constructors = kept | made


def _integer(loader: Any, node: yaml.ScalarNode) -> int:
    """Return an integer of the core schema; `010` is ten."""
    text = loader.construct_scalar(node)
    if len(text) > LONGEST_INTEGER:  # Python does not print those of some thousand digits
        raise ValueError(f"it has {len(text)} characters, more than {LONGEST_INTEGER}")
    return int(text[2:], 8) if text.startswith("0o") else int(text, 16 if text.startswith("0x") else 10)


def _number(loader: Any, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node).lower().replace(".inf", "inf").replace(".nan", "nan"))


_use_core_schema()


def config_names(room: str) -> list[str]:
    """Return the sorted names of the YAML files in one folder of `configs/` ("tasks", "backbones", "datasets", ...)."""
    return sorted(path.stem for path in (CONFIGS / room).glob("*.yaml"))


def as_flags(layer: dict[str, Any]) -> list[str]:
    """Return the arguments that `parse` reads for the `key: value` lines of one YAML layer."""
    arguments: list[str] = []
    for key, value in layer.items():
        flag = "--" + key.replace("_", "-")
        if isinstance(value, list | tuple):
            if None in value:
                raise UsageError(f"{key}: a list holds an empty value (null)")
            arguments += [flag, *(_word(key, item) for item in value)]
        elif isinstance(value, dict):
            arguments += as_flags({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            arguments += [flag, _word(key, value)]
    return arguments


def _word(key: str, value: Any) -> str:
    """Return the argument for a value. Raises UsageError for a text that would be read as a flag, as `-h`."""
    word = str(value)
    if isinstance(value, str) and re.match("-+[A-Za-z]", word) and word.lower().strip("-+") not in ("inf", "nan"):
        raise UsageError(f"{key}: the value {word!r} begins like a flag")
    return word


def parse(schema: type[T], arguments: list[str], *, prog: str, default: T | None = None, layer: str | None = None) -> T:
    """Read flags into `schema`, a dataclass; what `arguments` leave open comes from `default`.

    Args:
        layer: the YAML file the words stand for. An error then names it; without it the words are the user's own, and
            tyro prints its help or its error (with the nearest flags) and leaves.

    Raises:
        UsageError: a wrong key, type or value in `layer`, or a flag of several values that is given twice.
        SystemExit: 0 after `--help`, 2 after a wrong flag of the user's own.
    """
    if layer is None:
        _check_repeated(schema, arguments)
        return _read(schema, arguments, prog, default)
    with errors_naming(layer):
        # Booleans take a value here: without a default, which a first layer has not, a flag could not say False.
        return _read(schema, arguments, prog, default, (tyro.conf.FlagConversionOff,))


def _check_repeated(schema: type[Any], arguments: list[str]) -> None:
    """Raise UsageError for a list given twice: the parser would drop the values of the first without a word."""
    given = [argument.partition("=")[0].replace("_", "-") for argument in arguments]
    for name in sorted(_flags_of_lists(schema)):
        if given.count(name) > 1:
            raise UsageError(f"{name} is given {given.count(name)} times; write all its values after one {name}")


def _flags_of_lists(schema: type[Any]) -> set[str]:
    found = set()
    for name, hint in typing.get_type_hints(schema).items():
        if dataclasses.is_dataclass(hint):
            found |= _flags_of_lists(typing.cast(type[Any], hint))
        elif any(typing.get_origin(part) in (tuple, list) for part in (hint, *typing.get_args(hint))):
            found.add(f"--{name.strip('_').replace('_', '-')}")
    return found


def _read(schema: type[T], arguments: list[str], prog: str, default: T | None, config: tuple[Any, ...] = ()) -> T:
    if default is None:
        options = tyro.cli(schema, args=arguments, prog=prog, config=config)
    else:
        options = tyro.cli(schema, args=arguments, prog=prog, default=default, config=config)
    for name, value in plain(options).items():
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be finite")
    return options


def differences(theirs: dict[str, Any], ours: dict[str, Any], ignored: Collection[str] = ()) -> str:
    """Return the options that both sides give and that differ, as `name VALUE there, VALUE here; ...`; may be empty."""
    names = sorted(theirs.keys() & ours.keys() - set(ignored))
    return "; ".join(f"{name} {theirs[name]} there, {ours[name]} here" for name in names if theirs[name] != ours[name])


def flag(name: str) -> Any:
    """Return the annotation (for `Annotated`) that names the flag of a field whose name Python does not allow."""
    return tyro.conf.arg(name=name)


def flat_schema(**groups: type[Any]) -> type[Any]:
    """Return a dataclass with one field per group of options, whose flags carry no group's name."""
    # without `help`, tyro would search the groups' source files for it, at every command
    arguments = {name: tyro.conf.arg(name="", help=group.__doc__ or "") for name, group in groups.items()}
    flat = [(name, Annotated[group, arguments[name]]) for name, group in groups.items()]
    return dataclasses.make_dataclass("Options", flat, kw_only=True)


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


def plain(options: Any) -> dict[str, Any]:
    """Return the fields of an options dataclass as values that JSON and YAML can hold, nested groups flattened."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            values |= plain(value)
        elif isinstance(value, Path):
            values[field.name] = str(value)
        elif isinstance(value, tuple | list):
            values[field.name] = [str(item) if isinstance(item, Path) else item for item in value]
        else:
            values[field.name] = value
    return values
