"""`--help` of a task or recipe: its options by the classes that declare them, one line each. Imports no torch.

The line of an option is the first sentence of the string under its field.
"""

import ast
import inspect
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

COLUMNS = 100
_FLAG_COLUMNS = 34


def _title(option: str, dataclass: type[Any]) -> str:
    """Return what is said of the class that has the field of an option: the first sentence of its text."""
    owner = next(base for base in reversed(dataclass.__mro__) if option in vars(base).get("__annotations__", ()))
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


def help_page(program: str, groups: Mapping[str, type[Any]], values: Any) -> str:
    """Return the help of a command.

    Args:
        program: the command, as `python -m transfer.run reid`.
        groups: its dataclasses of options.
        values: an object with an attribute for each group, whose values are shown as defaults.
    """
    lines: dict[str, list[str]] = {}
    for name, dataclass in groups.items():
        defaults, texts, kinds = getattr(values, name), meanings(dataclass), typing.get_type_hints(dataclass)
        for option in (field.name for field in fields(dataclass)):
            line = _line(option, kinds[option], texts.get(option, ""), getattr(defaults, option))
            lines.setdefault(_title(option, dataclass), []).append(line)
    parts = [f"usage: {program} --backbone NAME [options]"]
    parts += ["\n".join([f"{title}:", *of_title]) for title, of_title in lines.items()]
    return "\n\n".join([*parts, "--debug shows the traceback of an error. docs/guide has a page for each task."])


def _line(option: str, kind: Any, meaning: str, default: Any) -> str:
    flag = f"  --{option.replace('_', '-')} {_value(kind)}".rstrip()
    sentence = first_sentence(meaning)
    room = COLUMNS - _FLAG_COLUMNS - len(sentence) - len(" []")
    text = f"{sentence} [{textwrap.shorten(_default(default), max(room, 3), placeholder='...')}]"
    if len(flag) < _FLAG_COLUMNS:
        return f"{flag:{_FLAG_COLUMNS}}{text}"
    return f"{flag}\n{'':{_FLAG_COLUMNS}}{text}"


def first_sentence(text: str) -> str:
    """Return the first sentence of a meaning, or its first clause where a semicolon comes sooner, without its stop."""
    for end in (". ", "; "):
        text = text.partition(end)[0]
    return text.rstrip(".")


def _default(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None or value == "" else f"{value:g}" if isinstance(value, float) else str(value)


def _value(kind: Any) -> str:
    """Return how the value of an option is written in help: {a,b}, INT, FLOAT, PATH, TEXT or CHOICE."""
    kinds = list(_kinds(kind))
    if bool in kinds:
        return ""
    literals = [item for item in kinds if typing.get_origin(item) is Literal]
    choices = [choice for literal in literals for choice in typing.get_args(literal)]
    if choices and len(text := "{" + ",".join(map(str, choices)) + "}") <= _FLAG_COLUMNS - 14:
        return text
    names = {int: "INT", float: "FLOAT", Path: "PATH", str: "TEXT"}
    return " ".join(dict.fromkeys(names.get(item, "CHOICE") for item in kinds if item is not type(None)))


def _kinds(kind: Any) -> Iterator[Any]:
    """Yield the plain types and `Literal`s within a union or tuple."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType, tuple):
        for inner in typing.get_args(kind):
            yield from () if inner is Ellipsis else _kinds(inner)
    else:
        yield kind
