"""Lists as other systems write them: with a mark of their encoding, backslashes, and accents in another form."""

import pytest

from backbones.data.classification import open_classification
from backbones.runtime.files import listed_path
from tests.backbones.data.layouts import encoded, spec, write_images, write_toy

ONE, TWO = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize("spoil", ["mark", "backslashes", "both"])
def test_lists_of_windows(tmp_path, spoil):
    root = write_toy("dtd", tmp_path / "set")
    before = open_classification(spec("dtd", root), None)
    for path in (root / "labels").glob("*.txt"):
        text = path.read_text()
        path.write_text(
            text.replace("/", "\\") if spoil != "mark" else text,
            encoding="utf-8" if spoil == "backslashes" else "utf-8-sig",
        )
    after = open_classification(spec("dtd", root), None)
    assert (after.digest, after.classes) == (before.digest, before.classes)


@pytest.mark.parametrize(("listed", "stored"), [(ONE, TWO), (TWO, ONE), (ONE, ONE), (TWO, TWO)])
def test_a_list_and_the_disk_write_accents_in_different_forms(tmp_path, listed, stored):
    write_images(tmp_path / "im" / "bar", 1, 0)
    write_images(tmp_path / "im" / stored, 2, 1)
    (tmp_path / "im" / stored / "1.jpg").rename(tmp_path / "im" / stored / f"{listed}.jpg")
    (tmp_path / "r.py").write_text(
        f"def read(root):\n    return {{'train': [('bar/0.jpg', 'bar'), ('{listed}/0.jpg', 'cup'), "
        f"('{listed}\\\\{stored}.jpg', 'cup')]}}\n"
    )
    data = open_classification(spec(f"{tmp_path}/r.py:read", tmp_path / "im"), None)
    assert [data.train.encoded(index) for index in range(3)] == [encoded(0, 0), encoded(1, 0), encoded(1, 1)]


def test_a_missing_file_keeps_its_name(tmp_path):
    assert listed_path(tmp_path, f"{ONE}/a\\b.jpg") == f"{ONE}/a/b.jpg"
    (tmp_path / "a\\b.jpg").touch()
    assert listed_path(tmp_path, "a\\b.jpg") == "a\\b.jpg"
