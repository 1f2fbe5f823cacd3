# test_my_task.py: the task beats chance with an untrained backbone on bundled images, and its record is right
from pathlib import Path

import transfer
from transfer.verify.__main__ import main as verify

FILE = Path(__file__).with_name("my_task.py")


def test_my_task(tmp_path):
    (run,) = transfer.evaluate(
        f"{FILE}:TASK", backbone="tiny", weights="random", dataset="toy_digits", size=32, out=tmp_path
    )
    assert run.scores["accuracy"] > 0.2  # chance is 0.1
    assert verify([str(tmp_path)]) == 0
