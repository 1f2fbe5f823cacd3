"""Readers of datasets in the user's own files: that of the guide, each kind of dataset, and faults in such files."""

import numpy as np
import pytest
from PIL import Image

from tests.documents import files_in
from tests.runs import record
from tests.transfer.data.coco.coco_tree import content, written
from tests.transfer.data.layouts import encoded, spec, write_images
from transfer.core.errors import UserError
from transfer.data.classification import open_classification
from transfer.data.coco.dataset import open_coco
from transfer.doctor.__main__ import main as doctor
from transfer.records.protocol import protocol
from transfer.run import main
from transfer.verify.__main__ import main as verify

FILES = files_in("docs/adding-a-part.md")
COLORS = {"blue": (40, 40, 220), "green": (40, 200, 40), "red": (220, 40, 40)}
FLAGS = ["knn", "--backbone", "tiny", "--weights", "random", "--size", "32", "--resize", "32", "--threads", "1"]
FLAGS += ["--k", "5", "--other-k", "--dataset", "my_data.yaml"]


@pytest.fixture
def folder(here):
    """A folder of the user's with the reader and the YAML of the guide, and 60 noisy images of three colors."""
    for name in ("my_reader.py", "my_data.yaml"):
        (here / name).write_text(FILES[name])
    (here / "shapes").mkdir()
    rng = np.random.default_rng(0)
    for name, color in COLORS.items():
        for number in range(20):
            pixels = np.clip(np.array(color) + rng.normal(0, 30, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(here / "shapes" / f"{name}_{number:04}.png")
    return here


@pytest.mark.nightly
def test_a_run_on_what_the_reader_of_the_guide_reads(folder, capsys):
    assert main(FLAGS) == 0
    made = record(folder / "runs")
    assert made.scores["top1"] > 0.9  # chance is 1/3
    assert made.user_code["reader"]["file"] == f"{folder}/my_reader.py:read"
    assert made.run_key_content["user_code"] == {"reader": made.user_code["reader"]["sha256"]}
    assert verify(["runs"]) == 0
    reader = folder / "my_reader.py"
    reader.write_text(reader.read_text() + "\n# changed\n")
    assert main([*FLAGS, "--out", "again"]) == 0
    again = record(folder / "again")
    assert (again.scores, again.dataset) == (made.scores, made.dataset)
    assert protocol(again) != protocol(made)
    assert doctor(["data", "my_data.yaml"]) == 0
    assert "complete\n               train 48 images, 3 classes; val 12 images, 3 classes\n" in capsys.readouterr().out


def test_objects_are_read(tmp_path):
    told, reader = spec(f"{tmp_path}/r.py:read", written(tmp_path / "set")), tmp_path / "r.py"
    reader.write_text(f"def read(root):\n    return {{'val': ({content('val')}, 'val2017')}}\n")
    data, whole = open_coco(told, None), open_coco(spec("coco", tmp_path / "set"), None)
    assert (data.train, data.as_coco(data.val)) == (None, whole.as_coco(whole.val))
    reader.write_text(reader.read_text().replace("'image_id': 201", "'image_id': 7"))
    with pytest.raises(UserError, match=r"r\.py: "):
        open_coco(told, None)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("every: 5", "evry: 5", "missing a required argument: 'every'; did you mean 'every'"),
        ('stem.split("_")', 'stem.splot("_")', "my_reader.py at line 5: AttributeError: 'str' object has no attribute"),
        ("return rows", "return 3", "returned 3; wanted: a dict with 'train', 'val' or both"),
        ("(path, name))", "path)", "my_reader.py:read returned the row PosixPath("),
        ("(path, name)", "(root / 'gone.png', name)", "file(s) of the dataset cannot be opened"),
        ("(path, name)", "(root.parent / path.name, name)", "lies outside {folder}/shapes, the `root` of the dataset"),
    ],
)
def test_a_mistake_is_one_line(before, after, message, folder, refused):
    assert any(before in (folder / name).read_text() for name in ("my_reader.py", "my_data.yaml"))
    for name in ("my_reader.py", "my_data.yaml"):
        (folder / name).write_text((folder / name).read_text().replace(before, after))
    assert message.replace("{folder}", str(folder)) in refused(main, FLAGS)


ONE, TWO = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize("listed", [ONE, TWO])
@pytest.mark.parametrize("stored", [ONE, TWO])
def test_a_list_and_the_disk_write_accents_in_different_forms(tmp_path, listed, stored):
    write_images(tmp_path / "im" / stored, 2, 1)
    (tmp_path / "im" / stored / "1.jpg").rename(tmp_path / "im" / stored / f"{listed}.jpg")
    rows = [(f"{listed}/0.jpg", "cup"), (f"{listed}\\{stored}.jpg", "cup")]
    (tmp_path / "r.py").write_text(f"def read(root):\n    return {{'train': {rows}}}\n")
    data = open_classification(spec(f"{tmp_path}/r.py:read", tmp_path / "im"), None)
    assert [data.train.encoded(index) for index in range(2)] == [encoded(1, 0), encoded(1, 1)]
