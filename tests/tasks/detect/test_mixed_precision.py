"""Half precision ends where a detector's heads do: boxes, scores, proposals and suppression are float32's."""

import pytest
import torch

from tasks.detect.learner import collate, finite_outputs, neck_and_heads
from tasks.detect.pipelines import DetectionImages, train_transforms
from tests.tasks.detect.scenes import a_learner, data_of, split_of
from tests.tasks.detect.test_predict import SCENES, SIZE, found_by
from transfer.engine.extract import NotFinite

HEIGHT, WIDTH, CLASSES, COPIES = 512, 1024, 80, 3
BF16 = {"device_type": "cpu", "dtype": torch.bfloat16}


@pytest.mark.parametrize("name", ["mask_rcnn_light", "retinanet"])
def test_heads_answer_in_float32_in_training_and_prediction(tmp_path, name: str) -> None:
    learner = a_learner(name)
    kinds = set()

    def note(head, given, output) -> None:
        parts = [output] if isinstance(output, torch.Tensor) else [*output]
        kinds.update(part.dtype for one in parts for part in ([one] if isinstance(one, torch.Tensor) else one))

    for head in neck_and_heads(learner.detector):
        head.register_forward_hook(note)
    images = DetectionImages(split_of(tmp_path, SCENES[0]), train_transforms("resize", SIZE, 0.0, True))
    batch = learner.prepare(collate([images[0, 0, 0]]), torch.device("cpu"))
    with torch.autocast(**BF16):
        losses = learner.train()(batch, 1)
        with torch.inference_mode():
            learner.eval().detector.predict(batch["inputs"], batch["data_samples"])
    assert kinds == {torch.float32}
    assert {loss.dtype for loss in losses.values()} == {torch.float32}


@pytest.mark.parametrize("part", ["neck", "rpn_head", "mask_head"])
def test_outputs_that_are_not_finite_are_seen(tmp_path, part: str) -> None:
    data = data_of(split_of(tmp_path, *SCENES))
    learner = a_learner()
    where = next(module for name, module in learner.detector.named_modules() if name.endswith(part))
    weights = [one for one in where.parameters() if one.ndim > 1]
    with torch.no_grad():
        weights[-1].flatten()[0] = torch.nan
    with pytest.raises(NotFinite, match=r"0\.png"):
        found_by(learner, data)
    assert len(learner.detector.neck._forward_hooks) == 1  # that of `widen`
    with finite_outputs(learner.detector):
        pass
