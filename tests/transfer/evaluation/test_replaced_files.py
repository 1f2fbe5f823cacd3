"""Images, and files of the user's, that are replaced between the naming of a run and its end."""

import io
import json
import os
from pathlib import Path

import pytest
from PIL import Image

from transfer.records.record import Record
from transfer.records.store import RunKey, Store
from transfer.run import main as run

ALIKE = ["--smoke", "--threads", "1", "--workers", "0", "--device", "cpu"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bitmap(shade: int) -> bytes:
    """Images of equal size have as many bytes."""
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, shade, shade)).save(stream, "BMP")
    return stream.getvalue()


def images(root: Path) -> tuple[list[str], Path]:
    """Return a command on a folder of classes, and an image that it scores."""
    for split in ("train", "val"):
        for shade, name in ((10, "a"), (200, "b")):
            (root / split / name).mkdir(parents=True)
            for number in range(3):
                (root / split / name / f"{number}.bmp").write_bytes(bitmap(shade + number + 9 * (split == "val")))
    Path("set.yaml").write_text(f"format: image_folder\nroot: {root}\n")
    options = ["knn", "--k", "2", "--other-k", "1", "--size", "32", "--resize", "32"]
    return options, root / "val" / "a" / "1.bmp"


def records(folder: Path) -> dict[str, object]:
    """Return the scores of all records, by the ids of their runs."""
    found = (json.loads(path.read_bytes()) for path in folder.glob("*/record.json"))
    return {record["run_id"]: record["scores"] for record in found}


@pytest.mark.nightly
def test_no_record_names_images_that_it_was_not_computed_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options, image = images(tmp_path / "set")
    command = [*options, "--backbone", "tiny", "--weights", "random", "--dataset", "set.yaml", *ALIKE]
    assert run([*command, "--out", "old"]) == 0
    begin, before = Store.find, image.stat()

    def replaced(store: Store, run_id: str, run_key: RunKey) -> Record | None:
        image.write_bytes(bitmap(120))
        os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
        return begin(store, run_id, run_key)

    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(Store, "find", replaced)
        assert run([*command, "--out", "runs"]) == 1
    assert f"{image}: replaced while this command was at work; start it again" in capsys.readouterr().err
    assert records(Path("runs")) == {}
    assert not [*Path("runs").glob("*/state*.pt")]
    assert run([*command, "--out", "runs"]) == run([*command, "--out", "new"]) == 0
    assert records(Path("runs")) == records(Path("new"))
    assert records(Path("new")).keys() != records(Path("old")).keys()
