"""DINO (Caron et al. 2021, github.com/facebookresearch/dino) from a checkout of its repository, run on a CPU in fp32.

Its own code makes the networks, heads, loss, crops, schedules and parameter groups, and its own loop trains; nothing of
it is kept here. What its code needs from a GPU is stood in for at run time.
"""

import importlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed
from torch import Tensor, nn

from backbones.pretrain.dino.learner import Network
from backbones.pretrain.dino.method import DinoOptions
from tests.benchmarks.parity.checks import Batches, importing
from transfer.core.seeding import seed_torch

ROOMS = ("utils", "vision_transformer", "main_dino")
Crops = list[Tensor]


class Peer:
    """The peer's modules, and the pair of networks, loss and optimizer that its `train_dino` makes.

    Args:
        checkout: of the peer's repository.
        options: ours; the peer gets the same values.
        steps: per epoch.

    Raises:
        UserError: `checkout` is not the peer's repository.
    """

    def __init__(self, checkout: Path, options: DinoOptions, steps: int) -> None:
        self.modules, self.options, self.steps = _import(checkout), options, steps
        schedule = self.modules["utils"].cosine_scheduler
        epochs, o = options.epochs, options
        self.rates = schedule(o.lr, o.cosine_end, epochs, steps, warmup_epochs=int(o.warmup_epochs))
        self.decays = schedule(o.weight_decay, o.weight_decay_end, epochs, steps)
        self.momenta = schedule(o.teacher_momentum, 1, epochs, steps)

    def network(self, dim: int, depth: int, heads: int, patch: int, drop: float, norm_last_layer: bool) -> Any:
        """A vision transformer with its head, as the peer wraps them."""
        vit = self.modules["vision_transformer"].VisionTransformer(
            img_size=[self.options.size], patch_size=patch, embed_dim=dim, depth=depth, num_heads=heads, qkv_bias=True,
            norm_layer=lambda width: nn.LayerNorm(width, eps=1e-6), drop_path_rate=drop,
        )  # fmt: skip
        with warnings.catch_warnings(action="ignore"):  # its weight norm is deprecated
            made = self.modules["vision_transformer"].DINOHead
            head = made(dim, self.options.out_dim, norm_last_layer=norm_last_layer)
        return self.modules["utils"].MultiCropWrapper(vit, head)

    def loss(self) -> Any:
        """Its criterion, with the center."""
        o = self.options
        return self.modules["main_dino"].DINOLoss(
            o.out_dim, 2 + o.local_crops, o.warmup_teacher_temp, o.teacher_temp, o.warmup_teacher_temp_epochs,
            o.epochs, o.student_temp, o.center_momentum,
        )  # fmt: skip

    def crops(self) -> Any:
        """Its augmentation, PIL image -> crops as normalised."""
        main = self.modules["main_dino"]
        return main.DataAugmentationDINO(self.options.global_area, self.options.local_area, self.options.local_crops)

    def train(self, student: Any, teacher: Any, batches: Sequence[Crops]) -> SimpleNamespace:
        """Trains in place with the peer's own loop; what it went through, step by step.

        Args:
            batches: the crops of every step, as normalised.
        """
        main, criterion = self.modules["main_dino"], self.loss()
        trace = SimpleNamespace(losses=[], rates=[], decays=[])
        optimizer = torch.optim.AdamW(self.modules["utils"].get_params_groups(student), foreach=False)

        def noted(student_output: Tensor, teacher_output: Tensor, epoch: int) -> Tensor:
            loss = criterion(student_output, teacher_output, epoch)
            trace.losses.append(loss.item())
            trace.rates.append(optimizer.param_groups[0]["lr"])
            trace.decays.append(optimizer.param_groups[0]["weight_decay"])
            return loss

        arguments = SimpleNamespace(**vars(self.options))
        with self._on_a_cpu():
            wrapped = nn.parallel.DistributedDataParallel(student)
            for epoch in range(-(-len(batches) // self.steps)):
                start = epoch * self.steps
                crops = [(crops, None) for crops in batches[start : start + self.steps]]
                loader = Batches(crops, lambda step: seed_torch(0, step, 0, 0), start + 1)  # as our steps
                main.train_one_epoch(
                    wrapped, teacher, teacher, noted, loader, optimizer, self.rates, self.decays, self.momenta, epoch,
                    None, arguments,
                )  # fmt: skip
        trace.center = criterion.center[0]
        return trace

    @contextmanager
    def _on_a_cpu(self) -> Iterator[None]:
        """One gloo process; tensors stay where they are."""
        with (
            tempfile.TemporaryDirectory() as folder,
            mock.patch.object(Tensor, "cuda", lambda tensor, **_: tensor),
            mock.patch.object(torch.cuda, "synchronize"),
            mock.patch.object(self.modules["utils"].MetricLogger, "synchronize_between_processes"),
            warnings.catch_warnings(action="ignore"),
            redirect_stdout(io.StringIO()),
        ):
            torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
            try:
                yield
            finally:
                torch.distributed.destroy_process_group()


def take_weights(theirs: Any, ours: Network) -> None:
    """Our weights in the peer's network; both sides have timm's names but for the weight norm's."""
    state = {name: value.detach().clone() for name, value in ours.state_dict().items()}
    renamed = {name.replace("backbone.model.", "backbone."): value for name, value in state.items()}
    renamed.setdefault("head.last_layer.weight_g", torch.ones(len(renamed["head.last_layer.weight_v"]), 1))
    theirs.load_state_dict(renamed)


def _import(checkout: Path) -> dict[str, ModuleType]:
    with importing(checkout, "main_dino.py", "facebookresearch/dino", ROOMS, {}):
        return {name: importlib.import_module(name) for name in ROOMS}
