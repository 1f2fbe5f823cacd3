"""A named pipe among the images is an error, not a wait without end."""

import os
from pathlib import Path

import pytest
from PIL import Image

from backbones.data.loading.read_image import read_image
from backbones.data.splits.integrity import stat_files
from backbones.errors import UserError
from tests.processes import Command


def test_a_pipe_is_not_waited_on(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(UserError, match=r"pipe\.jpg: cannot be read as an image \(not a regular file\)"):
        read_image(str(tmp_path / "pipe.jpg"))
    with pytest.raises(UserError, match=r"pipe\.jpg: not a regular file"):
        stat_files([str(tmp_path / "pipe.jpg")], name="mine")


@pytest.mark.nightly
@pytest.mark.parametrize("view", ["bicubic", "fast"])
def test_a_folder_of_images_with_a_pipe_ends_with_its_name(tmp_path: Path, view: str) -> None:
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for number in range(3):
                Image.new("RGB", (32, 32), (number * 40, 9, 9)).save(
                    tmp_path / "images" / split / name / f"{number}.png"
                )
    (tmp_path / "images" / "val" / "dog" / "1.png").unlink()
    os.mkfifo(tmp_path / "images" / "val" / "dog" / "1.png")
    (tmp_path / "mine.yaml").write_text(f"format: image_folder\nroot: {tmp_path / 'images'}\n")
    words = [
        "knn",
        "--backbone",
        "tiny",
        "--weights",
        "random",
        "--dataset",
        str(tmp_path / "mine.yaml"),
        "--size",
        "32",
    ]
    words += ["--resize", "32", "--k", "1", "--workers", "0", "--view", view, "--out", str(tmp_path / "runs")]
    command = Command("transfer.run", words, tmp_path / "log")
    assert command.wait(60) == 1, command.stderr
    assert "1.png" in command.stderr
    assert "Traceback" not in command.stderr
