"""Training for re-identification with ViT-S at 256x128, side by side on the same batches.

    python -m tests.benchmarks reid_training [--rounds 3] [--steps 4] [--stem patchify]

`ours, ready batch` is this suite's step (backbone, neck, both losses, checks, SGD); `ours, from JPEG` is the same fed
by its loader from files with the whole augmentation, one batch loading while another trains. The peers are timm's
model with a linear head in the plain loop, in fp32 and under bf16 autocast. Prints images per second (medians over
interleaved rounds) and ratios.
"""

from collections.abc import Callable, Sequence
from functools import partial

import timm
import torch
from torch import Tensor, nn

from backbones import create
from tasks.reid.training import ReidLearner, train_loader
from tests.benchmarks.speed.timing import Step, busy, figure, measure, own_step, read, show
from tests.support import command
from transfer.core.process import ALONE
from transfer.data.reid.dataset import open_reid
from transfer.data.spec import resolve_dataset
from transfer.engine.context import Context, auto_workers
from transfer.engine.device import choose_precision
from transfer.engine.step import Stepper

Batch = tuple[Tensor, Tensor]
SIZE = (256, 128)


def peer(classes: int, device: torch.device, bf16: bool) -> Callable[[Batch], None]:
    """timm's ViT-S and a linear classifier in the loop that everybody writes."""
    model = timm.create_model("vit_small_patch16_224", num_classes=classes, img_size=SIZE, drop_path_rate=0.1)
    model = model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)

    def step(batch: Batch) -> None:
        images, labels = (part.to(device, non_blocking=True) for part in batch)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def main(argv: Sequence[str]) -> int:
    """Runs the contestants in turn and prints the table."""
    given, device = read(argv, __doc__, steps=4)
    context = Context(device, choose_precision("auto", device), workers=auto_workers(device, ALONE))
    options = command("reid", "--backbone", "vit_s").options
    data = open_reid(resolve_dataset("toy_market"), None)
    classes = len({sample.identity for sample in data.train})
    backbone = create("vit_s", weights="random", stem=given.stem, img_size=SIZE, drop_path=options.drop_path)
    loader = train_loader(data.files(data.train), backbone, options, context)
    stream = (batch for _, batch in loader.stream(0, 0, 10**6))
    ready = next(stream)
    learner = ReidLearner(backbone, classes, options)
    mine, floats = own_step(Stepper(learner, options, context), 0.0), learner.prepare(ready, torch.device("cpu"))
    contestants: dict[str, Step] = {
        "timm, fp32": partial(peer(classes, device, False), floats),
        "timm, bf16 autocast": partial(peer(classes, device, True), floats),
        "ours, ready batch": partial(mine, ready),
        "ours, from JPEG": lambda: mine(next(stream)),
    }
    rates = measure(contestants, given.rounds, given.steps, len(floats[0]), device)
    print(f"{torch.get_num_threads()} threads, {context.workers} workers, {context.precision}, batch {len(floats[0])}")
    show(rates)
    if context.on_gpu:
        share = busy(contestants["ours, ready batch"], 10, device)
        figure("share of the time in which the GPU computes", 100 * share, "%")
    return 0
