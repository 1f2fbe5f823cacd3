"""Losses against formulas, label maps that follow crop and flip; ranks of true classes, and accuracies made of them."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import balanced_accuracy_score
from timm.data.mixup import Mixup
from torch import Tensor
from torch.nn import functional
from torchvision.transforms.v2.functional import pil_to_tensor

from backbones.pretrain.accuracy import accuracies, class_columns, true_class_ranks, voted_ranks, weighted_knn
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
from tests.oracles.knn import class_rank, similarities, votes
from transfer.core.errors import UsageError, UserError
from transfer.core.seeding import seeded
from transfer.data.splits.manifest import PackedNames
from transfer.data.splits.split import FileSplit
from transfer.task import Task


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_losses_of_half_precision_logits_are_computed_in_full() -> None:
    logits, targets = drawn(4, 1000).bfloat16(), drawn(4, 1000, seed=1).softmax(1)
    for loss in (soft_target_cross_entropy, sigmoid_cross_entropy):
        assert loss(logits, targets).dtype == torch.float32
        assert torch.equal(loss(logits, targets), loss(logits.float(), targets))


def test_mix_token_shares_the_class_targets_and_leaves_the_tokens_their_own() -> None:
    images, tokens, classes, box = 3, 16, 5, torch.tensor([1, 0, 3, 3])
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
    assert len({mixup_share(0.5, seed, step) for seed in (1, 2) for step in (2, 3)}) == 4
    for step in range(20):
        a = mixup_share(0.5, 3, step)
        assert 0.5 <= a <= 1
        got, targets = mixed(step, options(BIGVISION), images, labels, seed=3, step=step)
        for i in range(5):
            torch.testing.assert_close(got[i], a * images[i] + (1 - a) * images[i - 1])
            torch.testing.assert_close(targets[i], a * torch.eye(C)[labels[i]] + (1 - a) * torch.eye(C)[labels[i - 1]])


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


def test_options_that_cannot_be():
    with pytest.raises(UsageError, match=r"--mixup -0\.1: must be at least 0"):
        options(mixup=-0.1)
    with pytest.raises(UsageError, match=r"--mixing bigvision: .* `--cutmix 0 --mix-prob 1`"):
        options(BIGVISION, cutmix=1.0)


NAMES = ["a/one.jpeg", "a/two.jpeg", "b/three.jpeg"]


def split() -> FileSplit:
    sizes = np.ones(3, dtype=np.int64)
    return FileSplit("train", np.array([0, 0, 1]), PackedNames.of(NAMES), sizes, Path("images"))


def write(folder: Path, name: str, content: np.ndarray | bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(torch.from_numpy(content), path)


def scores(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.normal(size=(2, 3, 3)), rng.integers(0, 2, (2, 3, 3))]).astype(np.float32)


def test_a_folder_that_misses_images_says_how_many_and_which(tmp_path: Path) -> None:
    write(tmp_path, "a/two.pt", scores())
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
    for name in ("a/one.pt", "a/two.pt", "b/three.pt"):
        write(tmp_path, name, scores())
    write(tmp_path, "a/two.pt", content)
    maps = LabelMaps(tmp_path, split(), classes=2)
    with pytest.raises(UserError, match=rf"a/two.pt.*{reason}"):
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


def outcomes(ranks: Tensor) -> dict[str, np.ndarray]:
    return {"rank": ranks[:, 0].numpy(), "ties": ranks[:, 1].numpy()}


@pytest.mark.parametrize("row", [(3, 6, 0, 2, 5, 1, 4), (1, 1, 0, 0, 0, 0, 0), (2, 1, 1, 1, 1, 1, 0), (3,) * 7])
def test_ties_count_by_expectation_over_their_orders(row: tuple[float, ...]) -> None:
    logits = torch.tensor([row]).float()
    for label in range(len(row)):
        found = accuracies(outcomes(true_class_ranks(logits, torch.tensor([label]))))
        for k in (1, 5):
            orders = [
                sorted(range(len(row)), key=lambda c: (-row[c], order[c]))[:k]
                for order in itertools.islice(itertools.permutations(range(len(row))), 0, None, 7)
            ]
            shares = [label in best for best in orders]
            assert found[f"top{k}"] == pytest.approx(sum(shares) / len(shares), abs=0.02)


def test_ranks_among_some_classes_only_and_the_missing_one_is_never_right() -> None:
    logits = torch.tensor([[9.0, 1.0, 2.0, 8.0], [9.0, 1.0, 2.0, 8.0], [0.0, 0.0, 0.0, 0.0]])
    columns, missing = class_columns(["other", "a", "b", "another"], ["a", "b", "teddy"])
    assert columns.tolist() == [1, 2, -1]
    assert missing == ["teddy"]
    ranks = true_class_ranks(logits, torch.tensor([1, 0, 2]), columns)
    assert ranks[:2].tolist() == [[0, 0], [1, 0]]
    assert accuracies(outcomes(ranks[2:])) == {"top1": 0.0, "top5": 0.0}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_have_no_rank(value: float) -> None:
    logits = torch.zeros(2, 4)
    logits[1, 2] = value
    assert true_class_ranks(logits, torch.tensor([0, 0])).tolist() == [[0, 3], [-1, -1]]
    columns = torch.tensor([2, 0, -1, 1])
    assert true_class_ranks(logits, torch.tensor([1, 1]), columns).tolist() == [[0, 2], [-1, -1]]


@pytest.mark.filterwarnings("ignore:y_pred contains classes")
@pytest.mark.parametrize("seed", range(5))
def test_the_macro_average_is_scikit_learns_balanced_accuracy(seed: int) -> None:
    draw = np.random.default_rng(seed)
    labels = draw.choice(6, 40, p=[0.6, 0.2, 0.1, 0, 0.05, 0.05])  # a class does not occur, others are rare
    logits = torch.from_numpy(draw.normal(size=(40, 6))) + 1.5 * torch.eye(6)[labels]
    kept = outcomes(true_class_ranks(logits, torch.from_numpy(labels)))
    assert "macro_top1" not in accuracies(kept), "outcomes of earlier versions give their scores"
    kept["label"] = labels
    score = accuracies(kept)["macro_top1"]
    assert score == pytest.approx(balanced_accuracy_score(labels, logits.argmax(1)))
    values = Task().per_sample("macro_top1", kept)
    assert values.mean() == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize("elements", [2**26, 1, 16 * 40 * 5 * 4])
@pytest.mark.parametrize("temperature", [1e-9, 1e-5, 1e-3, 0.01, 0.07, 1.0])
def test_votes_are_those_of_the_plain_statement(elements, temperature, monkeypatch) -> None:
    """At low temperatures the nearest sample outvotes all others, however far it is: no vote underflows."""
    monkeypatch.setattr("backbones.pretrain.accuracy.BLOCK_ELEMENTS", elements)
    generator = torch.Generator().manual_seed(0)
    train, test = (torch.randn(count, 5, generator=generator) for count in (40, 11))
    labels = torch.randint(4, (40,), generator=generator)
    found = weighted_knn(train, labels, test, k=[1, 7, 40], temperature=temperature, classes=4, top=4)
    for k, answers in found.items():
        for feature, ranked in zip(test.double().numpy(), answers):
            totals = votes(similarities(train.double().numpy(), feature), labels.numpy(), k, temperature, 4)
            assert [class_rank(totals, label, 4) for label in ranked.tolist()] == [0, 1, 2, 3]


def test_the_earlier_of_equally_near_samples_votes_and_the_lower_of_equal_classes_wins() -> None:
    labels = torch.tensor([2] + [1] * 24 + [0] * 25)
    first = weighted_knn(torch.ones(50, 2), labels, torch.ones(3, 2), k=[1, 2, 4], temperature=1.0, classes=3, top=1)
    assert [first[k].flatten().tolist() for k in (1, 2, 4)] == [[2] * 3, [1] * 3, [1] * 3]
    # nearest is sample 1; of the three others, equally far, the first
    train = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    found = weighted_knn(train, torch.arange(4), torch.tensor([[1.0, 0.1]]), k=[2], temperature=1.0, classes=4, top=4)
    assert found[2].tolist() == [[1, 0, 2, 3]]


@pytest.mark.parametrize("k", [0, 5])
def test_an_impossible_number_of_neighbours_is_said(k: int) -> None:
    with pytest.raises(UserError, match=f"k = {k}: k must lie between 1 and the 4 training images"):
        weighted_knn(torch.eye(4), torch.arange(4), torch.eye(4), k=[1, k], temperature=0.07, classes=4)


@pytest.mark.parametrize(("k", "found"), [(1, [0, 5, 5]), (2, [0, 1, 5]), (3, [0, 1, 2]), (200, [0, 1, 2])])
def test_fewer_neighbours_than_five_name_as_many_classes(k: int, found: list[int]) -> None:
    """As DINO's eval_knn.py, which counts the first min(5, k)."""
    ranked = torch.tensor([[4, 0, 1, 2, 3]]).expand(3, 5)
    assert voted_ranks(ranked, torch.tensor([4, 0, 1]), k).tolist() == found


@pytest.mark.parametrize("clusters", [1, 2])
@pytest.mark.parametrize("lost", [1e-3, 1e-5, 1e-7])
def test_nearly_parallel_features_find_the_neighbours_of_float64(lost: float, clusters: int) -> None:
    generator = torch.Generator().manual_seed(4)
    common = torch.randn(clusters, 64, generator=generator, dtype=torch.float64)
    noise = [torch.randn(count, 64, generator=generator, dtype=torch.float64) for count in (300, 50)]
    train, test = ((common[torch.arange(len(own)) % clusters] + lost**0.5 * own).float() for own in noise)
    found = weighted_knn(train, torch.arange(300), test, k=[5], temperature=0.07, classes=300)[5]
    exact = [rows.double() / rows.double().norm(dim=1, keepdim=True) for rows in (test, train)]
    assert torch.equal(found, (exact[0] @ exact[1].T).topk(5).indices)
