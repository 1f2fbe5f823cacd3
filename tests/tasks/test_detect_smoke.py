"""What `transfer.run detect --smoke` learns, as it is shipped."""

from pathlib import Path

import pytest

from tests.runs import record
from tests.tasks.test_detect import WORDS
from transfer.run import main


@pytest.mark.nightly
def test_the_smoke_layer_as_it_is_learns(tmp_path: Path) -> None:
    assert main([*WORDS, "--out", str(tmp_path)]) == 0
    found = record(tmp_path)
    assert found.scores["box_AP50"] > 0.15
    assert found.scores["mask_AP50"] > 0.15
    assert found.smoke
