"""A training step of DeiT-S at 224 pixels with everything of the recipe that a step does, side by side.

    python -m tests.benchmarks deit_step [--batch-size 16] [--rounds 3] [--steps 2] [--stem patchify] [--compile]
        [--precision auto]

`ours` is the recipe `deit` as it resolves on this machine: mixup or cutmix, smoothing, stochastic depth, AdamW, the
average of the weights, checks. The peers are timm's model with timm's mixup, loss, optimizer and average in the plain
loop: with the settings of DeiT's repository (fp32 on a CPU, fp16 autocast and a scaler on a GPU), and under bf16
autocast; with `--compile`, and on a GPU, both sides are also compiled. Prints images per second (medians over
interleaved rounds), ratios, and the share of the throughput that a matrix product reaches in the same precision.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEma, ModelEmaV3, NativeScaler
from torch import Tensor, nn

from backbones.backbone import create
from backbones.flops import flops
from backbones.pretrain.supervised.training import SupervisedLearner
from tests.benchmarks.speed.timing import Step, contest, own_step, read
from tests.support import command
from transfer.engine.context import Context
from transfer.engine.step import Stepper

CLASSES, SIZE = 1000, 224
Batch = tuple[Tensor, Tensor]


def peer(batch: Batch, device: torch.device, dtype: torch.dtype | None, compiled: bool, **shape: Any) -> Step:
    """timm's parts in the loop that everybody writes; but under bf16 those that DeiT's repository takes."""
    shape = {"num_classes": CLASSES, "drop_path_rate": 0.1, "img_size": batch[0].shape[-1], **shape}
    model: nn.Module = timm.create_model("deit_small_patch16_224", **shape).to(device).train()
    optimizer = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05)
    average = ModelEmaV3(model, 0.99996) if compiled or dtype == torch.bfloat16 else ModelEma(model, 0.99996)
    mixup = Mixup(0.8, 1.0, label_smoothing=0.1, num_classes=CLASSES)
    criterion, scaler = SoftTargetCrossEntropy(), NativeScaler(device.type)
    forward = torch.compile(model) if compiled else model

    def step() -> None:
        images, targets = mixup(batch[0].clone(), batch[1])
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = criterion(forward(images), targets)
        loss.item()
        optimizer.zero_grad()
        if dtype == torch.float16:
            scaler(loss, optimizer, parameters=model.parameters())
        else:
            loss.backward()
            optimizer.step()
        average.update(model)

    return step


def ours(batch: Batch, stem: str, context: Context, compiled: bool, **shape: Any) -> tuple[Step, float]:
    """The suite's own step, and the operations of one image in it."""
    options = command("deit", "--backbone", "vit_s", "--compile" if compiled else "--no-compile").options
    size = batch[0].shape[-1]
    shape = {"name_or_spec": "vit_s", "stem": stem, "drop_path": options.drop_path, **shape}
    backbone = create(**shape, weights="random", img_size=size, classes=CLASSES)
    operations = 3 * flops(backbone, (size, size))["total"]
    learner = SupervisedLearner(backbone, torch.full((CLASSES,), 1 / CLASSES), options, seed=0)
    return partial(own_step(Stepper(learner, options, context), 6.0), batch), operations


def main(argv: Sequence[str]) -> int:
    """Runs the contestants in turn and prints the table."""
    given, device = read(argv, __doc__, batch_size=16, steps=2, precision="auto", compile=False)
    images = torch.rand(given.batch_size, 3, SIZE, SIZE, device=device)
    batch = images, torch.randint(CLASSES, (given.batch_size,), device=device)
    return contest(partial(peer, batch, device), partial(ours, batch, given.stem), given, device)
