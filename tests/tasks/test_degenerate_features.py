"""Features that are the same for all images: the typed outcome, and no score of chance."""

from pathlib import Path

import pytest
import torch

from tests.runs import record
from transfer.engine.extract import NotVaried, check_varied
from transfer.run import main

STEM = """
from torch import nn

class Stem(nn.Conv2d):
    def __init__(self, dim, patch):
        super().__init__(3, dim, patch, patch)

    def forward(self, x):
        return 0 * super().forward(x)
"""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["reid", "--epochs", "0"], "every query is equally far"),
        (["knn"], "the same for all training images"),
        (["fewshot", "--dataset", "toy_dtd"], "the same for all test images"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_equal_features_have_no_score(words: list[str], reason: str, tmp_path: Path) -> None:
    (tmp_path / "stem.py").write_text(STEM)
    stem = ["--backbone", "tiny", "--stem", f"{tmp_path}/stem.py:Stem"]
    out = ["--smoke", "--workers", "0", "--out", str(tmp_path / "runs"), "--feature-cache", str(tmp_path / "features")]
    assert main([*words, *stem, *out]) == 3
    kept = record(tmp_path / "runs")
    assert kept.outcome["status"] == "collapsed"
    assert reason in kept.outcome["reason"]
    assert kept.scores == {}


def test_rounding_is_no_variation_and_one_image_no_proof() -> None:
    features = torch.rand(1, 8).repeat(5, 1)
    check_varied(features[:1], "fp32", "test")
    check_varied(features + torch.eye(5, 8) * 1e-3, "fp32", "test")
    for near in (features, features * (1 + 1e-7 * torch.rand(5, 1))):
        with pytest.raises(NotVaried, match="the same for all test images"):
            check_varied(near, "fp32", "test")
