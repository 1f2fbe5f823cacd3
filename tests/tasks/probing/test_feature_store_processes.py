"""The feature store under kill -9, two processes at once, and torchrun."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tasks.probing.feature_store import checked
from tests.transfer.test_run_processes import ENVIRONMENT, wait_for
from tests.transfer.test_run import record
from transfer.run import main

WORDS = ["fewshot", "--backbone", "tiny", "--smoke", "--dataset", "toy_digits", "--threads", "1"]
# Shards of 16 rows, so that there are many of them.
CODE = (
    "import sys, tasks.probing.features as f; f.SHARD_ROWS = 16; "
    "from transfer.run import main; sys.exit(main(sys.argv[1:]))"
)


def start(folder: Path, *extra: str) -> subprocess.Popen[str]:
    words = [*WORDS, "--out", str(folder / "out"), "--features", str(folder / "features"), *extra]
    command = [sys.executable, "-c", CODE, *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, start_new_session=True)


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("features/*/*.safetensors"))


def stored(folder: Path) -> dict[str, np.ndarray]:
    """The features of every entry, by row."""
    found = {}
    for entry in sorted(folder.glob("features/*/")):
        parts = [checked(path) for path in sorted(entry.glob("*.safetensors"))]
        rows = np.concatenate([rows for rows, _ in parts])
        assert len(np.unique(rows)) == len(rows), "a row that was computed twice"
        found[entry.name] = np.concatenate([features for _, features in parts])[np.argsort(rows)]
    return found


def assert_same_features(one: Path, two: Path) -> None:
    mine, theirs = stored(one), stored(two)
    assert mine.keys() == theirs.keys()
    for name, features in mine.items():
        np.testing.assert_array_equal(features, theirs[name])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    process = start(folder)
    assert process.wait(120) == 0, process.stderr
    return folder


@pytest.mark.slow
def test_an_extraction_killed_twice_ends_with_the_same_bytes(tmp_path: Path, undisturbed: Path) -> None:
    for made in (3, 20):
        process = start(tmp_path)
        wait_for(lambda made=made: len(shards(tmp_path)) >= made)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not list(tmp_path.glob("out/*/record.json"))
    before = {path: path.stat().st_mtime_ns for path in shards(tmp_path)}
    assert start(tmp_path).wait(120) == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert_same_features(tmp_path, undisturbed)
    found, expected = record(tmp_path / "out"), record(undisturbed / "out")
    assert found.scores == expected.scores
    assert 0 < found.details["features"]["computed"] < expected.details["features"]["computed"]
    assert expected.cost["found_hours"] == 0 < found.cost["found_hours"], "what was lost with its process counts"


@pytest.mark.slow
def test_two_processes_fill_one_store(tmp_path: Path, undisturbed: Path) -> None:
    both = [start(tmp_path), start(tmp_path, "--probe", "knn", "--out", str(tmp_path / "other"))]
    for process in both:
        assert process.wait(120) == 0, process.stderr.read() if process.stderr else ""
    assert_same_features(tmp_path, undisturbed)
    assert record(tmp_path / "out").scores == record(undisturbed / "out").scores
    computed = [record(tmp_path / name).details["features"]["computed"] for name in ("out", "other")]
    assert sum(computed) == record(undisturbed / "out").details["features"]["computed"]


@pytest.mark.slow
def test_two_ranks_share_the_extraction_and_the_draws(tmp_path: Path, undisturbed: Path) -> None:
    launcher = tmp_path / "launch.py"
    launcher.write_text(CODE)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(launcher)]
    words = [*WORDS, "--out", str(tmp_path / "out"), "--features", str(tmp_path / "features")]
    here = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))}
    done = subprocess.run([*launch, *words], capture_output=True, text=True, env=here)
    assert done.returncode == 0, done.stderr
    found, expected = record(tmp_path / "out"), record(undisturbed / "out")
    assert found.identity == expected.identity
    assert found.environment["world_size"] == 2
    assert found.cost["found_hours"] == 0 < found.cost["extraction_seconds"], "neither rank found the other's shards"
    assert found.scores == expected.scores
    assert_same_features(tmp_path, undisturbed)


@pytest.mark.slow
def test_a_full_record_is_reused_without_the_store(undisturbed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "--out", str(undisturbed / "out"), "--features", str(undisturbed / "elsewhere")]
    assert main(words) == 0
    assert "has a record, reused" in capsys.readouterr().err
