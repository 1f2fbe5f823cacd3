"""Which objects train, what the others are to a detector, how images and objects are transformed, and pictures."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from tasks.detect import pipelines
from tasks.detect.pictures import ALWAYS, BOX_COLORS, OBJECT, SHOWN, draw_detections, save_pictures
from tasks.detect.pipelines import DetectionImages, as_mmdet_sample, train_transforms
from tests.tasks.detect.scenes import CATEGORIES, an_object, data_of, described_split, extent, polygon, scene, split_of
from transfer.core.errors import UserError
from transfer.core.seeding import seeded

LAND, TALL = (120, 80), (80, 120)  # width, height
SIZE = (64, 96)  # H, W, or short, long


def training(split, view="resize", size=SIZE, flip=0.0, masks=True, seed=0):
    return DetectionImages(split, train_transforms(view, size, flip, masks), seed=seed)


@pytest.mark.parametrize("view", ["resize", "jitter"])
@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize(
    ("image", "box"), [(LAND, (70, 10, 40, 30)), (TALL, (8, 60, 30, 48)), (LAND, (100, 60, 20, 20))]
)
def test_boxes_and_masks_stay_on_what_can_be_seen(tmp_path, image, box, view, masks):
    images = training(split_of(tmp_path, (image, [box])), view, flip=0.5, masks=masks)
    seen, flipped, sizes = 0, set(), set()
    for epoch in range(20):
        sample = images[epoch, 0, 0]
        visible, found = sample["inputs"][0].numpy() > 127, sample["data_samples"].gt_instances
        flipped.add(sample["data_samples"].flip)
        sizes.add(tuple(sample["data_samples"].img_shape))
        if not len(found):
            assert visible.sum() <= visible.shape[0], "at most a column of the object is left"
            continue
        seen += 1
        corners = found.bboxes.tensor[0]
        assert found.labels.tolist() == [0]
        assert (corners[:2] >= 0).all()
        assert (corners[2:] <= torch.tensor(visible.shape[::-1])).all()
        if not visible.any():
            assert (corners[2:] - corners[:2]).min() <= 1.5, "under half a pixel of it"
            continue
        np.testing.assert_allclose(corners.numpy(), extent(visible), atol=1.01)
        if masks:
            mask = found.masks.masks[0].astype(bool)
            assert mask.shape == visible.shape
            edge = 2 * sum(visible.any(axis).sum() for axis in (0, 1))
            assert (mask ^ visible).sum() <= edge
            np.testing.assert_allclose(corners.numpy(), extent(mask), atol=1.01)
    assert flipped == {True, False}
    assert seen == 20 if view == "resize" else seen > 7
    assert sizes == ({(64, 96) if image == LAND else (96, 64)} if view == "resize" else {SIZE})


def test_a_sample_is_a_function_of_seed_epoch_index_and_repeat(tmp_path):
    split = split_of(tmp_path, (LAND, [(20, 10, 60, 50)]), (TALL, [(8, 60, 30, 48)]))
    keys = [(epoch, index, repeat) for epoch in (0, 1) for index in (0, 1) for repeat in (0, 1)]
    images, other = (training(split, "jitter", flip=0.5, seed=seed) for seed in (0, 1))
    first = {key: images[key]["inputs"].numpy().tobytes() for key in keys}
    with seeded(99):
        assert {key: images[key]["inputs"].numpy().tobytes() for key in reversed(keys)} == first
    assert len({*first.values(), other[keys[0]]["inputs"].numpy().tobytes()}) == len(keys) + 1


def test_objects_are_clipped_and_those_that_cannot_be_trained_on_left_out(tmp_path):
    scene(LAND).save(tmp_path / "a.png")
    objects = [
        an_object((-10, -5, 30, 25), segmentation=polygon((0, 0, 20, 20)), category=3),
        an_object((10, 10, 0, 5), category=7),
        an_object((200, 10, 20, 5), category=7),
        an_object((100, 60, 50, 50), category=20),
    ]
    found = training(described_split(tmp_path, [("a.png", LAND, objects)]), size=(80, 120))[0, 0, 0]["data_samples"]
    assert found.gt_instances.bboxes.tensor.tolist() == [[0, 0, 20, 20], [100, 60, 120, 80]]
    assert found.gt_instances.labels.tolist() == [0, 2]
    assert len(found.ignored_instances) == 0


def test_damaged_and_changed_images_are_named(tmp_path):
    split = split_of(tmp_path, (LAND, [(20, 10, 60, 50)]))
    path = tmp_path / "0.png"
    images = training(split)
    Image.effect_noise(LAND, 90).convert("RGB").save(path, "JPEG", quality=95)
    for content in (path.read_bytes()[:-2000], b"no image"):
        path.write_bytes(content)
        for key in ((0, 0, 0), 0):
            with pytest.raises(UserError, match=r"0\.png: cannot be read"):
                images[key]
    scene(TALL).save(path)
    with pytest.raises(UserError, match=r"0\.png: \(80, 120\) pixels, but .*instances\.json states \(120, 80\)"):
        images[0, 0, 0]


@pytest.mark.parametrize("size", [(64, 96), (50, 200)])
@pytest.mark.parametrize("image", [LAND, TALL, (30, 200)])
def test_the_size_bounds_the_shorter_and_the_longer_side_however_the_image_lies(tmp_path, image, size):
    split = split_of(tmp_path, (image, [(0, 0, 20, 20)]))
    factor = min(size[0] / min(image), size[1] / max(image))
    expected = tuple(int(side * factor + 0.5) for side in image[::-1])
    scored = DetectionImages(split, pipelines.test_transforms(size))
    for sample in (training(split, size=size)[0, 0, 0], scored[0]):
        assert tuple(sample["inputs"].shape[1:]) == expected
        assert tuple(sample["data_samples"].img_shape) == expected


def test_scales_draw_the_shorter_side(tmp_path):
    images = training(split_of(tmp_path, ((40, 40), [(5, 5, 20, 20)])), "scales", (160, 240))
    assert {images[epoch, 0, 0]["inputs"].shape[1:] for epoch in range(40)} == {(n, n) for n in (96, 128, 160)}


def test_regions_without_masks_pass_the_crops(tmp_path):
    objects = [an_object((20, 10, 30, 30)), an_object((60, 20, 40, 40), iscrowd=1, segmentation=None)]
    scene(LAND).save(tmp_path / "a.png")
    images = training(described_split(tmp_path, [("a.png", LAND, objects)]), "jitter")
    regions = [images[0, 0, number]["data_samples"].ignored_instances.bboxes.tensor for number in range(20)]
    assert 10 < sum(map(len, regions)) <= 20
    assert all((boxes[:, 2:] - boxes[:, :2] > 1).all() for boxes in regions)


def test_objects_that_train_are_those_of_mmdetections_own_reader(tmp_path):
    """But for boxes, which are clipped here."""
    from mmdet.datasets import CocoDataset

    boxes = [(5, 5, 30, 20), (5, 5, 0.99, 20), (5, 5, 20, 0.5), (5, 5, 1, 1), (-0.5, 5, 1, 9), (119.9, 5, 9, 9),
             (120, 5, 9, 9), (5, -9, 9, 9), (-3, -3, 9, 9), (40, 40, 1.2, 1.2)]  # fmt: skip
    objects = list(map(an_object, boxes))
    objects += [an_object((50, 50, 9, 9), area=0.0), an_object((60, 60, 9, 9), area=-1.0)]
    objects += [an_object((70, 50, 9, 9), ignore=1), an_object((80, 50, 9, 9), ignore=1, iscrowd=1)]
    objects += [an_object((90, 50, 9, 9), ignore=0), an_object((95, 50, 9, 9), iscrowd=1)]
    split = described_split(tmp_path, [("a.png", LAND, objects)])
    about = {"metainfo": {"classes": tuple(CATEGORIES.values())}, "data_prefix": {"img": ""}, "pipeline": []}
    theirs = CocoDataset(ann_file=str(tmp_path / "instances.json"), **about).get_data_info(0)["instances"]
    ours = split.boxes[split.trained]
    corners = np.concatenate([ours[:, :2], ours[:, :2] + ours[:, 2:]], axis=1)
    assert corners.tolist() == [one["bbox"] for one in theirs if not one["ignore_flag"]]
    sample = as_mmdet_sample(split, 0)["instances"]
    assert [one["ignore_flag"] for one in sample] == [one["ignore_flag"] for one in theirs]
    assert 0 < len(ours) < len(objects)


NAMES = {3: "cup", 7: "cow", 11: "牛"}
BOX = [20.0, 30.0, 100.0, 60.0]


def found(box, score=0.9, category=7):
    return {"image_id": 1, "category_id": category, "bbox": box, "score": score}


def canvas(tmp_path, name="a.png", color=(255, 255, 255)):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    scene((200, 150), (0, 0, 200, 150), color=color).save(path)
    return Image.open(path)


def of_color(image, color):
    return (np.asarray(image) == ImageColor.getrgb(color)).all(2)


@pytest.mark.parametrize("kind", ["object", "detection"])
def test_a_box_is_outlined_where_it_is(tmp_path, kind):
    given = ([], [found(BOX)]) if kind == "object" else ([found(BOX)], [])
    drawn = of_color(draw_detections(canvas(tmp_path), *given, NAMES), OBJECT if kind == "object" else BOX_COLORS[7])
    assert drawn[88:90, 20:120].all()
    assert drawn[60:90, 118:120].all()
    assert not drawn[60:88, 22:118].any()
    assert not drawn[90:].any()


def test_of_poor_detections_the_best_are_shown_and_the_best_lies_on_top(tmp_path):
    others = [found([150.0, 100.0, 20.0, 20.0], 0.9 - place / 10) for place in range(ALWAYS)]

    def drawn(*results):
        return np.asarray(draw_detections(canvas(tmp_path), results, [], NAMES))

    assert np.array_equal(drawn(*others, found(BOX, SHOWN - 1e-6)), drawn(*others))
    assert not np.array_equal(drawn(*others, found(BOX, SHOWN)), drawn(*others))
    assert not np.array_equal(drawn(found(BOX, 0.01)), drawn())
    assert of_color(drawn(found(BOX, 0.5, category=3), found(BOX)), BOX_COLORS[7])[89].sum() == 100


@pytest.mark.parametrize("box", [[190, 140, 10, 10], [-50.0, -50.0, 500.0, 500.0], [20.4, 30.4, 0.3, 0.3]])
def test_odd_boxes_and_names_of_any_script(tmp_path, box):
    assert draw_detections(canvas(tmp_path), [found(box, category=11)], [], NAMES).size == (200, 150)


def test_the_first_images_have_pictures_of_different_names(tmp_path):
    names = ["a/b.jpg", "a-b.jpg", "a-b.png", "a%2Fb.jpg"]
    for name in names:
        canvas(tmp_path, name)
    data = data_of(described_split(tmp_path, [(name, (200, 150), [an_object((9, 9, 90, 90))]) for name in names]))
    for count in (1, 4):
        save_pictures(tmp_path / "pictures", data, [], count)
        assert len([*(tmp_path / "pictures").iterdir()]) == count
    assert (tmp_path / "pictures" / "a%2Fb.jpg.png").is_file()
