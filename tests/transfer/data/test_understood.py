"""What was understood of a dataset is what its files hold, and its samples are drawn for the eye."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.runs import record
from transfer.data.spec import resolve_dataset
from transfer.data.understood import statement, understood
from transfer.doctor.__main__ import main as doctor
from transfer.doctor.datasets import open_any
from transfer.run import main as run


def test_the_doctor_a_run_and_its_record_say_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path), "--threads", "1", "--workers", "0"]
    assert run(["knn", "--smoke", "--backbone", "tiny", "--dataset", "toy_digits", *out]) == 0
    said = capsys.readouterr().err
    opened = open_any(resolve_dataset("toy_digits"), None)
    assert all(f"toy_digits: {line}" in said for line in statement(opened))
    assert record(tmp_path).dataset["understood"] == json.loads(json.dumps(understood(opened)))


@pytest.mark.parametrize(
    ("name", "said", "caption"),
    [
        ("toy_digits", "images of a class: train 140 (8) to 147 (3); val 34 (8) to 36 (1)", r"train: .*: 0</"),
        ("toy_market", "images of a person: train 8 each; query 2 each; gallery 8 each", r"person 0, camera \d"),
        ("toy_coco", "objects of a class: train 20 (zero) to 31 (two); val 6 (zero) to 15 (two)", r"\d (zero|one|two)"),
        ("toy_masks", "train 64 images, 4 classes; val 32 images, 4 classes", "ground, "),
    ],
)
def test_splits_are_described_and_twelve_samples_are_drawn(
    name: str, said: str, caption: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "look.html"
    assert doctor(["data", name, "--look", str(page)]) == 0
    assert said in capsys.readouterr().out
    text = page.read_text()
    assert text.count("<img src=") == 12
    assert re.search(caption, text)


def test_samples_of_a_reader_that_decodes_to_floats(tmp_path: Path) -> None:
    code = "import numpy as np\n\ndef tile(path): return np.load(path)\n\n"
    code += "def read(root):\n    rows = [(path, path.stem[0]) for path in sorted(root.glob('*.npy'))]\n"
    (tmp_path / "mine.py").write_text(f"{code}    return {{'train': rows, 'decode': tile}}\n")
    for name in ("a0", "a1", "b0", "b1"):
        np.save(tmp_path / f"{name}.npy", np.full((8, 6, 3), 0.5, np.float32))
    (tmp_path / "mine.yaml").write_text(f"format: mine.py:read\nroot: {tmp_path}\noverlap: allow\n")
    assert doctor(["data", str(tmp_path / "mine.yaml"), "--look", str(tmp_path / "look.html")]) == 0
    assert (tmp_path / "look.html").read_text().count("<img src=") == 4
