"""Detectors and their learner, and the detections of images.

Half precision ends where the heads do: boxes, scores, proposals and suppression are those of float32.
"""

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from backbones.attention import HeadNorm
from tasks.detect.detectors import SimplePyramid, TapScales
from tasks.detect.learner import collate, detect, finite_outputs, neck_and_heads, sizes_in_network
from tasks.detect.pipelines import DetectionImages, train_transforms
from tasks.detect.task import resolve_detector
from tasks.detect.training import say_cost
from tests.support import context, fit_options
from tests.tasks.detect.scenes import CATEGORIES, a_learner, data_of, split_of
from transfer.core.process import Ranks
from transfer.core.settings import CONFIGS, config_names, read_yaml
from transfer.engine import dist
from transfer.engine.cost import duration
from transfer.engine.extract import NotFinite

SIZE = (64, 96)
CPU = torch.device("cpu")
RECIPE = read_yaml(CONFIGS / "tasks" / "detect.yaml")


def a_batch(folder, *scenes):
    """Packed samples of images, which fill the size where none are given."""
    scenes = scenes or (((96, 64), [(10, 10, 40, 30)]), ((96, 64), [(50, 5, 30, 50), (4, 30, 20, 20)]))
    images = DetectionImages(split_of(folder, *scenes), train_transforms("resize", SIZE, 0.0, True))
    return collate([images[0, index, 0] for index in range(len(images))])


def losses_of(learner, batch, seed=0):
    torch.manual_seed(seed)
    return learner.train()(batch, 1)


@pytest.mark.parametrize("detector", ["mask_rcnn_light", "faster_rcnn_light", "retinanet"])
def test_the_loss_is_the_sum_of_finite_parts(tmp_path, detector):
    learner = a_learner(detector)
    batch = learner.prepare(a_batch(tmp_path), CPU)
    losses = losses_of(learner, batch)
    torch.manual_seed(0)
    theirs, _ = learner.detector.parse_losses(learner.detector.loss(batch["inputs"], batch["data_samples"]))
    total = losses.pop("loss")
    assert total.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert all(name.split(".")[-1].startswith("loss") and value.ndim == 0 for name, value in losses.items())
    assert ("loss_mask" in losses) == (detector == "mask_rcnn_light")
    assert len(losses) == {"mask_rcnn_light": 5, "faster_rcnn_light": 4, "retinanet": 2}[detector]
    assert all(math.isfinite(value.item()) and value.item() > 0 for value in losses.values())
    assert total.item() == pytest.approx(sum(value.item() for value in losses.values()), rel=1e-6)


def test_a_training_that_takes_long_on_a_cpu_says_its_cost(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    learner = a_learner("mask_rcnn")
    for size in ((1024, 1024), (64, 96)):
        say_cost(learner, SimpleNamespace(size=size, batch_size=16, epochs=3), 2, context())
    (said,) = capsys.readouterr().err.splitlines()
    work = 3 * 16 * learner.dense_flops((1024, 1024)) / 1e12
    assert work == pytest.approx(10.4, rel=0.1)
    assert f"a step of 16 images takes about {duration(work / 0.02 / torch.get_num_threads())} (" in said


def test_images_of_different_sizes_are_padded_with_the_mean_at_the_bottom_and_right(tmp_path):
    batch = a_batch(tmp_path, ((96, 64), [(10, 10, 40, 30)]), ((64, 96), [(5, 50, 30, 30)]))
    learner = a_learner()
    prepared = learner.prepare(batch, CPU)
    assert prepared["inputs"].shape == (2, 3, 96, 96)
    assert learner.padded((90, 65)) == (96, 96)
    mean = torch.tensor(learner.backbone.spec.mean)[:, None, None]
    assert torch.equal(prepared["inputs"][0, :, 64:], mean.expand(3, 32, 96))
    assert torch.equal(prepared["inputs"][1, :, :, 64:], mean.expand(3, 96, 32))
    assert [sample.gt_instances.masks.masks.shape for sample in prepared["data_samples"]] == [(1, 96, 96)] * 2


@pytest.mark.parametrize("pyramid", ["simple", "taps"])
@pytest.mark.parametrize("detector", ["mask_rcnn_light", "retinanet"])
def test_a_batch_without_objects_trains_every_parameter(tmp_path, detector, pyramid):
    """Crops lose all objects at times; DDP waits for the gradient of each parameter."""
    learner = a_learner(detector, pyramid=pyramid, depth=4)
    batch = learner.prepare(a_batch(tmp_path, ((96, 64), []), ((96, 64), [])), CPU)
    assert [len(sample.gt_instances) for sample in batch["data_samples"]] == [0, 0]
    losses = losses_of(learner, batch)
    assert all(value.isfinite() for value in losses.values())
    losses["loss"].backward()
    trained = {name: parameter for name, parameter in learner.named_parameters() if parameter.requires_grad}
    assert not [name for name, parameter in trained.items() if parameter.grad is None]
    assert all(parameter.grad.isfinite().all() for parameter in trained.values())
    frozen = {name for name, _ in learner.named_parameters()} - trained.keys()
    assert "detector.backbone.maps.backbone.model.cls_token" in frozen
    # RetinaNet's levels begin at stride 8
    unused = [name for name in frozen if name.startswith("detector.backbone.scales.")]
    assert bool(unused) == (detector == "retinanet" and pyramid == "taps")


def groups_of(learner, **given):
    recipe = {name: RECIPE[name] for name in ("weight_decay", "layer_decay", "optimizer", "lr", "bias_lr_factor")}
    options = fit_options(**{**recipe, "no_decay": tuple(RECIPE["no_decay"]), **given})
    names = {parameter: name for name, parameter in learner.named_parameters()}
    found = {}
    for group in learner.parameter_groups(options):
        for parameter in group["params"]:
            assert names[parameter] not in found
            found[names[parameter]] = group
    return found


@pytest.mark.parametrize("pyramid", ["simple", "taps"])
def test_layer_decay_is_vitdets(pyramid):
    """As in its published configuration: 0.7^(13 - id), id 0 of stem and positions, i + 1 of block i, else 13."""
    depth = 12
    learner = a_learner(depth=depth, relative=True, stem="conv", pyramid=pyramid)
    found = groups_of(learner)
    assert found.keys() == {name for name, one in learner.named_parameters() if one.requires_grad}
    inside = "detector.backbone.maps.backbone.model."
    layers = set()
    for name, group in found.items():
        parts = name.removeprefix(inside).split(".")
        layer = depth + 1
        if name.startswith(inside):
            layer = int(parts[1]) + 1 if parts[0] == "blocks" else {"patch_embed": 0, "pos_embed": 0}[parts[0]]
        layers.add(layer)
        assert group["scale"] == pytest.approx(0.7 ** (depth + 1 - layer)), name
    assert layers == {*range(depth + 2)}
    assert any(name.startswith("detector.backbone.scales.") for name in found) == (pyramid == "taps")


@pytest.mark.parametrize("stem", ["patchify", "conv"])
def test_norms_of_the_backbone_positions_and_learned_scalars_do_not_decay_all_else_does(stem):
    """detectron2's rule for ViTDet: torch's norms and `pos_embed`; channel-wise norms of pyramid and heads decay."""
    learner = a_learner(depth=2, stem=stem, attention="relu", alpha="learned", qk_norm=True)
    torchs = (nn.LayerNorm, nn.modules.batchnorm._BatchNorm, HeadNorm)
    free = {
        f"{prefix}.{name}"
        for prefix, module in learner.backbone.named_modules(prefix="detector.backbone.maps.backbone")
        if isinstance(module, torchs)
        for name, _ in module.named_parameters(recurse=False)
    }
    found = groups_of(learner)
    free |= {name for name in found if name.endswith((".pos_embed", ".alpha", ".beta"))}
    spared = {name for name, group in found.items() if group["weight_decay"] == 0}
    assert spared == free & found.keys()
    assert len(spared) == 1 + 2 * (2 * 2 + 2 + 1) + (6 if stem == "conv" else 0)
    assert {group["weight_decay"] for group in found.values()} == {0, RECIPE["weight_decay"]}


def statistics(learner):
    return [buffer.clone() for name, buffer in learner.named_buffers() if "running_" in name]


@pytest.mark.parametrize("synchronised", [False, True])
@pytest.mark.parametrize("norm_eval", [True, False])
def test_batch_norms_of_the_stem_keep_their_statistics_if_asked(tmp_path, norm_eval, synchronised):
    learner = a_learner("faster_rcnn_light", stem="conv", norm_eval=norm_eval)
    if synchronised:
        dist.synchronise_batch_norm(learner, CPU)
    before = statistics(learner)
    assert len(before) >= 6
    losses = losses_of(learner, learner.prepare(a_batch(tmp_path), CPU))
    kept = [torch.equal(one, other) for one, other in zip(before, statistics(learner), strict=True)]
    assert kept == [norm_eval] * len(before)
    losses["loss"].backward()
    norms = [one for one in learner.backbone.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
    assert all(norm.weight.grad is not None for norm in norms), "scales and shifts train either way"
    learner.eval()
    assert not any(module.training for module in learner.modules())


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


def test_boxes_return_to_the_pixels_of_the_stored_image(learner, data, monkeypatch):
    """From what leaves the heads for each image, in pixels of the resized image."""
    kept, predicted, expected = [], learner.detector.predict, []

    def noting(inputs, samples):
        kept.extend(learner.detector.__class__.predict(learner.detector, inputs, copy.deepcopy(samples), rescale=False))
        return predicted(inputs, samples)

    monkeypatch.setattr(learner.detector, "predict", noting)
    results = found_by(learner, data)
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


@pytest.mark.parametrize("name", ["mask_rcnn_light", "retinanet"])
def test_heads_answer_in_float32_in_training_and_prediction(tmp_path, name: str) -> None:
    learner = a_learner(name)
    kinds = set()

    def note(head, given, output) -> None:
        parts = [output] if isinstance(output, torch.Tensor) else [*output]
        kinds.update(part.dtype for one in parts for part in ([one] if isinstance(one, torch.Tensor) else one))

    for head in neck_and_heads(learner.detector):
        head.register_forward_hook(note)
    batch = learner.prepare(a_batch(tmp_path, SCENES[0]), CPU)
    with torch.autocast("cpu", torch.bfloat16):
        losses = learner.train()(batch, 1)
        with torch.inference_mode():
            learner.eval().detector.predict(batch["inputs"], batch["data_samples"])
    assert kinds == {torch.float32}
    assert {loss.dtype for loss in losses.values()} == {torch.float32}


@pytest.mark.parametrize("part", ["neck", "rpn_head", "mask_head"])
def test_outputs_that_are_not_finite_are_seen(data, part: str) -> None:
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


@pytest.mark.parametrize("name", config_names("detectors"))
def test_every_shipped_detector_is_built_and_knows_its_classes(name: str) -> None:
    detector = a_learner(name).detector
    levels = detector.extract_feat(torch.rand(1, 3, 64, 96))
    anchors = (getattr(detector, "rpn_head", None) or detector.bbox_head).prior_generator
    assert len(levels) == anchors.num_levels
    assert [96 // level.shape[3] for level in levels][:3] == [stride[0] for stride in anchors.strides][:3]
    assert all(level.dtype == torch.float32 for level in levels)
    assert detector.with_mask == resolve_detector(name).masks
    counts = {module.num_classes for module in detector.modules() if hasattr(module, "num_classes")} - {0, 1}
    assert counts == {len(CATEGORIES)}


def test_pyramids_and_models_with_stages() -> None:
    assert isinstance(a_learner("faster_rcnn_light").detector.neck, SimplePyramid)
    for given in ({"pyramid": "taps", "depth": 4}, {"name": "test_resnet"}):
        detector = a_learner("faster_rcnn_light", **given).detector
        assert type(detector.neck).__name__ == "FPN"
        assert [level.shape[3] for level in detector.extract_feat(torch.rand(1, 3, 64, 96))][:4] == [24, 12, 6, 3]


@pytest.mark.parametrize("stride", [4, 8, 16])
def test_levels_have_their_strides(stride: int) -> None:
    maps = [torch.rand(1, 32, 128 // stride, 64 // stride) for _ in range(4)]
    levels = SimplePyramid(32, stride, 8)(maps)
    assert [tuple(level.shape[1:]) for level in levels] == [(8, 128 // s, 64 // s) for s in (4, 8, 16, 32, 64)]
    retina = SimplePyramid(32, stride, 8, (8, 16, 32, 64, 128))(maps)
    assert [level.shape[2] for level in retina] == [16, 8, 4, 2, 1]
    taps = TapScales(32, stride)
    found = taps(maps)
    assert [level.shape[2] for level in found] == [32, 16, 8, 4]
    assert [level.shape[1] for level in found] == taps.channels
