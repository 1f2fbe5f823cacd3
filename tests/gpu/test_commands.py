"""Every task and method on the pretended GPU: no mix of devices, and few synchronisations in a step."""

from pathlib import Path

import pytest

from tests.gpu.machine import run

pytestmark = pytest.mark.nightly

METHODS = ("deit", "dino", "volo", "bigvision_i1k")
SMOKE = ["--device", "cuda", "--workers", "0", "--threads", "1", "--smoke", "--out", "runs"]
ALLOWED = {
    "cascade": 270, "mask_rcnn": 160, "retinanet": 80, "detect": 170,
    "deit": 2, "dino": 2, "volo": 4, "bigvision": 2, "reid": 2, "linear": 3, "finetune": 2,
}  # fmt: skip
"""Synchronisations in a training step, by what is in a command; what has none here does not train."""
CASES = (
    *("deit", "deit --image-ops fast --erase 1.0", "deit --precision fp16 --stem conv", "deit --tokens-at 1"),
    *("deit --sam sam --grad-accum-steps 2", "deit --sam asam --precision fp16"),
    "deit --precision fp32 --attention relu --alpha learned --gate sigmoid",
    *("dino", "dino --stem conv", "volo --backbone volo_d1_convstem --batch-size 4 --subset 24", "bigvision_i1k"),
    "reid --rerank --flip-test --stem conv --grad-accum-steps 2 --layer-decay 0.8 --precision fp16",
    *("reid", "reid --attention relu", "fewshot", "fewshot --probe logistic", "fewshot --probe knn", "knn"),
    *("linear", "finetune", "tokens --stem conv", "tokens --attention relu"),
    *("detect --subset 8", "detect --subset 8 --detector retinanet --precision fp16"),
    *("detect --subset 8 --detector cascade_mask_rcnn", "detect --subset 8 --detector mask_rcnn --window 4"),
)


@pytest.mark.parametrize("words", CASES)
def test_a_command(tmp_path: Path, words: str) -> None:
    name, *options = words.split()
    allowed = next((number for key, number in ALLOWED.items() if key in words), None)
    options += ["--backbone", "tiny"] * ("--backbone" not in options) + ["--epochs", "1"] * (allowed is not None)
    kernels = ["--kernels"] * ("relu" in options)
    program = "transfer.pretrain" if name in METHODS else "transfer.run"
    done = run(tmp_path, "--steps", "2", *kernels, program, name, *SMOKE, *options)
    assert (done.status, done.mixes) == (0, {}), done.log
    assert (done.kernels > 0) == ("relu" in options)
    assert (done.steps > 0) == (allowed is not None)
    if allowed is not None:
        assert done.per_step() <= allowed, done.in_steps()
