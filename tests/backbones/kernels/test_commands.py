"""Every command with ReLU attention on the fused kernels and on the plain path: the same scores up to rounding.

On a CPU the kernels run in Triton's interpreter, in float32.
"""

from pathlib import Path
from types import ModuleType

import pytest

from backbones.kernels import operator
from tests.interactions.places import Places
from tests.runs import history, record
from transfer import pretrain, run

pytest.importorskip("triton")
from backbones.kernels import fused

COMMON = ["--backbone", "tiny", "--smoke", "--attention", "relu", "--depth", "1"]
COMMON += ["--threads", "1", "--workers", "0"]
COMMANDS = {
    "reid": (
        run,
        "people",
        [
            "reid",
            "--epochs",
            "2",
            "--lr",
            "1e-4",
            "--num-identities",
            "4",
            "--num-instances",
            "2",
            "--size",
            "32",
            "32",
        ],
    ),
    "fewshot": (run, "labelled", ["fewshot", "--size", "32", "--resize", "32", "--shots", "1", "5"]),
    "detect": (run, "scenes", ["detect", "--epochs", "1", "--size", "64", "64", "--batch", "2"]),
    "pretrain": (pretrain, "labelled", ["deit", "--epochs", "1", "--batch", "8", "--size", "32", "--resize", "32"]),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", COMMANDS)
def test_scores_on_both_paths(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, images, words = COMMANDS[name]
    data = ["--dataset", str(Places(tmp_path).data(images, "folders"))]
    used: list[int] = []

    def kernels(q: object) -> ModuleType:
        used.append(1)
        return fused

    found = []
    for path in ("plain", "fused"):
        if path == "fused":
            monkeypatch.setattr("backbones.attention_functions._prefers_torch_operations", lambda *_: False)
            monkeypatch.setattr(operator, "_kernels", kernels)
        out = ["--out", str(tmp_path / path), "--features", str(tmp_path / path / "features")]
        out += ["--weights-to", str(tmp_path / path)] if name == "pretrain" else []
        precision = [] if name == "fewshot" else ["--precision", "fp32"]
        assert command.main([*words, *data, *COMMON, *precision, *out]) == 0
        found.append(record(tmp_path / path))
    assert used
    assert found[0].run_key == found[1].run_key
    assert found[0].scores == pytest.approx(found[1].scores, abs=0.02)
    if name != "fewshot":
        losses = [[line["loss"] for line in history(tmp_path / path) if "loss" in line] for path in ("plain", "fused")]
        assert losses[0][:3] == pytest.approx(losses[1][:3], rel=1e-4)
