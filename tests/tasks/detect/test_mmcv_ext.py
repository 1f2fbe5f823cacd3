"""The module that stands in for `mmcv._ext`."""

import importlib

import pytest
import torch

from tasks.detect import mmlab
from tasks.detect.mmlab import OPS
from transfer.core.errors import UserError

mmlab.load()

from mmcv.ops import deform_conv2d  # noqa: E402


def test_a_missing_operator_names_itself_and_who_asked():
    with pytest.raises(UserError, match="needs a compiled mmcv") as raised:
        deform_conv2d(torch.zeros(1, 3, 8, 8), torch.zeros(1, 18, 6, 6), torch.zeros(4, 3, 3, 3))
    assert str(raised.value).startswith("mmcv.ops.deform_conv.DeformConv2dFunction.forward calls mmcv's operator")
    assert "'deform_conv_forward'" in str(raised.value)
    assert torch.__version__ in str(raised.value)


@pytest.mark.parametrize("name", ["nms", "roi_align"])
def test_operators_are_those_that_mmcv_asks_for(name):
    """A new version of mmcv that calls another operator in these files is noticed here."""
    source = importlib.import_module(f"mmcv.ops.{name}").__file__
    with open(source, encoding="utf-8") as file:  # noqa: PTH123
        called = {part.split("(")[0] for part in file.read().split("ext_module.")[1:]}
    unused = {"nms_match", "nms_rotated", "nms_quadri", "softnms"}
    assert called - set(OPS) <= unused
