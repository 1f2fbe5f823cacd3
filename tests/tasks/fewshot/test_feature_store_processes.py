"""The feature store under kill -9, two processes at once, and torchrun."""

import signal
from pathlib import Path

import numpy as np
import pytest

from tasks.fewshot import features
from tasks.fewshot.feature_store import read_shard
from tests.processes import Command, run_by_ranks, wait_for
from tests.runs import record

WORDS = ["fewshot", "--backbone", "tiny", "--smoke", "--dataset", "toy_digits", "--threads", "1"]


def small_shards() -> None:
    """Shards of 16 rows, so that there are many of them."""
    features.SHARD_ROWS = 16


def start(folder: Path, *more: str, log: str = "log") -> Command:
    words = [*WORDS, "--out", str(folder / "out"), "--feature-cache", str(folder / "features"), *more]
    return Command("transfer.run", words, folder / log, prepare=small_shards)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("features/*/*.safetensors"))


def stored(folder: Path) -> dict[str, np.ndarray]:
    """The features of every entry, by row."""
    found = {}
    for entry in sorted(folder.glob("features/*/")):
        parts = [read_shard(path) for path in sorted(entry.glob("*.safetensors"))]
        _, places = np.unique(np.concatenate([rows for rows, _ in parts]), return_index=True)
        found[entry.name] = np.concatenate([values for _, values in parts])[places]
    return found


def assert_same_features(one: Path, two: Path) -> None:
    mine, theirs = stored(one), stored(two)
    assert mine.keys() == theirs.keys()
    for name, rows in mine.items():
        np.testing.assert_array_equal(rows, theirs[name])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    process = start(folder)
    assert process.wait() == 0, process.stderr
    return folder


@pytest.mark.nightly
def test_an_extraction_killed_twice_ends_with_the_same_bytes(tmp_path: Path, undisturbed: Path) -> None:
    for made in (3, 20):
        process = start(tmp_path)
        wait_for(lambda made=made: len(shards(tmp_path)) >= made)
        process.kill(signal.SIGKILL)
        assert not list(tmp_path.glob("out/*/record.json"))
    before = {path: path.stat().st_mtime_ns for path in shards(tmp_path)}
    assert start(tmp_path).wait() == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert_same_features(tmp_path, undisturbed)
    found, expected = record(tmp_path / "out"), record(undisturbed / "out")
    assert found.scores == expected.scores
    assert 0 < found.details["features"]["computed"] < expected.details["features"]["computed"]
    assert expected.cost["found_hours"] == 0 < found.cost["found_hours"], "what was lost with its process counts"


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
    run_by_ranks("transfer.run", words, tmp_path / "log", prepare=small_shards)
    found, expected = record(tmp_path / "out"), record(undisturbed / "out")
    assert found.run_key == expected.run_key
    assert found.environment["world_size"] == 2
    assert found.cost["found_hours"] == 0 < found.cost["extraction_seconds"], "neither rank found the other's shards"
    assert found.scores == expected.scores
    assert_same_features(tmp_path, undisturbed)
