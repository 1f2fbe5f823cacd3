"""Features that are the same for all images, or not finite: the typed outcome, and no score of chance."""

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
        return FACTOR * super().forward(x)
"""

NAN = "(float('nan') if len(x) > 2 else 1)"  # in larger batches than the check before a run has


@pytest.mark.parametrize(
    ("words", "factor", "status", "reason"),
    [
        (["reid", "--epochs", "0"], "0", "collapsed", "every query is equally far"),
        (["knn"], "0", "collapsed", "the same for all training images"),
        (["fewshot", "--dataset", "toy_dtd"], "0", "collapsed", "the same for all test images"),
        (["knn", "--subset", "30"], NAN, "nonfinite", "299 more of 300 images"),
        (["fewshot", "--dataset", "toy_digits"], NAN, "nonfinite", "features of the train images: not finite for"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_tells_no_images_apart_has_no_score(
    words: list[str], factor: str, status: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "stem.py").write_text(STEM.replace("FACTOR", factor))
    stem = ["--backbone", "tiny", "--stem", f"{tmp_path}/stem.py:Stem"]
    out = ["--smoke", "--workers", "0", "--out", str(tmp_path / "runs"), "--feature-cache", str(tmp_path / "features")]
    assert main([*words, *stem, *out]) == 3
    kept = record(tmp_path / "runs")
    assert kept.outcome["status"] == status
    assert reason in kept.outcome["reason"]
    assert kept.scores == {}


def test_rounding_is_no_variation_and_one_image_no_proof() -> None:
    features = torch.rand(1, 8).repeat(5, 1)
    check_varied(features[:1], "fp32", "test")
    check_varied(features + torch.eye(5, 8) * 1e-3, "fp32", "test")
    for near in (features, features * (1 + 1e-7 * torch.rand(5, 1))):
        with pytest.raises(NotVaried, match="the same for all test images"):
            check_varied(near, "fp32", "test")
