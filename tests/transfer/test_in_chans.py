"""Commands on images of other than three channels, of which the classes differ in the last one alone."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.documents import files_in
from tests.runs import record
from transfer.predict.__main__ import main as predict
from transfer.run import main
from transfer.verify.__main__ import main as verify

TINY = ["--backbone", "tiny", "--weights", "random", "--threads", "1", "--workers", "0", "--out", "runs"]
KNN = ["knn", *TINY, "--size", "32", "--resize", "32", "--k", "5", "--other-k", "3"]
LEVELS = {"blue": 30, "green": 120, "red": 210}


@pytest.fixture(autouse=True)
def _folder(here: Path) -> None:
    """Pictures as RGBA, and the files of the guide's reader of five bands."""
    for name in ("my_bands.py", "my_bands.yaml"):
        Path(name).write_text(files_in("docs/adding-a-part.md")[name])
    Path("rgba.yaml").write_text("format: image_folder\nroot: rgba\n")
    Path("tiles").mkdir()
    rng = np.random.default_rng(0)
    for name, level in LEVELS.items():
        for number in range(20):
            part = "train" if number % 5 else "val"
            Path(f"rgba/{part}/{name}").mkdir(parents=True, exist_ok=True)
            bands = np.full((36, 32, 5), 128) + rng.integers(-9, 10, (36, 32, 5))
            bands[..., 4] += level - 128
            np.save(f"tiles/{name}_{number:04}.npy", (bands * 257).astype(np.uint16))
            pixels = np.delete(bands, 3, axis=2).astype(np.uint8)
            Image.fromarray(pixels).save(f"rgba/{part}/{name}/{number}.png")


@pytest.mark.parametrize(("dataset", "view"), [("rgba", "bicubic"), ("rgba", "fast"), ("my_bands", "bicubic")])
def test_neighbours_are_found_by_the_last_channel(dataset: str, view: str) -> None:
    channels = 4 if dataset == "rgba" else 5
    command = [*KNN, "--dataset", f"{dataset}.yaml", "--in-chans", str(channels), "--resize-mode", view]
    assert main(command) == 0
    made = record(Path("runs"))
    assert made.scores["top1"] == 1.0  # by RGB alone: chance, 1/3
    assert made.backbone["in_chans"] == channels
    assert any(note.startswith(f"--in-chans {channels}: mean 0.449 ") for note in made.notes)
    image = "rgba/val/red/0.png" if channels == 4 else "tiles/red_0000.npy"
    assert predict([f"runs/{made.run_id}", image, "--maps", "maps"]) == 0


REFUSED = [
    ([*KNN, "--dataset", "my_bands.yaml"], 1, r"blue_0001\.npy: 5 channels, for a backbone of 3: set --in-chans 5"),
    ([*KNN, "--dataset", "rgba.yaml", "--in-chans", "5"], 2, "image files give 1, 3 or 4 channels"),
    ([*KNN, "--dataset", "rgba.yaml", "--in-chans", "0"], 2, "`in_chans: 0` cannot be read"),
    (["detect", *TINY, "--smoke", "--in-chans", "1"], 2, "detectors take images of 3 channels"),
]


@pytest.mark.parametrize(("words", "status", "said"), REFUSED)
def test_one_line_says_what_to_give(words: list[str], status: int, said: str, capsys) -> None:
    assert main(words) == status
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.nightly
@pytest.mark.parametrize(("task", "score", "chance"), [("finetune", "top1", 0.2), ("reid", "mAP", 0.0)])
def test_a_training_in_grey_ends_with_a_score(task: str, score: str, chance: float) -> None:
    assert main([task, *TINY, "--smoke", "--in-chans", "1", "--seeds", "0"]) == 0
    made = record(Path("runs"))
    assert made.scores[score] > chance
    assert made.backbone["in_chans"] == 1
    assert verify(["runs"]) == 0
