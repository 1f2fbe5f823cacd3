"""Every loss against its formula, written out for single images and classes; label maps follow crop and flip."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.mixup import Mixup
from torch.nn import functional
from torchvision.transforms.v2.functional import pil_to_tensor

from backbones.pretrain.supervised.losses import (
    constant_loss,
    mix,
    mixup_share,
    sigmoid_cross_entropy,
    soft_target_cross_entropy,
    token_label_losses,
)
from backbones.pretrain.supervised.method import MixOptions
from backbones.pretrain.supervised.token_labels import CropWithBox, LabelMaps, crop_targets
from transfer.core.errors import UsageError, UserError
from transfer.core.seeding import seeded
from transfer.data.splits.manifest import PackedNames
from transfer.data.splits.split import FileSplit


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_losses_of_half_precision_logits_are_computed_in_full() -> None:
    logits, targets = drawn(4, 1000).bfloat16(), drawn(4, 1000, seed=1).softmax(1)
    for loss in (soft_target_cross_entropy, sigmoid_cross_entropy):
        assert loss(logits, targets).dtype == torch.float32
        assert torch.equal(loss(logits, targets), loss(logits.float(), targets))


def test_mix_token_shares_the_class_targets_and_leaves_the_tokens_their_own() -> None:
    images, tokens, classes, box = 3, 16, 5, (1, 0, 3, 3)
    class_logits, token_logits = drawn(images, classes), drawn(images, tokens, classes, seed=1)
    targets, of_tokens = drawn(images, classes, seed=2).softmax(1), drawn(images, tokens, classes, seed=3).softmax(2)
    wanted = 10 / 16 * targets + 6 / 16 * targets.flip(0)
    first = functional.cross_entropy(class_logits, wanted)
    second = functional.cross_entropy(token_logits.flatten(0, 1), of_tokens.flatten(0, 1))
    found = token_label_losses(class_logits, token_logits, box, targets, of_tokens)
    assert torch.allclose(torch.stack(found), torch.stack([first, second]))
    alike = targets[:, None].expand(-1, tokens, -1)
    without = token_label_losses(class_logits, token_logits, box, targets)
    assert torch.allclose(without[1], token_label_losses(class_logits, token_logits, box, targets, alike)[1])


@pytest.mark.parametrize("sigmoid", [False, True])
def test_no_constant_prediction_does_better(sigmoid: bool) -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    targets = functional.one_hot(labels, 4) * 0.9 + 0.1 / 4
    prior = targets.mean(0)
    loss = sigmoid_cross_entropy if sigmoid else soft_target_cross_entropy
    best = prior.logit() if sigmoid else prior.log()
    level = constant_loss(prior, sigmoid=sigmoid)
    assert loss(best.expand(6, 4), targets).item() == pytest.approx(level, rel=1e-5)
    for seed in range(20):
        other = best + 0.3 * drawn(4, seed=seed)
        assert loss(other.expand(6, 4), targets).item() > level


C = 7
DEIT = {"mixing": "timm", "mixup": 0.8, "cutmix": 1.0, "mix_prob": 1.0, "switch_prob": 0.5, "smoothing": 0.1}
BIGVISION = {**DEIT, "mixing": "bigvision", "mixup": 0.5, "cutmix": 0.0, "smoothing": 0.0}


def options(base=DEIT, **values):
    return MixOptions(**{**base, **values})


def batch(B=8, H=16, W=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(B, 3, H, W, generator=generator), torch.randint(C, (B,), generator=generator)


def mixed(torch_seed, options, images, labels, seed=0, step=0):
    torch.manual_seed(torch_seed)
    return mix(images, labels, C, options, seed=seed, step=step)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("values", [{"mixup": 0.0, "cutmix": 0.0}, {"mix_prob": 0.0}])
def test_without_mixing(values, smoothing):
    """Odd batches too."""
    images, labels = batch(5)
    got, targets = mixed(0, options(smoothing=smoothing, **values), images, labels)
    assert torch.equal(got, images)
    torch.testing.assert_close(targets, (1 - smoothing) * torch.eye(C)[labels] + smoothing / C)
    assert targets.dtype == torch.float32


def test_equals_timm():
    images, labels = batch()
    mixer = Mixup(0.8, 1.0, prob=0.9, switch_prob=0.25, label_smoothing=0.1, num_classes=C)
    for key in range(20):
        got, targets = mixed(key, options(mix_prob=0.9, switch_prob=0.25), images, labels)
        with seeded(key):
            expected = mixer(images.clone(), labels)
        assert torch.equal(got, expected[0])
        assert torch.equal(targets, expected[1])


def test_bigvision_mixes_with_the_image_before():
    """One share at least 1/2 for all; the first image's partner is the last. Odd batches too."""
    images, labels = batch(5)
    for step in range(20):
        a = mixup_share(0.5, 3, step)
        assert 0.5 <= a <= 1
        got, targets = mixed(step, options(BIGVISION), images, labels, seed=3, step=step)
        for i in range(5):
            torch.testing.assert_close(got[i], a * images[i] + (1 - a) * images[i - 1])
            torch.testing.assert_close(targets[i], a * torch.eye(C)[labels[i]] + (1 - a) * torch.eye(C)[labels[i - 1]])


def test_bigvision_follows_seed_and_step_alone():
    """All processes have one share, whatever their torch seed."""
    images, labels = batch()
    one = mixed(0, options(BIGVISION), images, labels, seed=1, step=2)
    other = mixed(9, options(BIGVISION), images, labels, seed=1, step=2)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for seed, step in ((2, 2), (1, 3)):
        assert not torch.equal(mixed(0, options(BIGVISION), images, labels, seed=seed, step=step)[0], one[0])


@pytest.mark.parametrize("base", [DEIT, BIGVISION])
def test_pure(base):
    """Called twice, as by a two-pass optimizer, it gives the same; no generator moves; nothing changes in place."""
    images, labels = batch()
    before = images.clone(), labels.clone()
    torch.manual_seed(11)
    torch.rand(3)  # what was drawn since seeding does not matter
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = (mix(images, labels, C, options(base), seed=0, step=0) for _ in range(2))
    assert not torch.equal(first[0], images)
    pairs = zip((*first, images, labels, torch.get_rng_state()), (*second, *before, states[0]), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002


@pytest.mark.parametrize(
    ("base", "values", "message"),
    [
        (DEIT, {"mixup": -0.1}, "--mixup -0.1: must be at least 0"),
        (BIGVISION, {"cutmix": 1.0}, "--mixing bigvision: .* `--cutmix 0 --mix-prob 1`"),
    ],
)
def test_options_that_cannot_be(base, values, message):
    with pytest.raises(UsageError, match=message):
        options(base, **values)


NAMES = ["a/one.jpeg", "a/two.jpeg", "b/three.jpeg"]


def split() -> FileSplit:
    sizes = np.ones(3, dtype=np.int64)
    return FileSplit("train", np.array([0, 0, 1]), PackedNames(NAMES), sizes, Path("images"))


def write(folder: Path, name: str, content: np.ndarray | bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".npy":
        np.save(path, content)
    else:
        torch.save(torch.from_numpy(content), path)


def scores(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.normal(size=(2, 3, 3)), rng.integers(0, 2, (2, 3, 3))]).astype(np.float32)


def test_maps_are_found_by_name_in_either_format(tmp_path: Path) -> None:
    for seed, name in enumerate(["a/one.pt", "a/two.npy", "b/three.pt"]):
        write(tmp_path, name, scores(seed))
    maps = LabelMaps(tmp_path, split(), classes=2)
    for index in range(3):
        assert np.array_equal(maps(index).numpy(), scores(index))


def test_a_folder_that_misses_images_says_how_many_and_which(tmp_path: Path) -> None:
    write(tmp_path, "a/two.npy", scores())
    with pytest.raises(UserError, match=r"no label map for 2 of 3 training images \(a/one, b/three\)"):
        LabelMaps(tmp_path, split(), classes=2)
    with pytest.raises(UserError, match="directory not found"):
        LabelMaps(tmp_path / "absent", split(), classes=2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (scores()[0], r"shape \(2, 3, 3\)"),
        (scores()[:, :1], "the first has"),
        (scores() + 2, "class numbers must be 0 to 1"),
        (np.full((2, 2, 3, 3), np.nan, dtype=np.float32), "scores finite"),
        (b"nothing", "not a label map"),
    ],
)
def test_a_wrong_map_is_named(tmp_path: Path, content: np.ndarray | bytes, reason: str) -> None:
    for name in ("a/one.npy", "a/two.npy", "b/three.npy"):
        write(tmp_path, name, scores())
    write(tmp_path, "a/two.npy", content)
    maps = LabelMaps(tmp_path, split(), classes=2)
    with pytest.raises(UserError, match=rf"a/two.npy.*{reason}"):
        maps(1)


def gradient(width: int, height: int) -> Image.Image:
    """Red grows to the right from 0 to 255, green downwards."""
    red = np.broadcast_to(np.linspace(0, 255, width), (height, width))
    green = np.broadcast_to(np.linspace(0, 255, height)[:, None], (height, width))
    return Image.fromarray(np.stack([red, green, 0 * red], 2).round().astype(np.uint8))


def plain(image: Image.Image) -> torch.Tensor:
    return pil_to_tensor(image).float() / 255


@pytest.mark.parametrize("seed", range(8))
def test_a_map_of_the_picture_itself_moves_as_the_picture(seed: int) -> None:
    """Classes are red and green, scored by the picture's own brightness: targets must be those of the crop's pixels."""
    grid, places = 4, 64
    transform = CropWithBox(128, (0.3, 0.9), (0.75, 1.33), 0.5, "bilinear", plain)
    with seeded(seed):
        crop, box = transform(gradient(256, 192))
    shown = plain(gradient(places, places))[:2]
    maps = torch.stack([shown, torch.arange(2.0)[:, None, None].expand_as(shown)])[None]
    whole, tokens = crop_targets(maps, box[None], 2, (grid, grid))
    pooled = torch.nn.functional.adaptive_avg_pool2d(crop[:2], grid).flatten(1).T
    assert torch.allclose(tokens[0], pooled.softmax(1), atol=0.01)
    assert torch.allclose(whole[0], crop[:2].mean((1, 2)).softmax(0), atol=0.01)


def test_targets_are_distributions_and_unscored_classes_count_as_zero() -> None:
    maps = torch.zeros(1, 2, 1, 2, 2)
    maps[0, 0] = 3.0
    maps[0, 1] = 2.0
    whole, tokens = crop_targets(maps, torch.tensor([[0.0, 0.0, 1.0, 1.0, 0.0]]), 5, (2, 2))
    expected = torch.tensor([0.0, 0.0, 3.0, 0.0, 0.0]).softmax(0)
    assert torch.allclose(whole, expected.expand(1, 5))
    assert torch.allclose(tokens, expected.expand(1, 4, 5))
