"""YAML as the suite reads it, YAML 1.2's core schema, with failures by file and line; the notes of options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transfer.core.errors import UsageError, UserError
from transfer.core.options import Added, Needs, Other, idle_options, noted
from transfer.core.settings import read_value, read_yaml, write_yaml

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_what_is_written_is_read_again(content: dict) -> None:
    assert read_value(write_yaml(content), "here") == content


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"), ("2020-99-99", "2020-99-99"), ("yes", "yes"), ("no", "no"), ("010", 10),
        ("5e-2", 0.05), ("1_000", "1_000"), (".inf", float("inf")), ("~", None), ("", None),
        ("True", True), ("{a: &x {b: 1}, c: {<<: *x, b: 2}}", {"a": {"b": 1}, "c": {"b": 2}}),
    ],
)  # fmt: skip
def test_scalars_are_those_of_the_core_schema(text: str, value: object) -> None:
    assert read_value(text, "here") == value
    assert type(read_value(text, "here")) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\n\na: 2", 3, "the key 'a' is duplicated"),
        ("a: [1, 2", 1, "expected ',' or ']'"),
        ("a: !!python/object/apply:os.system [x]", 1, "could not determine a constructor for the tag"),
    ],
)
def test_every_failure_is_one_line_with_file_and_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_yaml(path)
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"{path}, line {line}: ")
    assert "\n" not in str(caught.value)
    path.write_bytes("a: caf\u00e9".encode("latin-1"))
    with pytest.raises(UserError, match=r"mine\.yaml:1: neither UTF-8 nor UTF-16 .*; save the file as UTF-8"):
        read_yaml(path)


@dataclass(kw_only=True)
class Sample:
    kind: str = "a"
    scale: Annotated[float, Needs(kind=("a", "b"))] = 1.0
    """A meaning."""
    late: Annotated[float, Needs(scale=True)] = 2.0
    other: Annotated[int | None, Needs(kind=Other("a"))] = None
    new: Annotated[bool, Added(False)] = False


@pytest.mark.parametrize(
    ("values", "idle"),
    [
        ({"kind": "a", "scale": 1.0}, {"other"}),
        ({"kind": "b", "scale": 0}, {"late"}),
        ({"kind": "c", "scale": 1.0}, {"scale", "late"}),  # what needs an option that does not act does not act either
        ({"kind": "c"}, {"scale"}),  # of what is missing nothing is concluded
        ({}, set()),
    ],
)
def test_an_option_acts_where_its_condition_holds(values: dict[str, object], idle: set[str]) -> None:
    assert set(idle_options(noted(Sample, Needs), values)) == idle


def test_a_field_keeps_its_notes_where_a_derived_class_declares_it_anew() -> None:
    @dataclass(kw_only=True)
    class Derived(Sample):
        new: bool = True

    assert noted(Derived, Added) == {"new": Added(False)}
