from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tasks.fewshot.task import SupportSets, draw_support_sets, image_digest
from transfer.core.errors import UserError
from transfer.data.classification import ClassificationData, open_classification
from transfer.data.spec import DatasetSpec


def folder_of(tmp_path, sizes: dict[str, int], test: int = 2):
    """A folder with this many different images of each class, all of them noise."""
    random = np.random.default_rng(0)
    for split, counts in (("train", sizes), ("test", dict.fromkeys(sizes, test))):
        for name, count in counts.items():
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{number:03d}.png")
    return tmp_path


def opened(folder) -> ClassificationData:
    spec = DatasetSpec(name="noise", format="image_folder", root=(str(folder),), overlap="allow")
    return open_classification(spec, None)


def contents(sets: SupportSets, draw: int, shots: int) -> set[bytes]:
    return {sets.train[index] for index in sets.support(draw, shots)}


@pytest.mark.parametrize("rule", ["digest", "bigvision"])
def test_sets_are_nested_cover_every_class_and_differ_between_draws(tmp_path, rule) -> None:
    data = opened(folder_of(tmp_path, {"a": 12, "b": 9, "c": 30}))
    sets = draw_support_sets(data, rule=rule, draws=3, shots=(10, 1, 5), select=2)
    for draw in range(3):
        one, five, ten = (sets.support(draw, shots) for shots in (1, 5, 10))
        assert {*one} < {*five} < {*ten}
        assert np.bincount(data.train.labels[five]).tolist() == [5, 5, 5]
        assert np.bincount(data.train.labels[ten]).tolist() == [10, 9, 10]
        assert not {*ten} & {*sets.selection(draw)}
        assert np.bincount(data.train.labels[sets.selection(draw)]).tolist() == [2, 0, 2]
        assert {*ten} | {*sets.selection(draw)} <= {*sets.needed()}
    assert len({tuple(sorted(sets.support(draw, 5))) for draw in range(3)}) == 3
    facts = sets.facts(data.train.labels)
    assert facts["classes_with_fewer"] == {"1": 0, "5": 0, "10": 1}
    assert facts["images"] == {"1": 3, "5": 15, "10": 29}


def test_a_digest_draw_knows_no_file_names(tmp_path) -> None:
    before = opened(folder_of(tmp_path / "x", {"a": 12, "b": 9}))
    sets = draw_support_sets(before, rule="digest", draws=2, shots=(1, 5))
    for number, path in enumerate(sorted((tmp_path / "x/train/a").iterdir(), reverse=True)):
        path.rename(path.with_name(f"renamed{number:02d}.png"))
    (tmp_path / "x/train/b").rename(tmp_path / "x/train/B0")
    (tmp_path / "x/test/b").rename(tmp_path / "x/test/B0")
    after = opened(tmp_path / "x")
    assert after.classes != before.classes
    renamed = draw_support_sets(after, rule="digest", draws=2, shots=(1, 5))
    for draw, shots in ((0, 1), (0, 5), (1, 1), (1, 5)):
        assert contents(renamed, draw, shots) == contents(sets, draw, shots)
    assert renamed.digest == sets.digest
    assert draw_support_sets(after, rule="digest", draws=2, shots=(1, 4)).digest != sets.digest
    assert draw_support_sets(after, rule="bigvision", draws=2, shots=(1, 5)).digest != sets.digest


def test_an_image_that_occurs_twice_is_drawn_once_and_counted(tmp_path) -> None:
    folder = folder_of(tmp_path, {"a": 3, "b": 3})
    for copy in ("train/a/copy.png", "train/b/other.png", "test/b/leak.png"):
        (folder / copy).write_bytes((folder / "train/a/000.png").read_bytes())
    sets = draw_support_sets(opened(folder), rule="digest", draws=1, shots=(4,))
    assert len(sets.support(0, 4)) == 3 + 4
    duplicates = sets.facts(opened(folder).train.labels)["duplicates"]
    assert duplicates == {"train": 2, "train_of_several_classes": 1, "test_also_in_train": 1, "test": 0}


def test_a_class_without_training_images(tmp_path) -> None:
    data = opened(folder_of(tmp_path, {"a": 3, "b": 3}))
    data = replace(data, train=data.train.select(np.arange(3)))
    with pytest.raises(UserError, match=r"noise: 1 class.* no training image to draw: b"):
        draw_support_sets(data, rule="digest", draws=1, shots=(1,))


def test_the_digest_of_the_images_sees_contents_labels_and_order(tmp_path) -> None:
    data = opened(folder_of(tmp_path, {"a": 3, "b": 3}))
    digest = image_digest(data, ordered=False)
    backwards = replace(data, train=data.train.select(np.arange(6)[::-1]))
    assert image_digest(backwards, ordered=False) == digest
    assert image_digest(backwards, ordered=True) != image_digest(data, ordered=True)
    relabelled = replace(data, train=replace(data.train, labels=data.train.labels[::-1].copy()))
    assert image_digest(relabelled, ordered=False) != digest
    assert image_digest(replace(data, val=data.train), ordered=False) != digest
    path = tmp_path / "test/b/000.png"
    path.write_bytes((tmp_path / "test/b/001.png").read_bytes())
    assert image_digest(opened(tmp_path), ordered=False) != digest


def test_nothing_left_to_choose_on(tmp_path) -> None:
    data = opened(folder_of(tmp_path, {"a": 3, "b": 2}))
    with pytest.raises(UserError, match=r"more than 3 training images.*lower --shots"):
        draw_support_sets(data, rule="digest", draws=1, shots=(1, 3), select=1)
    assert len(draw_support_sets(data, rule="digest", draws=1, shots=(2,), select=1).selection(0)) == 1
