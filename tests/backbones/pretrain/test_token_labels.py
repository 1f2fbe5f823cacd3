"""Label maps follow the crop and the flip of their image, and a folder that is not whole says so."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2.functional import pil_to_tensor

from backbones.pretrain.supervised.token_labels import CropWithBox, LabelMaps, crop_targets
from transfer.core.errors import UserError
from transfer.core.seeding import seeded
from transfer.data.splits.manifest import PackedNames
from transfer.data.splits.split import FileSplit

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
