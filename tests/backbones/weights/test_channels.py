"""Models of other than three channels: weights by timm's own loader, and by the sum that an adapted layer keeps."""

from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn

import backbones.vit  # noqa: F401
from backbones.backbone import create
from backbones.spec import IMAGENET_MEAN, resolve
from backbones.weights.export import export
from tests.backbones.weights.test_locate import hub
from transfer.core.errors import UsageError, UserError

SIZE = 32
PLAIN = {"mean": (0.5,), "std": (0.5,)}
SOURCES = """
import torch


class Takes(torch.nn.Module):
    def __init__(self, in_chans=3):
        super().__init__()
        self.layer, self.num_features = torch.nn.Conv2d(in_chans, 8, 4, 4), 8

    def forward(self, images):
        return self.layer(images).mean((2, 3))


class Grey(Takes):
    def __init__(self):
        super().__init__(1)
"""


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


def test_released_weights_are_adapted_by_timm_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, x = "vit_tiny_patch16_224.augreg_in21k_ft_in1k", torch.rand(1, 4, 224, 224)
    hub(tmp_path, monkeypatch, f"timm/{name}", timm.create_model("vit_tiny_patch16_224").state_dict())
    overlay = {"file": str(next(tmp_path.rglob("model.safetensors")))}
    theirs = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, in_chans=4, num_classes=0).eval()
    ours = create("vit_tiny_patch16_224", in_chans=4).eval()
    assert ours.weights_id == f"timm:{name}"
    assert ours.spec.mean == (0.5,) * 4
    torch.testing.assert_close(ours.pooled(x), theirs(2 * x - 1))


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


@pytest.mark.parametrize(("name", "channels"), [("tiny", 1), ("tiny", 5), ("resnet18", 4)])
def test_an_export_keeps_its_channels_here_and_in_timm(name: str, channels: int, tmp_path: Path) -> None:
    made = create(name, weights="random", in_chans=channels, img_size=SIZE if name == "tiny" else None).eval()
    export(made, tmp_path)
    again = create(str(tmp_path), img_size=SIZE if name == "tiny" else None).eval()
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = images(channels)
    assert (again.spec.in_chans, again.spec.mean) == (channels, made.spec.mean)
    assert theirs.pretrained_cfg["input_size"][0] == channels
    torch.testing.assert_close(again.pooled(x), made.pooled(x))
    torch.testing.assert_close(theirs((x - made.mean) / made.std), made.pooled(x))
    with pytest.raises(UserError, match=rf"\(\d+, {channels}, .*for \(\d+, 3,|{channels} value.* have 3 channel"):
        create(name, weights=str(tmp_path), in_chans=3)


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
    (tmp_path / "net.py").write_text(SOURCES)
    for name in ("Takes", "Grey"):
        backbone = create(f"{tmp_path}/net.py:{name}", in_chans=1)
        assert isinstance(backbone.model.layer, nn.Conv2d)
        assert backbone.pooled(images(1)).shape == (2, 8)
