"""What torch and Triton must find in the environment when they are imported."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in the background: Ctrl-C is tested, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
# two processes run the tests, each on one core: threads of several would wait for each other most of the time
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRANSFER_SIDE_BY_SIDE", os.environ.get("PYTEST_XDIST_WORKER_COUNT", ""))

# a machine with a GPU gives the same results; workers of pytest-xdist inherit what the first process decided
os.environ.setdefault("TRANSFER_TESTS_ON_GPU", str(int("--gpu" in sys.argv)))
if os.environ["TRANSFER_TESTS_ON_GPU"] == "0":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest
import torch

_named_code = tempfile.TemporaryDirectory()  # which files of code the user has named is not known from other sessions
os.environ["XDG_STATE_HOME"] = _named_code.name

pytest.register_assert_rewrite("tests.runs")  # so that a difference of two runs is shown

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # its kernels then run on the CPU


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--gpu`; it is read above, before torch is imported."""
    parser.addoption("--gpu", action="store_true", help="let tests use the machine's GPU, which is hidden otherwise")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what wants a GPU; begin with files of nightly tests: at the end one process would go on with them alone."""
    for item in items:
        if item.get_closest_marker("gpu") and os.environ["TRANSFER_TESTS_ON_GPU"] == "0":
            item.add_marker(pytest.mark.skip(reason="wants a GPU: pytest --gpu"))
    nightly = {item.path for item in items if item.get_closest_marker("nightly")}
    items.sort(key=lambda item: item.path not in nightly)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the commands of a test start."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(here: Path, capfd: pytest.CaptureFixture[str]) -> Callable[[Callable[[list[str]], int], list[str]], str]:
    """Run a command that must end in an error, without a record in `runs`; return what it said."""

    def run(main: Callable[[list[str]], int], words: list[str]) -> str:
        assert main(words) in (1, 2)
        said = "".join(capfd.readouterr())
        assert "Traceback" not in said
        assert not list(here.glob("runs/*/record.json"))
        return said

    return run
