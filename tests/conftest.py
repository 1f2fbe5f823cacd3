"""What torch and Triton must find in the environment when they are imported."""

import os
import signal
import tempfile

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in the background: Ctrl-C is tested, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
# two processes run the tests, each on one core: threads of several would wait for each other most of the time
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

_named_code = tempfile.TemporaryDirectory()  # which files of code the user has named is not known from other sessions
os.environ["XDG_STATE_HOME"] = _named_code.name

pytest.register_assert_rewrite("tests.runs")  # so that a difference of two runs is shown

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # its kernels then run on the CPU


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that have slow tests: at the end one process would go on with them alone."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
