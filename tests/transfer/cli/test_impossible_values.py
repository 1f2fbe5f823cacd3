"""Paths that no file can have and sizes for which no machine has time: one short line each."""

from pathlib import Path

import pytest

from transfer.run import main

LONG = "n" * 5_000


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--data", "~nobodyx/foo"], "a path begins with `~` and a name that no user of this machine has"),
        (["--dataset", "~nobodyx/foo.yaml"], "a path begins with `~` and a name that no user of this machine has"),
        (["--data", f"/{LONG}"], "(5001 characters): the name is longer than the file system takes"),
        (["--out", LONG], " characters): the name is longer than the file system takes"),
        (["--backbone", f"{LONG}.yaml"], " characters): the name is longer than the file system takes"),
        (["--backbone", "n" * 100_000], " characters): the name is longer than the file system takes"),
        (["--workers", "100000"], "--workers 100000: must be between 0 and 1024"),
        (["--threads", "0"], "--threads 0: must be between 1 and 1024"),
        (["--eval-batch", "100000000000000"], "--eval-batch 100000000000000: no machine can do with so many; give"),
        (["--num-identities", "1000000000000"], "--num-identities 1000000000000: no machine can do with so many; give"),
        (
            ["--pad", "1000000000"],
            "--pad 1000000000: must be below each side of --size 256 128, or a crop may miss the",
        ),
        (["--seeds", "100000000000000000000000"], "--seeds: give one or more different numbers, from 0 to 2**63 - 1"),
        (["--depth", "1000000"], "`depth: 1000000` is more than 1000"),
    ],
)
def test_what_no_machine_can_do_is_refused_in_one_line(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["reid", "--backbone", "tiny", "--dataset", "market1501", "--out", str(tmp_path), *words]
    assert main(given) in (1, 2)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert len(said) < 300
    assert reason in said


@pytest.mark.parametrize("name", ["help", "version"])
def test_words_of_the_command_line_are_no_options_of_a_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = tmp_path / "mine.yaml"
    layer.write_text(f"{name}: true\n")
    assert main(["reid", "--backbone", "tiny", "--smoke", "--out", str(tmp_path), "--config", str(layer)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {layer}: unknown option `{name}`")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("root", [f"/{LONG}", LONG, "~nobodyx/foo"])
def test_an_impossible_root_of_a_data_set_is_refused_in_one_line(
    root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(f"format: market1501\nroot: {root}\n")
    assert main(["reid", "--backbone", "tiny", "--dataset", str(tmp_path / "mine.yaml"), "--out", str(tmp_path)]) != 0
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert len(said) < 600


def test_a_circle_of_links_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "here.yaml").symlink_to(tmp_path / "there.yaml")
    (tmp_path / "there.yaml").symlink_to(tmp_path / "here.yaml")
    assert main(["reid", "--backbone", str(tmp_path / "here.yaml"), "--dataset", "market1501"]) != 0
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "here.yaml" in said


def test_names_in_errors_cannot_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a\x1b[31m\u202eb"
    folder.mkdir()
    (folder / "x.yaml").write_text("format: market1501\nroot: nowhere\n")
    assert main(["reid", "--backbone", "tiny", "--dataset", str(folder / "x.yaml"), "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert not {"\x1b", "\u202e"} & {*said}
    assert "a\\x1b[31m\\u202eb" in said
