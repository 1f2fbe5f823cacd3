"""Test images among the training images: what each opener and the doctor say."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backbones.data.classification import open_classification
from backbones.data.spec import DatasetSpec, resolve_dataset
from backbones.data.toy.digits import TOYS
from backbones.errors import UserError
from tasks.data.coco import open_coco
from tasks.data.reid import open_reid
from tests.backbones.data.layouts import spec, write_folders, write_parquet
from tests.tasks.data import coco_tree, layouts
from transfer.doctor.__main__ import main as doctor


def copied(files: list[Path], onto: list[Path], count: int) -> None:
    for file, other in zip(files[:count], onto[:count], strict=True):
        shutil.copy(file, other)


def folders(root: Path, count: int) -> Any:
    write_folders(root, train=40, val=50)
    copied(sorted(root.glob("train/*/*")), sorted(root.glob("val/*/*"), reverse=True), count)
    return open_classification(spec("image_folder", root), None)


def rows(root: Path, count: int) -> Any:
    write_folders(root / "images", train=40, val=50)
    train, val = (sorted((root / "images").glob(f"{split}/*/*")) for split in ("train", "val"))
    for split, files in (("train", train), ("val", val[count:] + train[:count])):
        write_parquet(root / f"{split}.parquet", [(file.read_bytes(), n % 3) for n, file in enumerate(files)])
    return open_classification(spec("parquet", root), None)


def people(root: Path, count: int) -> Any:
    names = {"bounding_box_train": [f"{n:04}_c{c}s1_000151_01.jpg" for n in range(900, 940) for c in (1, 2)]}
    names |= {"query": [f"{n:04}_c1s1_000151_00.jpg" for n in range(1, 151)]}
    layouts.market(root, names | {"bounding_box_test": [f"{n:04}_c2s1_000151_00.jpg" for n in range(1, 151)]})
    copied(sorted(root.glob("bounding_box_train/*.jpg")), sorted(root.glob("bounding_box_test/*.jpg")), count)
    return open_reid(layouts.spec(root), None)


@pytest.mark.usefixtures("arrow_cache")
@pytest.mark.parametrize(("opened", "split"), [(folders, "val"), (rows, "val"), (people, "gallery")])
def test_from_one_percent_on_it_is_refused_and_below_noted(
    opened: Callable[[Path, int], Any], split: str, tmp_path: Path
) -> None:
    assert not [note for note in opened(tmp_path / "none", 0).notes if "training" in note]
    *_, note = opened(tmp_path / "few", 1).notes
    assert note.startswith(f"1 of 150 {split} images are also training images: ")
    with pytest.raises(UserError, match=rf"2 of 150 {split} images are also training images: .* = .*, .* = .*remove"):
        opened(tmp_path / "many", 2)


def test_detection_is_refused_unless_the_set_is_stated_to_be_a_self_test(tmp_path: Path) -> None:
    root = coco_tree.written(tmp_path)
    shutil.copy(root / "train2017" / "train3.jpg", root / "val2017" / "val1.jpg")
    with pytest.raises(UserError, match=r"1 of 4 val images are also training images: val1\.jpg = train3\.jpg;"):
        coco_tree.opened(root)
    data = open_coco(coco_tree.spec(root, overlap="allow"), None)
    assert data.notes == ("1 of 4 val images are also training images: val1.jpg = train3.jpg",)


def test_queries_in_the_gallery_under_other_cameras_are_noted(tmp_path: Path) -> None:
    root = layouts.market(tmp_path)
    copies = (root / "bounding_box_test" / name for name in ("0003_c3s3_064744_04.jpg", "0003_c1s6_015996_02.jpg"))
    for copy in copies:  # that of the query's own camera is junk
        shutil.copy(root / "query" / "0003_c1s6_015971_00.jpg", copy)
    (note,) = open_reid(layouts.spec(root), None).notes
    assert note == (
        "1 gallery images are copies of queries under other cameras: "
        "bounding_box_test/0003_c3s3_064744_04.jpg = query/0003_c1s6_015971_00.jpg"
    )


@pytest.mark.parametrize("name", [*TOYS, "toy_digits", "toy_market", "toy_msmt17", "toy_coco"])
def test_the_bundled_sets_have_no_overlap(name: str) -> None:
    dataset: DatasetSpec = resolve_dataset(name if name.startswith("toy") else f"toy_{name}")
    opener: Any = {"coco": open_coco, "market1501": open_reid, "msmt17": open_reid}.get(dataset.format)
    assert (opener or open_classification)(dataset, None).notes == ()


def test_the_doctor_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders(tmp_path / "few", 1)
    for name, overlap in (("few", "refuse"), ("many", "refuse"), ("test", "allow")):
        root = tmp_path / (name if name == "few" else "many")
        (tmp_path / f"{name}.yaml").write_text(f"format: image_folder\nroot: {root}\noverlap: {overlap}\n")
    with pytest.raises(UserError):
        folders(tmp_path / "many", 2)
    assert doctor(["data", *(str(tmp_path / f"{name}.yaml") for name in ("few", "many", "test"))]) == 1
    printed = capsys.readouterr().out
    assert "1 of 150 val images are also training images" in printed
    assert re.search(r"INCOMPLETE many\n +2 of 150 val images are also training images", printed)
    assert "ok         test: complete" in printed
