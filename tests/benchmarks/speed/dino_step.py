"""A DINO step of ViT-S/16 on two crops of 224 px and eight of 96 px, side by side.

    python -m tests.benchmarks dino_step [--batch-size 2] [--rounds 3] [--steps 1] [--stem patchify] [--compile]
        [--precision auto]

`ours` is the recipe `dino` as it resolves on this machine. The peers are timm's ViT-S in the plain loop that the
method's repository writes: separate losses for each pair of crops, clipping and averaging parameter by parameter; with
its settings (fp32 on a CPU, fp16 autocast and a scaler on a GPU), and under bf16 autocast; with `--compile`, and on a
GPU, both sides are also compiled. Prints images per second (medians over interleaved rounds), ratios, and the share of
the throughput that a matrix product reaches in the same precision.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import groupby

import timm
import torch
from torch import Tensor, nn

from backbones.backbone import create
from backbones.flops import flops
from backbones.pretrain.dino.training import DinoLearner
from tests.benchmarks.speed.timing import Step, contest, own_step, read
from tests.support import command
from transfer.engine.context import Context
from transfer.engine.step import Stepper

GLOBAL, LOCAL, PROTOTYPES = 224, 96, 65536


class Plain(nn.Module):
    """timm's ViT-S with a DINO head."""

    def __init__(self, drop_path: float) -> None:
        super().__init__()
        shape = {"num_classes": 0, "dynamic_img_size": True}
        self.backbone = timm.create_model("vit_small_patch16_224", drop_path_rate=drop_path, **shape)
        hidden = (nn.Linear(384, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU())
        self.mlp = nn.Sequential(*hidden, nn.Linear(2048, 256))
        self.last_layer = nn.utils.parametrizations.weight_norm(nn.Linear(256, PROTOTYPES, bias=False))
        self.last_layer.parametrizations.weight.original0.data.fill_(1)
        self.last_layer.parametrizations.weight.original0.requires_grad_(False)

    def forward(self, crops: list[Tensor]) -> Tensor:
        groups = [torch.cat(list(group)) for _, group in groupby(crops, lambda crop: crop.shape[-1])]
        features = torch.cat([self.backbone(group) for group in groups])
        return self.last_layer(nn.functional.normalize(self.mlp(features), dim=-1))


def plain_loss(student: Tensor, teacher: Tensor, center: Tensor, crops: int) -> Tensor:
    """One cross-entropy for each pair of different crops."""
    views = (student / 0.1).chunk(crops)
    targets = ((teacher - center) / 0.04).softmax(-1).detach().chunk(2)
    pairs = [(target, view) for i, target in enumerate(targets) for j, view in enumerate(views) if i != j]
    terms = [(-target * view.log_softmax(-1)).sum(-1).mean() for target, view in pairs]
    return torch.stack(terms).mean()


def peer(crops: list[Tensor], device: torch.device, dtype: torch.dtype | None, compiled: bool) -> Step:
    """The loop that everybody writes."""
    student, teacher = Plain(0.1).to(device).train(), Plain(0.0).to(device).train()
    teacher.load_state_dict(student.state_dict())
    teacher.requires_grad_(False)
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.04)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    center = torch.zeros(1, PROTOTYPES, device=device)
    teach, learn = (torch.compile(net) if compiled else net for net in (teacher, student))

    def step() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            outputs = teach(crops[:2])
            loss = plain_loss(learn(crops), outputs, center, len(crops))
        assert math.isfinite(loss.item())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        for parameter in trained:
            assert parameter.grad is not None
            factor = 3.0 / (parameter.grad.norm() + 1e-6)
            if factor < 1:
                parameter.grad.mul_(factor)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), student.parameters()):
                mine.mul_(0.996).add_(0.004 * theirs)
            center.copy_(center * 0.9 + outputs.mean(0, keepdim=True) * 0.1)

    return step


def ours(crops: list[Tensor], stem: str, context: Context, compiled: bool) -> tuple[Step, float]:
    """The suite's own step, and the operations of one image in it, those of the heads left out."""
    flag = "--compile" if compiled else "--no-compile"
    options = command("dino", "--backbone", "vit_s", flag, "--no-sync-bn").options
    make = partial(create, "vit_s", weights="random", stem=stem, img_size=GLOBAL)
    student, teacher = make(drop_path=options.drop_path), make(drop_path=0.0)
    whole, part = (flops(student, (side, side))["total"] for side in (GLOBAL, LOCAL))
    stepper = Stepper(DinoLearner(student, teacher, options, epoch_steps=1250), options, context)
    operations = 3 * (2 * whole + (len(crops) - 2) * part) + 2 * whole
    return partial(own_step(stepper, 20.0), [crops, torch.zeros(len(crops[0]), device=context.device)]), operations


def main(argv: Sequence[str]) -> int:
    """Runs the contestants in turn and prints the table."""
    given, device = read(argv, __doc__, batch_size=2, steps=1, precision="auto", compile=False)
    sizes = [GLOBAL] * 2 + [LOCAL] * 8
    crops = [torch.rand(given.batch_size, 3, side, side, device=device) for side in sizes]
    return contest(partial(peer, crops, device), partial(ours, crops, given.stem), given, device)
