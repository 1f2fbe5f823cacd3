"""YAML as the suite reads it: YAML 1.2's core schema, no surprises, every failure in one line with file and line."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backbones import settings as settings_file
from backbones.errors import UsageError, UserError
from backbones.settings import LARGEST_YAML, MOST_VALUES, read_value, read_yaml, write_yaml
from tests.support import ends_at_once
from transfer.run import main as run
from transfer.sweep.__main__ import main as sweep

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_what_is_written_is_read_again(content: dict) -> None:
    assert read_value(write_yaml(content), "here") == content


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("2020-99-99", "2020-99-99"),
        ("yes", "yes"),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("5e-2", 0.05),
        ("1_000", "1_000"),
        (".inf", float("inf")),
        ("~", None),
        ("", None),
        ("True", True),
        ("{a: &x {b: 1}, c: {<<: *x, d: 2}}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, value: object) -> None:
    assert read_value(text, "here") == value
    assert type(read_value(text, "here")) is type(value)


def test_merged_keys_may_be_replaced(tmp_path: Path) -> None:
    """An anchor that is merged twice, one of its keys replaced."""
    path = tmp_path / "merged.yaml"
    path.write_text(
        "one: &one {run: reid, after: deit}\ntwo: &two {<<: *one, after: dino}\nthree: {<<: *two, run: a}\n"
    )
    assert read_yaml(path) == {
        "one": {"run": "reid", "after": "deit"},
        "two": {"run": "reid", "after": "dino"},
        "three": {"run": "a", "after": "dino"},
    }


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join(9 * ['*' + old])}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
CHAIN = "a0: &a0 [1]\n" + "".join(f"a{number}: &a{number} [*a{number - 1}]\n" for number in range(1, 900))
"""Each value holds the one before it, so that the last is nested as deep as the file is long."""


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a: 1\nb: !!int abc", 2, "tags, as !!int, are not read"),
        (f"a: {'9' * 5000}", 1, "is no int"),
        (f"a: 0x{'f' * 5000}", 1, "is no int"),
        (f"a: 0o{'7' * 5000}", 1, "is no int"),
        ("a: 1\nb: !!bool yes", 2, "tags, as !!bool, are not read"),
        ("!mine {a: 1}", 1, "tags, as !mine, are not read"),
        ('a: 1\nb: [1, "\\UFFFFFFFF"]', 2, "an escape of no character"),
        ('a: "\\U00110000"', 1, "an escape of no character"),
        ('a: 1\n"\\ud800": 2', 2, "an escape of half a character"),
        ("a: 1\nb: {0x1: 2, 1: 3}", 2, "the key '1' stands twice"),
        ("a: 1\nb: {1: 2, 1.0: 3}", 2, "the key '1.0' stands twice"),
        (f"a: [{'1,' * 200_000}]", 1, f"it holds more than {MOST_VALUES} values"),
        ("a: 1\n\na: 2", 3, "the key 'a' stands twice"),
        ("a: [1, 2", 1, "expected ',' or ']'"),
        ("a: !!python/object/apply:os.system [x]", 1, "tags, as !!python/object/apply:os.system, are not read"),
        ("a: !!binary x", 1, "tags, as !!binary, are not read"),
        ("a: &b [*b]", 1, "a value that holds itself"),
        ("{[1]: 2}", 1, "a key is no plain value"),
        (BOMB, 6, f"stand for more than {MOST_VALUES} values"),
        ("a: 1\nb: " + "[" * 3000, 2, "nested too deeply: more than 50 values"),
        ("a: 1\nb: " + "{a: " * 3000, 2, "nested too deeply: more than 50 values"),
        ("\n".join(" " * depth + "a:" for depth in range(1000)), 50, "nested too deeply: more than 50 values"),
        (CHAIN, 50, "nested too deeply: more than 50 values"),
        ("a: 1\n\nb: \x07", 3, "special characters are not allowed: #x0007"),
        ("\0" * 9, 1, "special characters are not allowed: #x0000"),
    ],
)
def test_every_failure_is_one_line_with_file_and_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_yaml(path)
    message = str(caught.value)
    assert reason in message
    assert message.startswith(f"{path}, line {line}: ")
    assert "\n" not in message
    assert len(message) < 500


def test_a_character_that_json_writes_as_two_halves_is_one(tmp_path: Path) -> None:
    assert read_value(json.dumps({"a": "\N{GRINNING FACE}"}), "here") == {"a": "\N{GRINNING FACE}"}


def test_a_file_of_more_characters_than_are_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One too many is; of a huge file no more is read than says so."""
    path = tmp_path / "mine.yaml"
    path.write_text("a: 1")
    os.truncate(path, 2**40)
    refused = f"^{path}: it is longer than the %d characters that are read$"
    with pytest.raises(UsageError, match=refused % LARGEST_YAML):
        read_yaml(path)
    monkeypatch.setattr(settings_file, "LARGEST_YAML", 100)
    path.write_text("# " + "\N{EURO SIGN}" * 98)
    assert read_yaml(path) == {}
    path.write_text("# " + "x" * 99)
    with pytest.raises(UsageError, match=refused % 100):
        read_yaml(path)
    with pytest.raises(UsageError, match=r"^--set a\.b=: it is longer than the 100 characters"):
        read_value("x" * 101, "--set a.b=")


def test_a_pipe_is_not_waited_on(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    os.mkfifo(path)
    with ends_at_once(path), pytest.raises(UserError, match=rf"{path}: cannot be read: not a regular file"):
        read_yaml(path)


def test_mutated_files_are_read_or_refused() -> None:
    """Bytes changed at random in a shipped recipe: a mapping or a message, never another exception."""
    source = (Path(__file__).parents[2] / "configs" / "tasks" / "reid.yaml").read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(400):
        mutated = bytearray(source)
        for _ in range(rng.randint(1, 6)):
            mutated[rng.randrange(len(mutated))] = rng.choice(b"[]{}&*!|>:-#'\"\n\t\x00\xff09ae")
        text = mutated.decode("utf-8", errors="replace")
        try:
            read_value(text, "here")
        except UserError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("epochs: 1e20", "Error parsing --epochs: invalid literal for int() with base 10: '1e+20'"),
        ("size: [10000000, 10000000]", "--size (10000000, 10000000): must be between 1 and 20000"),
        ("dataset: [null]", "dataset: a list holds an empty value (null)"),
        ("lr: 2020-99-99", "could not convert string to float: '2020-99-99'"),
        ("warmup_epochs: 1e20", "--warmup-epochs 1e+20: must be between 0 and 1e+06"),
        ("num_identities: 1e23", "--num-identities"),
        ("seeds: 1e23", "--seeds"),
    ],
)
def test_values_out_of_any_reason_are_refused_before_anything_runs(
    tmp_path: Path, line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(line)
    assert run(["reid", "--backbone", "tiny", "--dry-run", "--config", str(tmp_path / "mine.yaml")]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith(f"error: {tmp_path / 'mine.yaml'}: ")
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(("main", "argv"), [(run, ["knn", "--backbone", "tiny", "--smoke"]), (sweep, ["demo"])])
def test_a_flag_of_several_values_given_twice_is_refused(
    main: Callable[[list[str]], int], argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The parser would keep the last one alone; of a flag with one value the last one counts, as everywhere."""
    name, values = ("--seeds", ("0", "1")) if main is run else ("--set", ("a.b=1", "a.c=2"))
    assert main([*argv, name, values[0], name, values[1]]) == 2
    assert f"{name} is given 2 times; write all its values after one {name}" in capsys.readouterr().err


def test_an_underscore_makes_no_other_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reid", "--backbone", "tiny", "--smoke", "--test-dataset", "a", "--test_dataset", "b"]) == 2
    assert "--test-dataset is given 2 times" in capsys.readouterr().err
