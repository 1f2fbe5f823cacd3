"""Half precision ends where a detector's heads do: boxes, scores, proposals and suppression are float32's."""

import types

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from torchvision.ops import box_iou

from backbones.backbone import create
from backbones.runtime.finite import NotFinite
from tasks.detection.coco.scores import evaluate, scores
from tasks.detection.detector_specs import resolve_detector
from tasks.detection.detectors import build_detector
from tasks.detection.feature_maps import MapOptions, make_maps
from tasks.detection.learner import collate
from tasks.detection.mixed_precision import finite_outputs, heads
from tasks.detection.pipelines import DetectionImages, train_transforms
from tasks.detection.predict import results_of
from tests.tasks.detection.scenes import a_learner, data_of, split_of
from tests.tasks.detection.test_predict import SCENES, SIZE, found_by

HEIGHT, WIDTH, CLASSES, COPIES = 512, 1024, 80, 3
BF16 = {"device_type": "cpu", "dtype": torch.bfloat16}


def built(name: str, classes: int = CLASSES):
    torch.manual_seed(0)
    maps = make_maps(create("tiny", weights="random", depth=1), MapOptions(taps=(-1,)))
    return build_detector(resolve_detector(name), maps, "simple", classes).eval()


def a_truth(rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes of one image [8, 4] with corners anywhere, none near another, and their classes, two of which rank high."""
    boxes = []
    for x in range(0, WIDTH, WIDTH // 4):
        for y in range(0, HEIGHT, HEIGHT // 2):
            sides = 2 ** rng.uniform(3.5, 7.5, 2)
            near = np.array([x, y]) + rng.uniform(5, 245 - sides)
            boxes.append([*near, *(near + sides)])
    return torch.tensor(boxes, dtype=torch.float32), torch.tensor([*rng.integers(0, CLASSES, 6), 40, CLASSES - 1])


class Oracle:
    """Stands for the outputs of a head: deltas that lead to the truth, and nearly there from other anchors, in bf16."""

    def __init__(self, detector, boxes, labels) -> None:
        self.detector, self.boxes, self.labels = detector, boxes, labels
        self.regions = torch.zeros(0, 5)
        dense = getattr(detector, "rpn_head", None) or detector.bbox_head
        dense.forward = types.MethodType(self.of_anchors, dense)
        if hasattr(detector, "roi_head"):
            detector.roi_head.bbox_roi_extractor.register_forward_pre_hook(self.note)
            detector.roi_head.bbox_head.forward = types.MethodType(self.of_regions, detector.roi_head.bbox_head)

    def note(self, extractor, given) -> None:
        self.regions = given[1][:, 1:].float()

    def of_anchors(self, head, levels):
        sizes = [level.shape[2:] for level in levels]
        anchors = head.prior_generator.grid_priors(sizes, device="cpu")
        every, classes = torch.cat(anchors), head.cls_out_channels
        logits, deltas = torch.full((len(every), classes), -9.0), torch.zeros(len(every), 4)
        best = box_iou(self.boxes, every).topk(COPIES).indices
        for box, label, places in zip(self.boxes, self.labels, best):
            for copy, place in enumerate(places):
                logits[place, label if classes > 1 else 0] = 5.3 - copy
                shifted = box + copy * 0.02 * (box[2:] - box[:2]).repeat(2)
                deltas[place] = head.bbox_coder.encode(every[place, None], shifted[None])[0]
        cuts = [len(one) for one in anchors]
        found = []
        for values in (logits, deltas):
            parts = zip(values.split(cuts), sizes)
            found.append([part.view(*size, -1).permute(2, 0, 1)[None].bfloat16() for part, size in parts])
        return tuple(found)

    def of_regions(self, head, features):
        overlap, whose = box_iou(self.regions, self.boxes).max(1)
        logits = torch.zeros(len(whose), CLASSES + 1)
        logits[torch.arange(len(whose)), self.labels[whose]] = torch.where(overlap > 0.7, 4 + 5 * overlap, -9)
        deltas = head.bbox_coder.encode(self.regions, self.boxes[whose]) * (overlap > 0.7)[:, None]
        return logits.bfloat16(), deltas.repeat(1, CLASSES).bfloat16()


def found_in(detector, levels, image: int):
    """COCO's results of `predict` under autocast, for an image that no resizing has touched."""
    about = {"img_shape": (HEIGHT, WIDTH), "ori_shape": (HEIGHT, WIDTH), "scale_factor": (1.0, 1.0), "img_id": image}
    detector.extract_feat = lambda _: levels
    sample = DetDataSample(metainfo={**about, "batch_input_shape": (HEIGHT, WIDTH)})
    with torch.inference_mode(), torch.autocast(**BF16):
        return results_of(detector.predict(None, [sample])[0], range(CLASSES))


@pytest.mark.parametrize("name", ["retinanet", "faster_rcnn_light"])
def test_deltas_of_the_truth_score_all_and_leave_no_two_boxes_of_a_class_on_one_object(name: str) -> None:
    rng = np.random.default_rng(0)
    detector = built(name)
    levels = tuple(level.float() for level in detector.extract_feat(torch.zeros(1, 3, HEIGHT, WIDTH)))
    images, objects, results = [], [], []
    for image in range(4):
        boxes, labels = a_truth(rng)
        Oracle(detector, boxes, labels)
        results += found_in(detector, levels, image)
        images.append({"id": image, "file_name": f"{image}.png", "height": HEIGHT, "width": WIDTH})
        for (x, y, right, bottom), label in zip(boxes.double().tolist(), labels.tolist()):
            box = {"bbox": [x, y, right - x, bottom - y], "area": (right - x) * (bottom - y)}
            objects.append({**box, "id": len(objects), "image_id": image, "category_id": label, "iscrowd": 0})
    truth = {"images": images, "annotations": objects, "categories": [{"id": one} for one in range(CLASSES)]}
    confident = [one for one in results if one["score"] > 0.5]
    assert scores(evaluate(truth, confident, "bbox"))["box_AP"] == pytest.approx(1, abs=1e-12)
    assert overlaps(results) <= 0.5


def overlaps(results) -> float:
    """The largest IoU of two results of one class and image, in float64."""
    groups: dict[tuple[int, int], list[list[float]]] = {}
    for one in results:
        x, y, width, height = one["bbox"]
        groups.setdefault((one["image_id"], one["category_id"]), []).append([x, y, x + width, y + height])
    tables = [torch.tensor(group, dtype=torch.float64) for group in groups.values()]
    return max(float((box_iou(table, table) - 2 * torch.eye(len(table))).max()) for table in tables)


@pytest.mark.parametrize("name", ["mask_rcnn_light", "retinanet"])
def test_heads_answer_in_float32_in_training_and_prediction(tmp_path, name: str) -> None:
    learner = a_learner(name)
    kinds = set()

    def note(head, given, output) -> None:
        parts = [output] if isinstance(output, torch.Tensor) else [*output]
        kinds.update(part.dtype for one in parts for part in ([one] if isinstance(one, torch.Tensor) else one))

    for head in heads(learner.detector):
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
    assert not learner.detector.neck._forward_hooks
    with finite_outputs(learner.detector):
        pass
