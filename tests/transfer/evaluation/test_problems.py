"""An error that holds for several data sets is said once, with their names."""

from pathlib import Path

import pytest

from backbones.errors import MissingInput, UsageError, UserError
from transfer.evaluation.problems import Problems, joined
from transfer.run import main

SHORT = ["--backbone", "tiny", "--weights", "random", "--threads", "1"]


def test_what_several_data_sets_have_in_common_is_said_once() -> None:
    text = joined(
        [
            ("", "--weights x: not here"),
            ("cub", "cub: not found\n  looked at a\nexpected:\n  cub/\nname it with --data"),
            ("dtd", "dtd: not found\n  looked at b\nexpected:\n  dtd/\nname it with --data"),
            ("cars", "--block 9: too deep"),
            ("pets", "--block 9: too deep"),
            ("pets", "pets: no validation split"),
        ]
    )
    assert text.splitlines() == [
        "--weights x: not here",
        "cub, dtd: not found",
        "name it with --data",
        *("cub:", "    looked at a", "  expected:", "    cub/"),
        *("dtd:", "    looked at b", "  expected:", "    dtd/"),
        "--block 9: too deep (for cars, pets)",
        "pets: no validation split",
    ]


@pytest.mark.parametrize("message", ["a: one line", "--flag: of no data set", "a: first\n  below\nlast", "first\nlast"])
def test_one_message_stays_as_it_is(message: str) -> None:
    assert joined([("a", message)]) == message


def test_equal_words_of_no_data_set_are_not_joined() -> None:
    assert joined([("", "the same"), ("", "the same")]) == "the same\nthe same"


@pytest.mark.parametrize(
    ("errors", "kind", "status"),
    [
        ([UsageError("a"), UsageError("b")], UsageError, 2),
        ([MissingInput("a"), MissingInput("b")], MissingInput, 1),
        ([UsageError("a"), MissingInput("b")], UserError, 1),
    ],
)
def test_the_error_is_of_the_kind_of_all(errors: list[UserError], kind: type[UserError], status: int) -> None:
    problems = Problems()
    for error in errors:
        with problems.collected():
            raise error
    with pytest.raises(UserError) as raised:
        problems.raise_if_any()
    assert (type(raised.value), raised.value.exit_status, str(raised.value)) == (kind, status, "\n".join("ab"))


def test_a_command_says_it_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["--dataset", "cub200", "dtd", "uc_merced"]
    assert main(["fewshot", *SHORT, *sets, "--data", str(tmp_path), "--out", str(tmp_path / "runs")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: cub200, dtd, uc_merced: the data set was not found\n")
    assert said.count("name the data folder with `--data FOLDER`") == 1
    toys = ["--dataset", "toy_cub200", "toy_dtd", "--smoke", "--block", "44"]
    assert main(["fewshot", *SHORT, *toys, "--out", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err == "error: --block 44: tiny has 2 blocks, counted from 0 (for toy_cub200, toy_dtd)\n"
