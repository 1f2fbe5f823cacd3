import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasks.detect.learner import detect, sizes_in_network
from tests.support import context
from tests.tasks.detect.scenes import CATEGORIES, a_learner, data_of, split_of
from transfer.core.process import Ranks
from transfer.engine import dist
from transfer.engine.extract import NotFinite

SIZE = (64, 96)
SCENES = (
    ((120, 80), [(70, 10, 40, 30)]),
    ((50, 77), [(8, 30, 30, 40)]),
    ((33, 31), []),
    ((200, 45), [(100, 5, 60, 35), (10, 10, 20, 20)]),
    ((64, 64), [(10, 10, 40, 30)]),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return data_of(split_of(tmp_path_factory.mktemp("scenes"), *SCENES))


@pytest.fixture(scope="module")
def learner():
    """Weights are random, so about anything is found everywhere."""
    return a_learner()


def found_by(learner, data, *, batch_size=1, padded=False, **given):
    options: Any = SimpleNamespace(size=SIZE, eval_batch_size=batch_size, resize_mode="jitter" if padded else "resize")
    return detect(learner, data, options, context(**given))


def in_the_network(learner, data, monkeypatch):
    """What leaves the heads for each image, in pixels of the resized image, beside what `detect` makes of it."""
    kept, predicted = [], learner.detector.predict

    def noting(inputs, samples):
        kept.extend(learner.detector.__class__.predict(learner.detector, inputs, copy.deepcopy(samples), rescale=False))
        return predicted(inputs, samples)

    monkeypatch.setattr(learner.detector, "predict", noting)
    return kept, found_by(learner, data)


def test_boxes_return_to_the_pixels_of_the_stored_image(learner, data, monkeypatch):
    kept, results = in_the_network(learner, data, monkeypatch)
    expected = []
    for sample, ((width, height), _), image in zip(kept, SCENES, data.val.images, strict=True):
        factor = min(64 / min(width, height), 96 / max(width, height))
        factors = int(width * factor + 0.5) / width, int(height * factor + 0.5) / height  # whole pixels
        one = sample.pred_instances
        for box, label, score in zip(one.bboxes.tolist(), one.labels.tolist(), one.scores.tolist(), strict=True):
            x, y, right, bottom = (side / factors[place % 2] for place, side in enumerate(box))
            assert -1e-3 <= x <= right <= width + 1e-3
            assert -1e-3 <= y <= bottom <= height + 1e-3
            expected.append((image.id, [*CATEGORIES][label], score, [x, y, right - x, bottom - y]))
    assert len(results) == len(expected) > 50
    for result, (image, category, score, box) in zip(results, expected):
        assert (result["image_id"], result["category_id"]) == (image, category)
        assert result["score"] == pytest.approx(score)
        assert result["bbox"] == pytest.approx(box, abs=1e-3)
    assert {result["category_id"] for result in results} <= {*CATEGORIES}


def test_ranks_together_find_what_one_finds(learner, data, monkeypatch):
    alone, parts = found_by(learner, data, batch_size=2), []
    monkeypatch.setattr(dist, "gather_objects", lambda value: parts.append(value) or [value])
    for rank in range(2):
        found_by(learner, data, batch_size=2, ranks=Ranks(rank, 2, rank, 2))
    monkeypatch.setattr(dist, "gather_objects", lambda value: parts)
    together = found_by(learner, data, batch_size=2)
    assert together == alone
    order = [result["image_id"] for result in alone]
    assert order == sorted(order)


@pytest.mark.parametrize("padded", [False, True])
def test_sizes_are_known_before_an_image_is_read(learner, data, padded):
    seen = []
    handle = learner.detector.backbone.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[2:]))
    found_by(learner, data, padded=padded)
    handle.remove()
    assert [tuple(shape) for shape in seen] == sizes_in_network(data.val, SIZE, 32, padded=padded)


@pytest.mark.parametrize("padded", [False, True])
def test_what_is_found_does_not_hang_on_the_images_of_a_batch(tmp_path, padded):
    """Sizes that differ after resizing, and random positions, which are resampled to the grid of an image."""
    learner = a_learner("faster_rcnn_light")
    torch.nn.init.normal_(learner.backbone.model.pos_embed, std=0.5)
    data = data_of(split_of(tmp_path, *SCENES, *SCENES[:3]))
    alone = found_by(learner, data, padded=padded)
    several = found_by(learner, data, batch_size=3, padded=padded)
    assert len(several) == len(alone)
    for one, other in zip(several, alone):
        assert (one["image_id"], one["category_id"]) == (other["image_id"], other["category_id"])
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)
        assert one["bbox"] == pytest.approx(other["bbox"], abs=1e-3)


def test_of_a_batch_the_image_that_is_not_finite_is_named(tmp_path):
    data = data_of(split_of(tmp_path, *[((96, 64), [(0, 0, width, 60)]) for width in (20, 30, 80, 40)]))
    learner = a_learner("faster_rcnn_light")

    def breaking(module, given, maps):
        """Where most of an image is red."""
        return tuple(torch.where((given[0][:, 0].mean((1, 2)) > 0.5).view(-1, 1, 1, 1), torch.nan, one) for one in maps)

    learner.detector.backbone.register_forward_hook(breaking)
    with pytest.raises(NotFinite, match=r"^boxes, scores or masks: not finite for 2\.png$"):
        found_by(learner, data, batch_size=4)
