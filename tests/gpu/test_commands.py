"""Every task and method on the pretended GPU: no mix of devices, and few synchronisations in a step."""

import atexit
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from transfer.engine.device import cpu_has_bf16

pytestmark = pytest.mark.nightly

METHODS = ("deit", "dino", "volo", "bigvision_i1k")
SMOKE = ["--device", "cuda", "--workers", "0", "--threads", "1", "--smoke", "--out", "runs"]
ALLOWED = {
    "cascade": 125, "retinanet": 30, "detect": 60,
    "deit": 0, "dino": 0, "volo": 0, "bigvision": 0, "reid": 0, "linear": 0, "segment": 0, "finetune": 0,
}  # fmt: skip
"""Synchronisations in a training step, by what is in a command; what has none here does not train."""
CASES = (
    *("deit", "deit --image-ops fast --erase 1.0 --clip-grad 1", "deit --tokens-at 1 --ema 0.9 --export ema"),
    *("deit --sam sam --grad-accum-steps 2", "deit --sam asam --precision fp16 --stem conv"),
    "deit --precision fp32 --attention relu --alpha learned --gate sigmoid",
    *("dino", "dino --stem conv", "volo --backbone volo_d1_convstem --batch-size 4", "bigvision_i1k"),
    *("reid", "reid --rerank --flip-test --stem conv --grad-accum-steps 2 --layer-decay 0.8 --precision fp16"),
    *("reid --attention relu --precision fp32", "fewshot", "fewshot --probe logistic", "fewshot --probe knn", "knn"),
    *("linear", "segment", "finetune", "tokens --stem conv", "tokens --attention relu"),
    *("detect", "detect --detector retinanet --precision fp32", "detect --detector faster_rcnn_light --window 4"),
    *("detect --detector cascade_mask_rcnn", "linear --lrs 0.01 0.1 --class-weights balanced"),
)


class Done(SimpleNamespace):
    """`status` and `log` of a command, and what was counted: the attributes of `tests.gpu.ledger.Ledger`."""

    def in_steps(self) -> str:
        """Return the synchronisations in training steps, a line each."""
        return "\n".join(f"{number} {kind} {line}" for phase, kind, line, number in self.syncs if phase != "else")

    def number(self, *phases: str) -> int:
        """Return how many synchronisations phases have."""
        return sum(number for phase, *_, number in self.syncs if phase in phases)

    def per_step(self) -> float:
        """Return their number in a step."""
        return self.number("train", "backward") / self.steps


@cache
def _server() -> subprocess.Popen[str]:
    if not (shutil.which("gcc") and torch.version.cuda):
        pytest.skip("a pretended GPU needs gcc and torch's CUDA build")
    server = subprocess.Popen([sys.executable, "-m", "tests.gpu", "--serve"], stdin=-1, stdout=-1, text=True)
    atexit.register(server.kill)
    assert server.stdout.readline() == "ready\n"
    return server


def run(folder: Path, *words: str) -> Done:
    """Run `python -m tests.gpu WORDS` in a folder; skip the test where the GPU cannot be pretended."""
    server = _server()
    log, counts = folder / "log.txt", folder / "counts.json"
    print(json.dumps([str(folder), str(log), ["--counts", str(counts), *words]]), file=server.stdin, flush=True)
    status = int(server.stdout.readline())  # type: ignore[union-attr]
    text = log.read_text(encoding="utf-8")
    assert counts.exists(), text
    return Done(status=status, log=text, **json.loads(counts.read_text(encoding="utf-8")))


@pytest.mark.parametrize("words", CASES)
def test_a_command(tmp_path: Path, words: str) -> None:
    name, *options = words.split()
    allowed = next((number for key, number in ALLOWED.items() if key in words), None)
    options += ["--subset", "4", "--size", "96", "128"] if name == "detect" else ["--subset", "16"]
    options += ["--backbone", "tiny"] * ("--backbone" not in options) + ["--epochs", "1"] * (allowed is not None)
    kernels = ["--kernels"] * ("relu" in options)
    program = "transfer.pretrain" if name in METHODS else "transfer.run"
    done = run(tmp_path, "--steps", "2", *kernels, program, name, *SMOKE, *options)
    assert (done.status, done.mixes) == (0, {}), done.log
    assert (done.kernels > 0) == ("relu" in options)
    assert (done.steps > 0) == (allowed is not None)
    if allowed is not None:
        assert done.per_step() <= allowed, done.in_steps()
        assert done.number("settle") <= 1, f"more than the epoch's last step is waited for:\n{done.in_steps()}"


SPOILT = """
from transfer.pretrain import main
from backbones.pretrain.supervised.training import SupervisedLearner as learner

forward = learner.forward


def spoilt(self, batch, step):
    result = forward(self, batch, step)
    SPOIL
    return result


learner.forward = spoilt
raise SystemExit(main(__import__("sys").argv[1:]))
"""


def test_a_number_read_in_a_step_and_a_tensor_of_the_cpu_are_found(tmp_path: Path) -> None:
    words = ["deit", *SMOKE, "--subset", "16", "--epochs", "1", "--backbone", "tiny"]
    found = []
    for spoil in ("pass", "result['loss'].item()", "result['loss'] + __import__('torch').ones(1)"):
        (folder := tmp_path / str(len(found))).mkdir()
        (folder / "spoilt.py").write_text(SPOILT.replace("SPOIL", spoil), encoding="utf-8")
        found.append(run(folder, "--steps", "2", "spoilt", *words))
    plain, reading, mixing = found
    assert reading.per_step() == plain.per_step() + 1
    assert (plain.status, reading.status, mixing.status) == (0, 0, 1)
    assert "beside CUDA tensors" in mixing.log
    assert list(mixing.mixes.values()) == [1]


def test_functions_work_on_the_device_of_their_tensors(tmp_path: Path) -> None:
    done = run(tmp_path, "tests.gpu.functions")
    assert (done.status, done.mixes) == (0, {}), done.log


@pytest.mark.skipif(not cpu_has_bf16(), reason="takes minutes on a processor without bf16")
def test_doctor_gpu_runs_all_its_parts(tmp_path: Path) -> None:
    done = run(tmp_path, "--steps", "2", "transfer.doctor", "gpu")
    assert (done.status, done.mixes) == (0, {}), done.log
