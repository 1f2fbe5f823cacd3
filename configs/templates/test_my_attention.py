# test_my_attention.py: the conformance test of each attention, on the CPU
from pathlib import Path

import pytest

from transfer.testing import backbone_checks

FILE = Path(__file__).with_name("my_attention.py")
NAMES = ("Temperature", "linear", "Linear")  # what my_attention.py holds
CHECKS = [check for name in NAMES for check in backbone_checks("tiny", attention=f"{FILE}:{name}")]


@pytest.mark.parametrize("check", CHECKS)
def test_my_attention(check):
    check()
