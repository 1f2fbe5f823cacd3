import numpy as np
import pytest
from PIL import Image, ImageColor

from tasks.detect.pictures import ALWAYS, COLORS, OBJECT, SHOWN, draw_detections, save_pictures
from tests.tasks.detect.scenes import an_object, data_of, described_split, scene

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
    drawn = of_color(draw_detections(canvas(tmp_path), *given, NAMES), OBJECT if kind == "object" else COLORS[7])
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
    assert of_color(drawn(found(BOX, 0.5, category=3), found(BOX)), COLORS[7])[89].sum() == 100


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
