"""YAML files and option dataclasses. The only file that imports yaml and tyro; it imports no torch."""

import contextlib
import dataclasses
import io
import math
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
import yaml
from tyro.conf import Positional as Positional

from backbones.errors import UsageError, UserError

T = TypeVar("T")
CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        UsageError: the file is missing, is not YAML, or holds something else than a mapping with text keys.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise UsageError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{path}: expected `key: value` lines at the top level")
    return content


def read_value(text: str, where: str) -> Any:
    """Return the value of a piece of YAML. Raises UsageError naming `where`."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not a YAML value: {error}") from None


def write_yaml(content: dict[str, Any]) -> str:
    """Return YAML text with the keys in the order given."""
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def config_names(room: str) -> list[str]:
    """Return the sorted names of the YAML files in one folder of `configs/` ("tasks", "backbones", "datasets", ...)."""
    return sorted(path.stem for path in (CONFIGS / room).glob("*.yaml"))


def as_flags(layer: dict[str, Any]) -> list[str]:
    """Return the arguments that `parse` reads for the `key: value` lines of one YAML layer."""
    arguments: list[str] = []
    for key, value in layer.items():
        flag = "--" + key.replace("_", "-")
        if isinstance(value, list | tuple):
            arguments += [flag, *map(str, value)]
        elif isinstance(value, dict):
            arguments += as_flags({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            arguments += [flag, str(value)]
    return arguments


def parse(schema: type[T], arguments: list[str], *, prog: str, default: T | None = None, layer: str | None = None) -> T:
    """Read flags into `schema`, a dataclass; what `arguments` leave open comes from `default`.

    Args:
        layer: the YAML file the words stand for. An error then names it; without it the words are the user's own, and
            tyro prints its help or its error (with the nearest flags) and leaves.

    Raises:
        UsageError: a wrong key, type or value in `layer`.
        SystemExit: 0 after `--help`, 2 after a wrong flag of the user's own.
    """
    if layer is None:
        return _read(schema, arguments, prog, default)
    text = io.StringIO()
    try:
        with contextlib.redirect_stderr(text), contextlib.redirect_stdout(text):
            # Booleans take a value here: without a default, which a first layer has not, a flag could not say False.
            config = (tyro.conf.FlagConversionOff,)
            return _read(schema, arguments, prog, default, config)
    except UsageError as error:
        raise UsageError(f"{layer}: {error}") from None
    except SystemExit:
        raise UsageError(f"{layer}: {_reason_in(text.getvalue())}") from None


def _reason_in(box: str) -> str:
    """Return the reason in what tyro prints about a wrong argument: the text in its frame, without the help below."""
    lines = [line.strip(" │╭╮╰╯─-") for line in box.splitlines()]
    texts = [line for line in lines if line]
    ends = [place for place, line in enumerate(texts) if line.startswith(("Argument helptext", "For full helptext"))]
    return " ".join(texts[1 : ends[0]] if ends else texts)


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
    flat = [(name, Annotated[group, tyro.conf.arg(name="")]) for name, group in groups.items()]
    return dataclasses.make_dataclass("Options", flat, kw_only=True)


def completion_script(program: str, schemas: dict[str, type[Any]], shell: str) -> str:
    """Return the script by which a shell completes a program.

    Args:
        program: its name, as the user types it.
        schemas: the dataclass of the options behind each first argument.
        shell: bash or zsh.
    """
    commands = tuple(Annotated[schema, tyro.conf.subcommand(name)] for name, schema in schemas.items())
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        schema: Any = typing.Union[commands]  # noqa: UP007
        tyro.cli(schema, prog=program, args=["--tyro-print-completion", shell])
    return text.getvalue()


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
