"""Similarity maps against a plain statement, the stem's filters, and their pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tasks.picture_checksums import PICTURES, read_sums

from backbones.backbone import create
from backbones.errors import UserError
from backbones.spec import resolve
from tasks.facts.tokens import FACTS
from tasks.token_diagnostics.maps import (
    FILTERS,
    MAPS,
    first_filters,
    kept_images,
    read_maps,
    save_maps,
    similarity_maps,
)
from tasks.token_diagnostics.pictures import SIDE, filter_grid, save_pictures, strip
from tests.tasks.support import digits, smoke_options


@pytest.mark.parametrize("size", [(32, 32), (32, 64)])
def test_maps_are_cosines_with_the_token_in_the_middle(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    backbone = create(resolve("tiny", stem="conv"), img_size=size, weights="random").eval()
    images = torch.rand(2, 3, *size)
    maps = similarity_maps(backbone, images)
    assert list(maps) == ["stem", "positions", "block 1", "block 2"]
    height, width = (side // backbone.stride for side in size)
    with torch.inference_mode():
        tokens = backbone.tokens(images)  # stem, positions, each block; the class token from the second on
    for name, of_place in zip(maps, tokens, strict=True):
        patches = of_place if name == "stem" else of_place[:, -height * width :]
        grid = patches.double().numpy().reshape(2, height, width, -1)
        middle = grid[:, height // 2, width // 2]
        for image in range(2):
            for row in range(height):
                for column in range(width):
                    one, other = grid[image, row, column], middle[image]
                    expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
                    assert maps[name][image, row, column] == pytest.approx(expected, abs=1e-6)


def test_the_filters_are_those_of_the_first_convolution() -> None:
    backbone = create(resolve("tiny", stem="patchify"), img_size=32, weights="random")
    filters = first_filters(backbone)
    assert filters is not None
    weight = backbone.model.patch_embed.proj.weight.detach().numpy()
    assert filters.shape == (min(FILTERS, len(weight)), *weight.shape[1:])
    assert np.array_equal(filters[0], weight[0])
    assert np.array_equal(filters[-1], weight[-1])


def test_what_is_saved_is_read_and_damage_is_said(tmp_path: Path) -> None:
    maps = {"stem": np.zeros((2, 4, 4), np.float32), "block 10": np.ones((2, 4, 4), np.float32)}
    save_maps(tmp_path, [3, 9], maps, None)
    images, again, filters = read_maps(tmp_path / MAPS)
    assert images == [3, 9]
    assert filters is None
    assert list(again) == ["stem", "block 10"]
    assert all(np.array_equal(again[name], maps[name]) for name in maps)
    for content in (b"", b"PK\3\4", (tmp_path / MAPS).read_bytes()[:-40]):
        (tmp_path / MAPS).write_bytes(content)
        with pytest.raises(UserError, match="no maps of tokens"):
            read_maps(tmp_path / MAPS)
    (tmp_path / MAPS).unlink()
    with pytest.raises(UserError, match="is gone"):
        read_maps(tmp_path / MAPS)


def test_bright_is_alike_dark_is_opposite_and_the_middle_is_framed() -> None:
    values = np.array([[-1.0, 0.0], [0.5, 1.0]])
    drawn = np.asarray(strip(Image.new("RGB", (32, 32), (10, 200, 10)), {"stem": values})).astype(int)
    tile = drawn[-SIDE - 6 : -6, -SIDE - 6 : -6]
    brightness = [tile[row, column].sum() for row, column in ((20, 20), (20, 90), (90, 20), (90, 90))]
    assert brightness == sorted(brightness)
    assert len(set(brightness)) == 4
    assert (tile[SIDE - 1, SIDE // 2 + 10] == (213, 94, 0)).all(), "the frame of the token in the middle"
    assert (drawn[60, 20] == (10, 200, 10)).all(), "the image itself"


def test_a_filter_is_stretched_from_its_smallest_to_its_largest_weight() -> None:
    filters = np.zeros((2, 3, 4, 4), np.float32)
    filters[0, 0, 0, 0], filters[0, 2, 3, 3] = -0.5, 1.5
    grid = np.asarray(filter_grid(filters))
    assert (grid[2, 2] == (0, 64, 64)).all()
    assert grid[2:26, 2:26].max() == 255
    assert (grid[2:26, 28:52] == 0).all(), "a constant filter has nothing to stretch"


def test_a_run_keeps_maps_and_draws_pictures_when_asked(tmp_path: Path) -> None:
    from tasks.tokens import TASK
    from tests.support import context

    data = digits(3, task="tokens")
    options = smoke_options("tokens", "--size", "32", "--resize", "32", "--save-pictures", "2")
    TASK.run(resolve("tiny", stem="conv"), data, options, context(tmp_path))
    images, maps, filters = read_maps(tmp_path / MAPS)
    assert all(len(values) == len(images) for values in maps.values())
    assert filters is not None
    FACTS.finish(tmp_path, data, options)
    drawn = sorted(path.name for path in (tmp_path / PICTURES).glob("*.png"))
    assert drawn == ["filters.png", *(f"tokens-{image:05d}.png" for image in images[:2])]
    assert sorted(read_sums(tmp_path / PICTURES)) == drawn
    (tmp_path / MAPS).unlink()
    with pytest.raises(UserError, match="--save-pictures"):
        save_pictures(tmp_path, data.val, 1)  # type: ignore[arg-type]


def test_kept_images_are_evenly_spaced() -> None:
    assert kept_images(list(range(0, 100, 10)), 4) == [0, 30, 60, 90]
    assert kept_images([5], 4) == [5]
