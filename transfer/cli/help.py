"""Help of a command: the options that people use most, or all of them, with their defaults. Imports no torch."""

import ast
import inspect
import re
import textwrap
import types
import typing
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from transfer.core.options import Common, Execution, noted
from transfer.core.settings import is_positional, parse_flags, value_name

T = TypeVar("T")
COLUMNS, _INDENT = 100, 30
MOST = 30
"""A command of more options shows only the common ones by default."""
OURS = ("backbones", "tasks", "transfer")


def read_options(schema: type[T], argv: list[str], program: str) -> T:
    """Return the options of a command without recipe; `--help` prints its help and leaves. Raises as `parse`."""
    print_help(program, {"options": schema}, {}, argv)
    return parse_flags(schema, argv, prog=program)


def print_help(program: str, groups: Mapping[str, type[Any]], values: Mapping[str, Any], argv: list[str]) -> None:
    """Print the help of a command that the arguments ask for, if they do, and leave by SystemExit.

    It shows all options, by the classes that declare them, or the `Common` ones and a user's, those of execution last.

    Args:
        program: the command, as `python -m transfer.run reid`.
        groups: its dataclasses of options.
        values: defaults by option, in the place of those of the fields.
    """
    if not {"-h", "--help", "--help-all"} & {*argv}:
        return
    titles, common, execution = defaultdict[str, dict[str, str]](dict), list[str](), set[str]()
    usage = [f"usage: {program}"]
    for dataclass in groups.values():
        texts, kinds = meanings(dataclass), typing.get_type_hints(dataclass, include_extras=True)
        execution |= {*noted(dataclass, Execution)}
        for item in fields(dataclass):
            usual = item.default if item.default_factory is MISSING else item.default_factory()
            default = values.get(item.name, usual)
            if is_positional(kinds[item.name]):
                usage.append(f"{item.name.upper()}" if default is MISSING else f"[{item.name.upper()} ...]")
            owners = reversed(dataclass.__mro__)  # the class that declares it comes first
            owner = next(base for base in owners if item.name in vars(base).get("__annotations__", ()))
            users = owner.__module__.partition(".")[0] not in OURS
            common += [item.name] if users or item.name in noted(dataclass, Common) else []
            titles[_title(owner)][item.name] = _entry(item.name, kinds[item.name], texts.get(item.name, ""), default)
    entries = {name: entry for of_title in titles.values() for name, entry in of_title.items()}
    usage += [*(["--backbone NAME"] if "backbone" in entries else []), "[options]"]
    parts = [" ".join(usage)]
    if "--help-all" in argv or len(entries) <= MOST:
        parts += ["\n".join([f"{title}:", *of_title.values()]) for title, of_title in titles.items()]
    else:
        parts.append("\n".join(entries[name] for name in sorted(common, key=execution.__contains__)))
        rest = len(entries) - len(common)
        parts.append(f"--help-all shows the other {rest} options. docs/guide has a page for each task.")
    print("\n\n".join([*parts, "--debug shows the traceback of an error."]))
    raise SystemExit(0)


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
    name = option.replace("_", "-")
    flag = f"  {option.upper()}" if is_positional(kind) else f"  --{name} {value_name(kind)}".rstrip()
    sentence = first_sentence(meaning)
    stated = f"on; --no-{name} turns it off" if default is True else _default(default)
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
