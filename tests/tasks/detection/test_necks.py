import pytest
import torch

from backbones.errors import UsageError
from tasks.detection.detectors import SimplePyramid, TapScales, scales


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


def test_only_the_last_map_enters_the_simple_pyramid() -> None:
    torch.manual_seed(0)
    pyramid, last = SimplePyramid(16, 16, 8), torch.rand(1, 16, 4, 4)
    one, two = pyramid([torch.rand(1, 16, 4, 4), last]), pyramid([last])
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_stride_without_pyramid_is_named() -> None:
    with pytest.raises(UsageError, match="stride 32"):
        scales(32)
