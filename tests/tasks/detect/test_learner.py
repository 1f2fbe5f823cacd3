import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from backbones.attention import HeadNorm
from tasks.detect.learner import collate
from tasks.detect.pipelines import DetectionImages, train_transforms
from tasks.detect.training import say_cost
from tests.support import context, fit_options
from tests.tasks.detect.scenes import a_learner, split_of
from transfer.core.settings import CONFIGS, read_yaml
from transfer.engine import dist
from transfer.engine.cost import duration

SIZE = (64, 96)
CPU = torch.device("cpu")
RECIPE = read_yaml(CONFIGS / "tasks" / "detect.yaml")


def a_batch(folder, *scenes):
    """Packed samples of images that fill the size."""
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


@pytest.mark.parametrize("detector", ["mask_rcnn_light", "retinanet"])
def test_a_batch_without_objects_trains_every_parameter(tmp_path, detector):
    """Crops lose all objects at times; DDP waits for the gradient of each parameter."""
    learner = a_learner(detector)
    batch = learner.prepare(a_batch(tmp_path, ((96, 64), []), ((96, 64), [])), CPU)
    assert [len(sample.gt_instances) for sample in batch["data_samples"]] == [0, 0]
    losses = losses_of(learner, batch)
    assert all(value.isfinite() for value in losses.values())
    losses["loss"].backward()
    trained = {name: parameter for name, parameter in learner.named_parameters() if parameter.requires_grad}
    assert not [name for name, parameter in trained.items() if parameter.grad is None]
    assert all(parameter.grad.isfinite().all() for parameter in trained.values())


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


@pytest.mark.parametrize(("pyramid", "depth"), [("simple", 12), ("taps", 4)])
def test_layer_decay_is_vitdets(pyramid, depth):
    """As in its published configuration: 0.7^(13 - id), id 0 of stem and positions, i + 1 of block i, 13 of the rest.

    Blocks behind the last tap (the fourth here) are taken out, and do not count.
    """
    learner = a_learner(depth=12, relative=True, stem="conv", pyramid=pyramid)
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
