"""The feature store under kill -9, two processes at once, and torchrun."""

import signal
from pathlib import Path

import numpy as np
import pytest

from tasks.fewshot.features import read_stored as read
from tests.processes import Command, run_by_ranks, wait_for
from tests.runs import record

WORDS = ["fewshot", "--backbone", "tiny", "--smoke", "--dataset", "toy_digits", "--threads", "1"]


def start(folder: Path, *more: str, log: str = "log") -> Command:
    words = [*WORDS, "--out", str(folder / "out"), "--feature-cache", str(folder / "features"), *more]
    return Command("transfer.run", words, folder / log)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("features/*.safetensors"))


def assert_same_features(one: Path, two: Path, within: float = 0.0) -> None:
    assert [path.name for path in files(one)] == [path.name for path in files(two)]
    for mine, theirs in zip(files(one), files(two)):
        np.testing.assert_array_equal(read(mine).rows, read(theirs).rows)
        np.testing.assert_allclose(read(mine).features, read(theirs).features, rtol=0, atol=within)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    process = start(folder)
    assert process.wait() == 0, process.stderr
    return folder


@pytest.mark.nightly
def test_an_extraction_that_is_killed_leaves_nothing_half_written(tmp_path: Path, undisturbed: Path) -> None:
    process = start(tmp_path)
    wait_for(lambda: bool(files(tmp_path)))
    process.kill(signal.SIGKILL)
    assert start(tmp_path).wait() == 0
    assert_same_features(tmp_path, undisturbed)
    found, expected = record(tmp_path / "out"), record(undisturbed / "out")
    assert found.scores == expected.scores
    assert found.details["features"]["computed"] < expected.details["features"]["computed"]
    assert expected.cost["found_hours"] == 0 < found.cost["found_hours"], "what was found counts"


@pytest.mark.nightly
def test_two_processes_fill_one_store(tmp_path: Path, undisturbed: Path) -> None:
    both = [start(tmp_path), start(tmp_path, "--probe", "knn", "--out", str(tmp_path / "other"), log="other_log")]
    for process in both:
        assert process.wait() == 0, process.stderr
    assert_same_features(tmp_path, undisturbed)
    assert record(tmp_path / "out").scores == record(undisturbed / "out").scores


@pytest.mark.nightly
def test_two_ranks_share_the_extraction_and_the_draws(tmp_path: Path, undisturbed: Path) -> None:
    words = [*WORDS, "--out", str(tmp_path / "out"), "--feature-cache", str(tmp_path / "features")]
    run_by_ranks("transfer.run", words, tmp_path / "log")
    found, expected = record(tmp_path / "out"), record(undisturbed / "out")
    assert found.run_key == expected.run_key
    assert found.environment["world_size"] == 2
    assert found.cost["found_hours"] == 0 < found.cost["extraction_seconds"]
    assert found.scores == expected.scores
    assert_same_features(tmp_path, undisturbed, 1e-5)  # other batches round otherwise on some processors
