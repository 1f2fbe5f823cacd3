"""Models of other than three channels: weights by timm's own loader, and by the sum that an adapted layer keeps."""

from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

import backbones.vit  # noqa: F401
from backbones.backbone import create
from backbones.spec import IMAGENET_MEAN, resolve
from backbones.weights.export import export
from tests.backbones.support import users_file
from transfer.core.errors import UsageError, UserError

SIZE = 32
PLAIN = {"mean": (0.5,), "std": (0.5,)}


def images(channels: int) -> Tensor:
    return torch.rand(2, channels, SIZE, SIZE, generator=torch.Generator().manual_seed(channels))


def saved(folder: Path, name: str, **options: object) -> Path:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, img_size=SIZE, **options)
    torch.save(model.state_dict(), folder / "weights.pth")
    return folder / "weights.pth"


@pytest.mark.parametrize("channels", [1, 2, 4, 5])
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_ti"])
def test_weights_of_rgb_are_adapted_as_by_timm(name: str, channels: int, tmp_path: Path) -> None:
    file, x = saved(tmp_path, "vit_tiny_patch16_224"), images(channels)
    overlay = {"file": str(file), "num_classes": 0}
    size = {"img_size": SIZE, "in_chans": channels}
    theirs = timm.create_model("vit_tiny_patch16_224", pretrained=True, pretrained_cfg_overlay=overlay, **size).eval()
    ours = create(name, weights=str(file), **size, **PLAIN).eval()
    torch.testing.assert_close(ours.pooled(x), theirs(2 * x - 1))
    file = saved(tmp_path, "vit_tiny_patch16_224", in_chans=channels)
    with pytest.raises(UserError, match=f"`--in-chans {channels}` gives"):
        create(name, weights=str(file), img_size=SIZE)


@pytest.mark.parametrize("stem", ["patchify", "conv", "proj_bn_relu"])
def test_a_stem_sees_the_sum_over_rgb(stem: str, tmp_path: Path) -> None:
    """A grey image gives what it gives as RGB; of four channels the last is added to the first, all times 3/4."""
    file = saved(tmp_path, "vit_tiny", stem=stem)
    options = {"stem": stem, "weights": str(file), "img_size": SIZE, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    rgb, grey, four = (create("tiny", in_chans=count, **options).eval() for count in (3, 1, 4))
    x = images(4)
    torch.testing.assert_close(grey.pooled(x[:, :1]), rgb.pooled(x[:, :1].expand(-1, 3, -1, -1)))
    merged = torch.stack([x[:, 0] + x[:, 3], x[:, 1], x[:, 2]], 1) * 0.75
    torch.testing.assert_close(four.pooled(x), rgb.pooled(merged))


def test_weights_bring_their_pixel_statistics_unless_a_flag_has_others(tmp_path: Path) -> None:
    own = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    export(create("tiny", img_size=32, **own), tmp_path / "out")
    weights = str(tmp_path / "out")
    assert (resolve("tiny", weights=weights).mean, resolve("tiny", weights=weights).std) == (own["mean"], own["std"])
    assert resolve("tiny", weights=weights, mean=(0.5,)).mean == (0.5,) * 3
    assert resolve("tiny", weights="random").mean == (0.485, 0.456, 0.406)


def test_pixel_statistics() -> None:
    average = sum(IMAGENET_MEAN) / 3
    assert resolve("tiny", weights="random", in_chans=2).mean == pytest.approx((average, average))
    assert resolve("tiny", weights="random", in_chans=1, mean=[0.2]).mean == (0.2,)
    assert create("resnet18", weights="random", in_chans=1).spec.mean == pytest.approx((average,))
    with pytest.raises(UsageError, match=r"`std: \[0\.1, 0\.2\]`: 2 value\(s\), but images have 4 channel"):
        resolve("tiny", in_chans=4, std=[0.1, 0.2])
    with pytest.raises(ValueError, match=r"images are \[B, 1, H, W\], float in \[0, 1\] or uint8, not"):
        create("tiny", weights="random", in_chans=1).pooled(images(3))


def test_a_users_model_is_given_the_channels_or_has_them(tmp_path: Path) -> None:
    for name in ("Net", "Grey"):
        backbone = create(f"{users_file(tmp_path)}:{name}", in_chans=1)
        assert backbone.pooled(images(1)).shape == (2, 6)
