from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from tasks.reid.pictures import FRAME, GAP, HEIGHT, QUERY, RIGHT, WRONG, picture, save_pictures
from transfer.core.errors import UserError
from transfer.core.pictures import RANKED, RankedLists, evenly, picture_name

QUERIES = [("q/a.jpg", 7, 1), ("q/b.jpg", 8, 2)]
GALLERY = [("g/a.jpg", 7, 2), ("g/never.jpg", 7, 3), ("g/c.jpg", 8, 1), ("g/d.jpg", -1, 1)]
NEAREST = np.array([[2, 0, 3], [3, 2, -1]])


def lists() -> RankedLists:
    return RankedLists.from_ranking(NEAREST, QUERIES, GALLERY, NEAREST / 7)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The images of the lists, each in one color."""
    for name, _, _ in (*QUERIES, *GALLERY):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (32, 64), (0, 120, 0)).save(tmp_path / name, "PNG")
    return tmp_path


@pytest.mark.parametrize(("total", "count"), [(10, 3), (10, 10), (3, 10), (1, 1), (10, 1), (1000, 7)])
def test_queries_are_evenly_spaced(total: int, count: int) -> None:
    found = evenly(total, count)
    assert len(found) == len(set(found)) == min(total, count)
    assert found[0] == 0
    assert max(np.diff(found), default=0) - min(np.diff(found), default=0) <= 1
    assert found[-1] == total - 1 or count == 1


def test_a_picture_shows_the_query_and_marks_each_place(root: Path) -> None:
    pixels = np.asarray(picture(lists(), 0, root))
    width = HEIGHT // 2 + 2 * FRAME
    starts = [0, *(2 * GAP + width + place * (width + GAP) for place in range(3))]
    for start, color in zip(starts, (QUERY, WRONG, RIGHT, WRONG)):
        assert tuple(pixels[1, start + 1]) == ImageColor.getrgb(color)
        assert tuple(pixels[FRAME + HEIGHT // 2, start + width // 2]) == (0, 120, 0)
    assert picture(lists(), 1, root).width == picture(lists(), 0, root).width - width - GAP


def test_pictures_of_a_run_and_what_keeps_them_from_being_drawn(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with pytest.raises(UserError, match=r"ranked\.npz: cannot be read"):
        save_pictures(folder, root, 2)
    lists().save(folder / RANKED)
    save_pictures(folder, root, 5)
    assert sorted(path.name for path in (folder / "pictures").iterdir()) == [picture_name(0), picture_name(1)]
    with Image.open(folder / "pictures" / picture_name(1)) as image:
        assert image.format == "JPEG"
    (root / "g/a.jpg").unlink()
    with pytest.raises(UserError, match=r"a\.jpg: cannot be read"):
        save_pictures(folder, root, 1)
