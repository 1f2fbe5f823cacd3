"""Functions of the library with tensors on the pretended GPU."""

from pathlib import Path

import pytest

from tests.gpu.machine import run

pytestmark = pytest.mark.nightly


def test_functions_answer_on_the_device_that_they_are_given(tmp_path: Path) -> None:
    done = run(tmp_path, "tests.gpu.calls")
    assert (done.status, done.mixes) == (0, {}), done.log
