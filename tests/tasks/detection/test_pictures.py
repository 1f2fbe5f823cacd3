import numpy as np
import pytest
from PIL import Image, ImageColor

from backbones.errors import UserError
from tasks.detection.pictures import ALWAYS, COLOURS, MISSED, SHOWN, draw_detections, iou, judged, save_pictures
from tests.tasks.detection.scenes import scene

NAMES = {3: "cup", 7: "cow", 11: "牛"}


def found(box, score=0.9, category=7):
    return {"image_id": 1, "category_id": category, "bbox": box, "score": score}


def canvas(tmp_path, name="a.png", size=(200, 150), colour=(255, 255, 255)):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    scene(size, (0, 0, *size), colour=colour).save(path)
    return str(path)


def of_colour(image, category):
    """bool [H, W] the pixels in the colour of a category."""
    return (np.asarray(image) == ImageColor.getrgb(COLOURS[category % len(COLOURS)])).all(2)


def test_a_box_is_outlined_where_it_is(tmp_path):
    drawn = of_colour(draw_detections(canvas(tmp_path), [found([20.0, 30.0, 100.0, 60.0])], NAMES), 7)
    inner = np.zeros_like(drawn)
    inner[32:88, 22:118] = True
    frame = np.zeros_like(drawn)
    frame[30:90, 20:120] = True
    frame &= ~inner
    assert drawn[80:, :][frame[80:, :]].all(), "below the label"
    assert drawn[frame].mean() > 0.9
    assert not drawn[~(frame | inner)].any()
    assert not drawn[60:88, 22:118].any()


def test_a_label_stands_in_the_corner_and_names_class_and_score(tmp_path):
    path, box = canvas(tmp_path), [20.0, 30.0, 150.0, 90.0]
    images = {
        words: np.asarray(draw_detections(path, [found(box, *words)], {**NAMES, 15: "dog"}))
        for words in ((0.9, 7), (0.9, 15), (0.8, 7), (0.9001, 7))
    }
    first = images.pop((0.9, 7))
    assert np.array_equal(first, images.pop((0.9001, 7)))
    for other in images.values():  # 7 and 15 share a colour
        changed = np.argwhere((first != other).any(2))
        assert len(changed)
        assert (changed >= (30, 20)).all()
        assert (changed < (45, 90)).all()
    assert of_colour(first, 7)[31:45, 22:60].mean() > 0.3


@pytest.mark.parametrize("box", [[190, 140, 10, 10], [-5, -5, 10, 10], [195, -3, 10, 40], [0, 0, 200, 150]])
def test_labels_stay_within_the_image(tmp_path, box):
    """All of the letters is there, wherever the box is; they alone have blue."""
    path, blue = canvas(tmp_path, colour=(0, 0, 0)), []
    for place in (box, [60, 60, 10, 10]):
        blue.append((np.asarray(draw_detections(path, [found(place)], NAMES))[:, :, 2] > 100).sum())
    assert blue[0] == blue[1] > 20


def test_a_box_around_the_whole_image_can_be_seen_on_all_sides(tmp_path):
    drawn = of_colour(draw_detections(canvas(tmp_path), [found([0, 0, 200, 150])], NAMES), 7)
    assert drawn[-1].all()
    assert drawn[:, -1].all()


def test_what_is_below_the_threshold_is_left_out_but_for_the_best(tmp_path):
    path, box = canvas(tmp_path), [20.0, 30.0, 100.0, 60.0]
    others = [found([150.0, 100.0, 20.0, 20.0], 0.9 - place / 10) for place in range(ALWAYS)]

    def drawn(*results):
        return np.asarray(draw_detections(path, [*results], NAMES))

    assert np.array_equal(drawn(*others, found(box, SHOWN - 1e-6)), drawn(*others))
    assert not np.array_equal(drawn(*others, found(box, SHOWN)), drawn(*others))
    assert not np.array_equal(drawn(found(box, 0.01)), drawn())
    assert np.array_equal(drawn(), np.asarray(Image.open(path)))


def test_the_best_detection_lies_on_top(tmp_path):
    box = [20.0, 30.0, 100.0, 60.0]
    both = [found(box, 0.9, category=7), found(box, 0.5, category=3)]
    for given in (both, both[::-1]):
        drawn = draw_detections(canvas(tmp_path), given, NAMES)
        assert of_colour(drawn, 7)[89].sum() == 100
        assert not of_colour(drawn, 3)[89].any()


@pytest.mark.parametrize("box", [[20.0, 30.0, 0.0, 0.0], [20.4, 30.4, 0.3, 0.3], [-50.0, -50.0, 500.0, 500.0]])
def test_odd_boxes_and_names_of_any_script(tmp_path, box):
    assert draw_detections(canvas(tmp_path), [found(box, category=11)], NAMES).size == (200, 150)


def test_every_image_has_a_picture_of_its_own(tmp_path):
    paths = [
        canvas(tmp_path, name, colour=(10 * place, 0, 0))
        for place, name in enumerate(("one/a.png", "two/a.png", "two/a.bmp", "two/a-2.png", "two/b.png"))
    ]
    folder = tmp_path / "pictures"
    for _ in range(2):  # over those of an earlier run
        save_pictures(folder, [(path, [], []) for path in paths], NAMES)
        reds = {file.name: Image.open(file).getpixel((0, 0))[0] for file in folder.glob("*.png")}
        assert sorted(reds.values()) == [0, 10, 20, 30, 40]
        assert (reds["a.png"], reds["b.png"]) == (0, 40)
    save_pictures(tmp_path / "none", [], NAMES)
    assert list((tmp_path / "none").iterdir()) == []


def test_an_image_that_cannot_be_read_and_a_folder_that_cannot_be_written(tmp_path):
    path = canvas(tmp_path)
    with pytest.raises(UserError, match=r"gone\.png: cannot be read"):
        save_pictures(tmp_path / "pictures", [(path, [], []), (str(tmp_path / "gone.png"), [], [])], NAMES)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: cannot be written"):
        save_pictures(tmp_path / "file", [(path, [])], NAMES)


def item(box, category=7, crowd=0):
    return {"image_id": 1, "category_id": category, "bbox": box, "iscrowd": crowd}


def test_each_object_is_covered_once_by_the_surest_box_of_its_class():
    box, near, far = [10.0, 10.0, 40.0, 40.0], [12.0, 10.0, 40.0, 40.0], [120.0, 80.0, 30.0, 30.0]
    results = [found(box, 0.9), found(near, 0.8), found(box, 0.7, category=3), found(far, 0.6)]
    right, missed = judged(results, [item(near), item(far, category=3), item([0, 0, 200, 150], crowd=1)])
    assert right == [True, False, False, False], "a second box, another class, and nothing there"
    assert [one["category_id"] for one in missed] == [3], "a crowd is no object"
    assert judged([], []) == ([], [])


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([0, 0, 10, 10], [0, 0, 10, 10], 1.0),
        ([0, 0, 10, 10], [5, 0, 10, 10], 50 / 150),
        ([0, 0, 10, 10], [10, 0, 10, 10], 0.0),
        ([0, 0, 10, 10], [20, 20, 1, 1], 0.0),
        ([0, 0, 0, 0], [0, 0, 0, 0], 0.0),
    ],
)
def test_iou_of_boxes(one, other, expected):
    assert iou(one, other) == pytest.approx(expected)


def test_false_alarms_are_dashed_and_missed_objects_are_drawn(tmp_path):
    path, box = canvas(tmp_path), [20.0, 30.0, 150.0, 100.0]
    right = of_colour(draw_detections(path, [found(box)], NAMES, [item(box)]), 7)
    false = of_colour(draw_detections(path, [found(box)], NAMES, []), 7)
    assert right[129, 20:170].all(), "whole where it is right"
    assert 0.3 < false[129, 20:170].mean() < 0.8, "dashed where it is not"
    missed = np.asarray(draw_detections(path, [], NAMES, [item(box)]))
    grey = (missed == ImageColor.getrgb(MISSED)).all(2)
    assert 0.3 < grey[129, 20:170].mean() < 0.8
    assert not of_colour(draw_detections(path, [], NAMES, [item(box)]), 7).any()
