"""Files in COCO's format as people have them, against COCO's own form and pycocotools; their index; faults in them."""

import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tasks.detect.coco.averages import pair_detections, scores
from tests.tasks.detect.coco.cases import official, same
from tests.transfer.data.coco.coco_tree import CROWD, changed, content, objects, opened, spec, written
from transfer.core import cache
from transfer.core.cache import cache_folder
from transfer.core.errors import UsageError, UserError
from transfer.data.coco import annotations
from transfer.data.coco.annotations import read_coco_split
from transfer.data.coco.dataset import open_coco
from transfer.data.coco.split import Segmentations


def each(key, **change):
    """Change a field of all entries of a list: by a function, to a value, or take it out (...)."""

    def made(given):
        for entry in given[key]:
            for name, value in change.items():
                entry[name] = value(entry[name]) if callable(value) else value
            for name in [name for name, value in entry.items() if value is ...]:
                del entry[name]

    return made


def form(root, *changes):
    splits = {split: content(split) for split in ("train", "val")}
    for change in changes:
        for given in splits.values():
            change(given)
    return opened(written(root, **splits))


def plain(data):
    return [data.classes, data.category_ids, data.as_coco(data.train), data.as_coco(data.val)]


def addressed(given):
    """As LVIS names images."""
    for image in given["images"]:
        name = image.pop("file_name")
        image["coco_url"] = f"http://images.cocodataset.org/{name[:-5]}2017/{name}"


@pytest.mark.parametrize(
    "change",
    [
        each("images", id=float, width=float, height=str),
        each("images", id=lambda number: f"{number:06d}", width="40.0"),
        each("annotations", id=str, image_id=float, category_id=str, area=str),
        each("annotations", iscrowd=str, ignore=None),
        each("annotations", iscrowd=bool, ignore="0"),
        each("images", file_name=lambda name: f"{name[:-5]}2017\\{name}"),
        each("images", file_name=lambda name: f"{name[:-5]}2017/{name}"),
        each("images", file_name=lambda name: f"~/form/{name[:-5]}2017/{name}"),
        each("images", file_name=lambda name: str(Path.home() / "form" / f"{name[:-5]}2017" / name)),
        each("annotations", segmentation=lambda one: one if one is CROWD else [list(map(str, one[0]))]),
        addressed,
    ],
)
def test_numbers_as_text_or_with_a_point_are_the_numbers_and_images_have_any_name(change, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    expected, found = plain(form(tmp_path / "plain")), plain(form(tmp_path / "form", change))
    for images in (expected[2]["images"], expected[3]["images"], found[2]["images"], found[3]["images"]):
        for image in images:
            image["file_name"] = image["file_name"].rpartition("/")[2]
    assert found == expected


@pytest.mark.parametrize("value", [..., None, float("nan")])
def test_a_missing_area_is_that_of_the_mask_or_box(value, tmp_path):
    from pycocotools import mask as masks
    from pycocotools.coco import COCO

    given = content("train") | {
        "annotations": objects(
            (101, 2, [1.5, 2.5, 10, 11], {"segmentation": []}),
            (101, 2, [4, 4, 21.5, 25], {"segmentation": [[4, 4, 14, 5.5, 11, 14], [20, 20, 25.5, 20, 25, 29]]}),
            (102, 2, [3, 5, 2, 10], {"segmentation": CROWD}),
            (103, 7, [3, 5, 2, 10], {"area": 7.25}),
        )
    }
    truth = COCO()
    truth.dataset = given
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
    expected = [110.0, *(float(masks.area(truth.annToRLE(truth.anns[number]))) for number in (2, 3)), 7.25]
    each("annotations", area=lambda area: area if area == 7.25 else value)(given)
    data = opened(written(tmp_path, train=given))
    assert data.train.areas.tolist() == expected
    assert data.notes[0] == "3 training objects have no `area`: it is that of the mask, or of the box without one"


def test_ignored_objects_are_not_trained_on_and_scored_as_by_pycocotools(tmp_path):
    boxes = [(101, [1, 1, 9, 9]), (101, [12, 1, 9, 9]), (101, [24, 1, 9, 9]), (101, [1, 15, 9, 9]), (102, [5, 5, 9, 9])]
    extra = [{"ignore": 1}, {}, {"ignore": 1, "iscrowd": 1, "segmentation": CROWD}, {"ignore": True}, {"ignore": 0}]
    given = objects(*((image, 2, box, more | {"area": 81}) for (image, box), more in zip(boxes, extra)))
    data = opened(written(tmp_path, train=content("train") | {"annotations": given}))
    assert data.train.trained.tolist() == [False, True, False, False, True]
    assert data.dropped["train"] | {"crowds": 1, "ignored": 2} == data.dropped["train"]
    results = [
        {"image_id": image, "category_id": 2, "bbox": box, "score": 1 - place / 9}
        for place, (image, box) in enumerate(boxes[1:])
    ]
    truth = json.loads(data.train.file.read_bytes())
    same(scores(pair_detections(replace(data, val=data.train), results, "bbox")), official(truth, results, "bbox"))
    assert data.notes[0].startswith("2 training objects have `ignore: 1`: not trained on")


def test_categories_of_one_name_are_one_class(tmp_path):
    """A root category without objects, as Roboflow writes it, and two that both have objects."""

    def rooted(given):
        given["categories"] += [{"id": 0, "name": "ant"}, {"id": 12, "name": "bee"}]
        given["annotations"][3]["category_id"] = 12

    data, alone = form(tmp_path / "rooted", rooted), form(tmp_path / "plain")
    assert plain(data) == plain(alone)
    assert data.counts == alone.counts
    assert data.notes == ("categories with the same name were merged: 0 is 2 (ant), 12 is 7 (bee)",)


def test_objects_that_nobody_trains_on_are_noted(tmp_path):
    shares = objects((201, 2, [0.1, 0.2, 0.5, 0.4]), (202, 2, [0.5, 0.5, 0.1, 0.2]), (202, 2, [1, 1, 9, 9]))
    flat = objects(*((101, 2, [1, 1, 9, 9], {"area": area}) for area in (0, 81, 0)))
    given = {"train": content("train") | {"annotations": flat}, "val": content("val") | {"annotations": shares}}
    assert opened(written(tmp_path, **given)).notes[:2] == (
        "2 training objects have area 0 or a side of 0: not trained on, scored as small; without `area` it is computed",
        "2 validation objects have a side below a pixel, as if divided by the image's size; COCO's boxes are in pixels",
    )


def without_polygons(given):
    given["annotations"][0]["bbox"] = [30, 5, 12.5, 9]  # beyond the image
    each("annotations", area=..., segmentation=...)(given)


@pytest.mark.parametrize("change", [lambda given: None, without_polygons])
def test_boxes_given_by_their_corners_are_an_error(change, tmp_path):
    rng = np.random.default_rng(0)
    sides = rng.integers(10, 20, (12, 2))
    boxes = np.concatenate([rng.integers(8, [20, 10], (12, 2)), sides], axis=1)
    right = objects(*((101, 2, box, {"area": float(box[2] * box[3])}) for box in boxes.tolist()))
    change({"annotations": right})
    wrong = [one | {"bbox": [*one["bbox"][:2], *np.add(one["bbox"][:2], one["bbox"][2:]).tolist()]} for one in right]
    data = opened(written(tmp_path / "right", train=content("train") | {"annotations": right}))
    assert data.train.trained.all()
    message = r"instances_train2017\.json: \d+ of 12 boxes are corners \(x1, y1, x2, y2\).*write width x2 - x1"
    with pytest.raises(UserError, match=message):
        opened(written(tmp_path / "wrong", train=content("train") | {"annotations": wrong}))


def shifted(box):
    """What an exporter wrote that took a polygon's first point for the sides."""
    return [box[0] / 2, box[1] / 2, box[0], box[1]]


def test_boxes_that_disagree_with_their_polygons_are_an_error_that_keys_settle(tmp_path):
    boxes = [[20, 4, 10, 8], [8, 15, 9, 9], [22, 16, 14, 12], [30, 3, 7, 20]]
    given = objects(*((101, 2, box) for box in boxes))
    each("annotations", bbox=shifted)({"annotations": given})
    root = written(tmp_path, train=content("train") | {"annotations": given})
    message = r"4 of 4 boxes disagree with their masks \(annotations 1, 2, 3 and 1 more\): .* `boxes: from_polygons`"
    with pytest.raises(UserError, match=message) as caught:
        opened(root)
    assert "x2 - x1" not in str(caught.value)
    settled = {key: open_coco(spec(root, options={"boxes": key}), None) for key in ("from_polygons", "in_file")}
    assert settled["from_polygons"].train.boxes.tolist() == boxes
    assert settled["in_file"].train.boxes.tolist() == [shifted(box) for box in boxes]
    assert settled["from_polygons"].digest != settled["in_file"].digest
    for key, choices in {"boxes": "from_polygons or in_file", "exif": "apply or ignore"}.items():
        with pytest.raises(UsageError, match=f"`{key}` is 'masks'; it must be {choices}"):
            open_coco(spec(root, options={key: "masks"}), None)


@pytest.mark.parametrize("change", [{"bbox": [30, 20, 9, 9]}, {"segmentation": CROWD | {"counts": [1200]}}])
def test_few_boxes_that_disagree_with_their_polygons_or_encodings_are_noted(change, tmp_path):
    def one(given):
        given["annotations"][1] |= change

    note = "training: 1 of 4 boxes disagree with their masks (annotations 2): the YAML key `boxes: from_polygons`"
    assert form(tmp_path, one).notes[0].startswith(note)


def test_compressed_encodings_of_pycocotools_fit_their_images(tmp_path):
    from pycocotools import mask as masks

    rng = np.random.default_rng(0)
    drawn = [np.asfortranarray(rng.random((30, 40)) < share, np.uint8) for share in (0.02, 0.5, 1)]
    texts = [masks.encode(mask)["counts"].decode() for mask in drawn]
    encoded = ({"segmentation": CROWD | {"counts": text}, "area": int(mask.sum())} for text, mask in zip(texts, drawn))
    given = objects(*((101, 2, [0, 0, 40, 30], fields) for fields in encoded))
    split = opened(written(tmp_path, train=content("train") | {"annotations": given})).train
    assert [mask["counts"] for mask in split.segmentations] == texts


def all_read(file):
    """Everything that is read of a file."""
    split, classes, dropped = read_coco_split("train", file, file.parent)
    facts = {name: np.asarray(value).tolist() for name, value in vars(split).items() if name != "segmentations"}
    return facts | {"masks": list(split.segmentations), "classes": classes, "dropped": dropped}


def test_the_index_gives_what_the_file_does_and_an_incomplete_one_is_ignored(tmp_path, monkeypatch):
    file = written(tmp_path) / "annotations" / "instances_train2017.json"
    monkeypatch.setattr(annotations, "INDEXED", 0)
    monkeypatch.setattr(cache, "SETTLED", -3600.0)  # as if the file was an hour old
    parsed, parse = [], annotations._parse
    monkeypatch.setattr(annotations, "_parse", lambda *given: parsed.append(file) or parse(*given))
    read, indexed = all_read(file), all_read(file)
    assert (read, len(read["images"]), len(parsed)) == (indexed, 4, 1)
    next((cache_folder() / "indexes").glob("*/label.npy")).unlink()
    assert (all_read(file), len(parsed)) == (read, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "not JSON"),
        ("[]", "the list `annotations`, `categories`, `images` is missing"),
        ('{"images": [], "categories": []}', "the list `annotations` is missing (files without"),
        (changed("images", 1, id="a1"), "`id` is 'a1'"),
        (changed("images", 1, width=40.5), "entry 1 of `images` (id 101): `width` is 40.5; it must be a whole"),
        (changed("annotations", 0, bbox=[1, 2, 3, float("nan")]), "`bbox` is [1, 2, 3, nan]"),
        (changed("annotations", 0, segmentation=[[1, 2, 3, 4, 5, float("inf")]]), "`segmentation` is [[1, 2, 3"),
        (changed("annotations", 0, area="large"), "`area` is 'large'; it must be a number"),
        (changed("annotations", 0, segmentation=[[1, 2, 3, 4, 5, 6, 7]]), "`segmentation` is [[1, 2, 3"),
        (changed("annotations", 0, segmentation=[[1, 1], [6, 1], [6, 6]]), "it must be a list of polygons [x, y, x,"),
        (changed("images", 0, id=101), "`images` has 1 duplicate values of `id`: 101"),
        (changed("images", 0, file_name="train1.jpg"), "duplicate values of `file_name`: train1.jpg"),
        (changed("annotations", 0, id=4), "`annotations` has 1 duplicate values of `id`: 4"),
        (changed("annotations", 0, image_id=999), "1 annotations have an `image_id` that `images` does not list: 999"),
        (changed("annotations", 0, category_id=3), "`category_id` that `categories` does not list: 3"),
        (changed("annotations", 2, segmentation=CROWD | {"size": [40, 30]}), "of 1200 pixels and of `size` [40"),
        (changed("annotations", 2, segmentation=CROWD | {"counts": [5]}), "annotation 3 is of 5 pixels"),
        (changed("annotations", 2, segmentation=CROWD | {"counts": "not"}), "(id 3): `segmentation` is {'size': [30"),
        (changed("annotations", 2, segmentation=CROWD | {"counts": [1210, -10]}), "(id 3): `segmentation` is {'size'"),
        (changed("annotations", 2, segmentation=CROWD | {"size": [30.0, 40]}), "(id 3): `segmentation` is {'size'"),
        (changed("annotations", 2, segmentation=CROWD | {"counts": "5"}), "annotation 3 is of 5 pixels"),
        (changed("annotations", 2, segmentation=CROWD | {"counts": "PPYo0"}), "annotation 3 is of "),
        (changed("annotations", 0, bbox=[9, 9, -4, 5]), "1 of 4 boxes have a negative width or height (annotations 1)")
    ]
)  # fmt: skip
def test_files_that_are_not_cocos(tmp_path, given, message):
    with pytest.raises(UserError, match=rf"instances_train2017\.json: .*{re.escape(message)}"):
        opened(written(tmp_path, train=given))


def test_values_come_back_as_they_were_and_parts_share_the_coordinates():
    values = [None, [[1.5, 0.1, 1e-9, 1e300, 2**52 + 1, 7], [9, 8, 7, 6, 5, 4, 3, 2]], CROWD]
    segmentations = Segmentations.collect(values)
    assert segmentations.present.tolist() == [False, True, True]
    chosen = segmentations.select(np.array([2, 0, 1])).select(np.array([2, 1, 0]))
    assert list(chosen) == [values[row] for row in (1, 0, 2)]
    assert chosen.block is segmentations.block
