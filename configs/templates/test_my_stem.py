# test_my_stem.py: the conformance test of the stem, on the CPU
from pathlib import Path

import pytest

from transfer.testing import backbone_checks

FILE = Path(__file__).with_name("my_stem.py")


@pytest.mark.parametrize("check", backbone_checks("tiny", stem=f"{FILE}:MyStem"))
def test_my_stem(check):
    check()
