"""Similarity maps against a plain statement, and their pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch

from backbones.backbone import create
from backbones.errors import UserError
from backbones.spec import resolve
from tasks.facts.tokens import FACTS
from tasks.task import PICTURES
from tasks.token_diagnostics.maps import MAPS, read_maps, similarity_maps
from tasks.token_diagnostics.pictures import save_pictures
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


def test_a_run_keeps_maps_and_draws_pictures_when_asked(tmp_path: Path) -> None:
    from tasks.tokens import TASK
    from tests.support import context

    data = digits(3, task="tokens")
    options = smoke_options("tokens", "--size", "32", "--resize", "32", "--save-pictures", "2")
    TASK.run(resolve("tiny", stem="conv"), data, options, context(tmp_path))
    images, maps = read_maps(tmp_path / MAPS)
    assert all(len(values) == len(images) for values in maps.values())
    FACTS.finish(tmp_path, data, options)
    drawn = sorted(path.name for path in (tmp_path / PICTURES).glob("*.png"))
    assert drawn == [f"tokens-{image:05d}.png" for image in images[:2]]
    (tmp_path / MAPS).unlink()
    with pytest.raises(UserError, match=r"maps\.npz: cannot be read"):
        save_pictures(tmp_path, data.val, 1)  # type: ignore[arg-type]
