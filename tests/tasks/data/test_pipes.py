"""Named pipes in data sets of tasks are errors with their names, not waits without end."""

import os
from pathlib import Path

import pytest

from backbones.data.spec import DatasetNotFound
from backbones.errors import UserError
from tasks.data.coco import open_coco
from tasks.data.reid import open_reid
from tests.support import ends_at_once
from tests.tasks.data.coco_tree import opened, written
from tests.tasks.data.coco_tree import spec as coco_spec
from tests.tasks.data.layouts import market, msmt17, spec

OF_GALLERY = "bounding_box_test/0003_c3s3_064744_04.jpg"


def piped(path: Path) -> Path:
    path.unlink()
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("image", ["train2017/train2.jpg", "val2017/val4.jpg"])
def test_among_the_images_of_coco(tmp_path: Path, image: str, skip: bool) -> None:
    path = piped(written(tmp_path) / image)
    with ends_at_once(path), pytest.raises(UserError, match=rf"{path}: not a regular file"):
        opened(tmp_path, skip_unreadable=skip)
    with ends_at_once(path), pytest.raises(UserError, match=rf"{path}: not a regular file"):
        opened(tmp_path, subset=2, skip_unreadable=skip)


def test_in_place_of_an_image_that_was_there(tmp_path: Path) -> None:
    coco, people = opened(written(tmp_path / "coco")), open_reid(spec(market(tmp_path / "market")), None)
    image, person = piped(Path(coco.val.path(0))), piped(Path(people.query[0].path))
    with ends_at_once(image), pytest.raises(UserError, match=rf"{image}: cannot be read: not a regular file"):
        coco.val.read(0)
    with ends_at_once(person), pytest.raises(UserError, match=rf"{person}: cannot be read: not a regular file"):
        people.read(str(person))


def test_in_place_of_coco_annotations(tmp_path: Path) -> None:
    path = piped(written(tmp_path) / "annotations" / "instances_val2017.json")
    with ends_at_once(path), pytest.raises(DatasetNotFound, match=r"missing annotations/instances_val2017\.json"):
        opened(tmp_path)
    named = coco_spec(tmp_path, options={"val_annotations": f"annotations/{path.name}"})
    with ends_at_once(path), pytest.raises(DatasetNotFound, match=rf"missing annotations/{path.name}"):
        open_coco(named, None)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("image", ["query/0003_c1s6_015971_00.jpg", OF_GALLERY])
def test_among_the_images_of_reid(tmp_path: Path, image: str, skip: bool) -> None:
    path = piped(market(tmp_path / "set") / image)
    with ends_at_once(path), pytest.raises(UserError, match=rf"{path}: not a regular file"):
        open_reid(spec(tmp_path / "set"), None, skip_unreadable=skip)


@pytest.mark.parametrize("name", ["train", "val", "query", "gallery"])
def test_in_place_of_a_list_of_msmt17(tmp_path: Path, name: str) -> None:
    path = piped(msmt17(tmp_path / "set") / f"list_{name}.txt")
    with ends_at_once(path), pytest.raises(UserError, match=rf"list_{name}\.txt"):
        open_reid(spec(tmp_path / "set", "msmt17"), None)
