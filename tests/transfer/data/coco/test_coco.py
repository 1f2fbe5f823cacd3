import json
import shutil

import pytest
from PIL import Image, ImageOps

from tests.transfer.data.coco.coco_tree import changed, content, objects, opened, outline, spec, written
from tests.transfer.data.reid.layouts import replaced
from transfer.core.errors import UserError
from transfer.data.coco.dataset import open_coco
from transfer.data.spec import resolve_dataset


def test_a_whole_set(tmp_path):
    data = opened(written(tmp_path))
    assert (data.classes, data.category_ids) == (("ant", "bee", "cow"), (2, 7, 9))
    train = data.train
    assert [image.id for image in train.images] == [101, 102, 103, 104]
    assert train.path(3).endswith("train4.jpg")
    assert train.ids.tolist() == [2, 1, 3, 4]
    assert train.image.tolist() == [0, 1, 1, 2]
    assert train.label.tolist() == [0, 2, 1, 1]
    assert train.trained.tolist() == [True, True, False, True]
    assert [train.ids[train.rows(index)].tolist() for index in range(4)] == [[2], [1, 3], [4], []]
    assert data.masks
    split = {"images": 4, "objects": 3, "crowds": 1}
    assert data.counts == {"train": split, "val": split, "classes": 3}
    assert {name: count for name, count in data.dropped["train"].items() if count} == {"crowds": 1}


def test_as_coco_gives_back_what_was_written(tmp_path):
    data = opened(written(tmp_path))
    for split in ("train", "val"):
        given, back = content(split), data.as_coco(getattr(data, split))
        assert json.loads(json.dumps(back)) == back  # no numpy numbers are left in it
        for key in ("images", "annotations", "categories"):
            assert sorted(back[key], key=lambda one: one["id"]) == sorted(given[key], key=lambda one: one["id"])


def test_names_of_ones_own(tmp_path):
    root = written(tmp_path / "own", layout="labels/{}.json")
    shutil.move(root / "train2017", root / "pictures")
    options = {f"{split}_annotations": f"labels/{split}.json" for split in ("train", "val")}
    options["train_images"] = "pictures"
    data = open_coco(spec(root, options=options), None)
    assert data.train.path(0) == f"{root}/pictures/train1.jpg"
    assert data.val.file == root / "labels" / "val.json"
    del options["val_annotations"]
    with pytest.raises(UserError, match=r"tiny: no validation split: .*_val2017.json not found; set `val_annotations`"):
        open_coco(spec(root, options=options), None)


def test_an_export_of_roboflow(tmp_path):
    plain, root = opened(written(tmp_path / "plain")), written(tmp_path / "x", layout="{}2017/_annotations.coco.json")
    (root / "train2017").rename(root / "train")
    (root / "val2017").rename(root / "valid")
    shutil.copytree(root / "valid", root / "test")
    for name, scored in (("valid", "valid/, not test/"), ("test", "test/")):
        for described in (resolve_dataset(str(root)), spec(root)):
            data = open_coco(described, None)
            assert data.as_coco(data.train) == plain.as_coco(plain.train)
            assert (data.val.folder, data.as_coco(data.val)) == (root / name, plain.as_coco(plain.val))
            assert data.notes == (f"evaluated on {scored}",)
        shutil.rmtree(root / "valid", ignore_errors=True)
    options = {"train_annotations": "train/_annotations.coco.json", "val_annotations": "test/_annotations.coco.json"}
    data = open_coco(spec(root, options=options), None)
    assert (data.train.folder, data.val.folder) == (root / "train", root / "test")


def test_categories_of_one_split_alone_are_classes(tmp_path):
    other = content("val") | {"annotations": content("val")["annotations"][1:]}
    other["categories"][0] = {"id": 4, "name": "fly"}
    data, whole = opened(written(tmp_path / "some", val=other)), opened(written(tmp_path / "whole"))
    assert (data.classes, data.category_ids) == (("ant", "fly", "bee", "cow"), (2, 4, 7, 9))
    assert data.as_coco(data.train)["annotations"] == whole.as_coco(whole.train)["annotations"]
    assert [data.category_ids[label] for label in data.val.label] == [2, 7, 7]
    assert data.notes == (
        "categories in only one split (id, name): (4, 'fly'), (9, 'cow')",
        "2 of 4 classes without a validation object count in no average, as in COCO: fly, cow",
    )


def test_a_class_that_is_scored_without_being_trained_on_is_noted(tmp_path):
    given = content("train") | {"annotations": content("train")["annotations"][1:]}  # cow has no object
    root = written(tmp_path, train=given)
    data = opened(root)
    assert data.notes == ("1 of 3 classes without a training object lower AP: cow",)
    assert [counts.tolist() for _, _, counts in data.labelled().values()] == [[1, 1], [1, 1, 1]]
    assert opened(root, trained=False).notes == ()


CROWDS = {name: [one | {"iscrowd": 1} for one in content(name)["annotations"]] for name in ("train", "val")}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("train", {"annotations": CROWDS["train"]}, "of 4 training images no object can be trained on"),
        ("val", {"annotations": CROWDS["val"]}, "of 4 validation images no object can be scored: 4 are"),
        ("val", {"annotations": [], "images": []}, "of 0 validation images no object"),
        ("val", {"annotations": [], "categories": [{"id": 9, "name": "crow"}]}, r"have .*\(9, 'cow'\), \(9, 'crow'\)"),
    ],
)
def test_categories_that_contradict_and_nothing_to_score_by_or_to_train_on(tmp_path, name, change, said):
    with pytest.raises(UserError, match=rf"{name}2017\.json:? {said}"):
        opened(written(tmp_path, **{name: content(name) | change}))


def test_odd_boxes_are_counted_and_scored_as_they_are(tmp_path):
    boxes = [[5, 5, 0, 9], [5, 5, 9, 0], [40, 3, 5, 5], [-9, -9, 4, 4]]
    boxes += [[-5, 20, 10, 30], [38, 1, 2.001, 3], [1, 1, 5, 5], [9, 9, 5, 0.75]]
    given = content("train") | {"annotations": objects(*((101, 2, box) for box in boxes))}
    data = opened(written(tmp_path, train=given))
    dropped = {name: count for name, count in data.dropped["train"].items() if count}
    assert dropped == {"no_area": 2, "outside": 2, "below_pixel": 1, "clipped": 1}
    assert data.train.trained.tolist() == [False] * 4 + [True] * 3 + [False]
    assert data.train.clipped_boxes[4:7].tolist() == [[0, 20, 5, 10], [38, 1, 2, 3], [1, 1, 5, 5]]
    assert [one["bbox"] for one in data.as_coco(data.train)["annotations"]] == boxes


def test_short_polygons(tmp_path):
    line, (square,) = [1, 1, 9, 9], outline(1, 1, 8, 8)
    masks = [[line, square], [line], [], None]
    given = objects(*((101, 2, [1, 1, 8, 8], {"segmentation": mask}) for mask in masks))
    given[3].pop("segmentation")
    given[3].pop("iscrowd")
    data = opened(written(tmp_path, train=content("train") | {"annotations": given}))
    assert list(data.train.segmentations) == [[square], None, None, None]
    assert data.train.trained.all()
    assert (data.dropped["train"]["short_polygons"], data.dropped["train"]["left_without_polygon"]) == (2, 1)
    assert not data.masks


def turned_tree(root, orientation, size):
    """The tiny set, whose first training image has an EXIF orientation and is stored in a size (W, H)."""
    root = written(root)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.effect_noise(size, 80).convert("RGB").save(root / "train2017" / "train1.jpg", exif=exif, quality=95)
    return root


TURNS = [(6, (30, 40), ["apply"]), (5, (40, 30), ["ignore"]), (3, (40, 30), ["apply", "ignore"])]


@pytest.mark.parametrize(("orientation", "stored", "fitting"), TURNS)
@pytest.mark.parametrize("exif", ["apply", "ignore", None])
def test_exif_orientation_is_applied_or_ignored_by_the_set(tmp_path, orientation, stored, fitting, exif):
    """A set is read as its annotations describe it: as PIL's `exif_transpose` turns its images, or as stored."""
    root = turned_tree(tmp_path, orientation, stored)
    described = spec(root, options={"exif": exif} if exif else {})
    if (exif or "ignore") not in fitting:
        with pytest.raises(UserError, match=rf"train1\.jpg: .*stated 40 x 30\n[^`]*`exif: {fitting[0]}`") as caught:
            open_coco(described, None)
        assert "correct" not in str(caught.value)
        return
    data = open_coco(described, None)
    if orientation == 3:
        assert (data.digest == opened(root).digest) == (exif != "apply")
    with Image.open(root / "train2017" / "train1.jpg") as image:
        expected = ImageOps.exif_transpose(image) if exif == "apply" else image
        assert data.train.read(0).tobytes() == expected.tobytes()
    (note,) = data.notes
    assert note.endswith("opened upright" if exif == "apply" else "read as stored")
    assert ("(`exif: ignore`): 1" in note) == (exif != "apply")


def test_sizes_with_width_and_height_swapped_are_named_as_that(tmp_path):
    with pytest.raises(UserError, match=r"train1\.jpg: 30 x 40, stated 40 x 30[\s\S]*swapped, and `exif` does not"):
        opened(turned_tree(tmp_path, 1, (30, 40)))


def test_damaged_images(tmp_path):
    root = written(tmp_path)
    whole = opened(root)
    first, second = root / "train2017" / "train2.jpg", root / "val2017" / "val4.jpg"
    first.write_bytes(first.read_bytes()[:-40])  # the header is whole
    second.write_bytes(b"")
    with pytest.raises(UserError, match=r"1 of 4 images cannot be read[\s\S]*--drop-corrupt"):
        opened(root)
    data = opened(root, drop_corrupt=True)
    assert (data.skipped, "train2.jpg" in str(data.notes)) == (2, True)
    assert [image.id for image in data.train.images] == [101, 103, 104]
    assert data.train.image.tolist() == [0, 1]
    assert data.train.ids.tolist() == [2, 4]
    assert list(data.train.segmentations) == [outline(1.5, 2.5, 10, 10), outline(0, 0, 40, 30)]
    assert data.counts["train"] == {"images": 3, "objects": 2, "crowds": 0}
    assert data.digest != whole.digest


def test_the_digest_knows_content_and_not_the_place(tmp_path):
    one, two = opened(written(tmp_path / "one")), opened(written(tmp_path / "two"))
    assert one.digest == two.digest
    moved = opened(written(tmp_path / "three", train=changed("annotations", 0, bbox=[5, 4, 10, 10])))
    assert moved.digest != one.digest
    replaced(tmp_path / "two" / "val2017" / "val1.jpg")
    assert opened(tmp_path / "two").digest != one.digest


def test_subsets_take_images_with_objects_first_and_are_nested(tmp_path):
    root = written(tmp_path)
    chosen = [opened(root, subset=count) for count in (1, 2, 3, 4)]
    for split in ("train", "val"):
        ids = [{image.id % 100 for image in getattr(data, split).images} for data in chosen]
        assert ids[0] < ids[1] < ids[2] == {1, 2, 3} < ids[3]
    assert len({data.digest for data in chosen}) == 4
    assert chosen[3].digest == opened(root).digest
    with pytest.raises(UserError, match="4 training and 4 validation images"):
        opened(root, subset=5)
