"""What the tests of DINO share: options, backbones of one block, crops of random pixels."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from backbones import create
from backbones.pretrain.dino.method import DinoOptions
from backbones.pretrain.dino.training import DinoLearner
from tests.support import PLAIN
from transfer.core.seeding import key_seed
from transfer.data.loading.loader import RunLoader, shuffled_batches

DINO = {
    **PLAIN, "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.04, "weight_decay_end": 0.4, "no_decay": ("1d",),
    "clip_grad": 3.0, "clip_grad_per_param": True, "label_fraction": 1.0, "fraction_seed": 0, "validate_at": (),
    "batch_size": 4,
    "size": 32, "global_area": (0.4, 1.0), "local_size": 16, "local_area": (0.05, 0.4), "local_crops": 2,
    "image_ops": "pil",
    "blur": (0.1, 2.0), "resize": 32, "drop_path": 0.0, "out_dim": 24, "norm_last_layer": True, "freeze_last_layer": 0,
    "student_temp": 0.1, "teacher_temp": 0.04, "warmup_teacher_temp": 0.04, "warmup_teacher_temp_epochs": 0,
    "teacher_momentum": 0.9, "center_momentum": 0.9, "teacher_bn": "own", "local_bn": True, "export": "teacher",
    "knn_k": 3, "knn_temperature": 0.07, "eval_batch_size": 16,
}  # fmt: skip


def dino_options(**given: Any) -> DinoOptions:
    """Options of a short run on crops of 32 and 16 pixels, with some replaced."""
    return DinoOptions(**{**DINO, **given})


def make(options: DinoOptions, epoch_steps: int = 4, *, stem: str = "patchify") -> DinoLearner:
    """A learner on two blocks, 64 wide, from a seed."""
    torch.manual_seed(0)
    shape = {"patch": 8, "stem": stem, "img_size": options.size, "weights": "random"}
    student = create("tiny", drop_path=options.drop_path, **shape)
    return DinoLearner(student, create("tiny", **shape), options, epoch_steps)


def crops(batch: int = 4, locals_: int = 2, seed: int = 0) -> list[Tensor]:
    """Two crops of 32 pixels and some of 16."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(batch, 3, side, side, generator=generator) for side in (32, 32, *[16] * locals_)]


class Crops(Dataset[tuple[list[Tensor], Tensor]]):
    """Crops whose pixels are a function of the key, as augmentation is."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, key: tuple[int, int, int]) -> tuple[list[Tensor], Tensor]:
        return [crop[0] for crop in crops(1, seed=key_seed(*key) % 2**31)], torch.tensor(key[1] % 2)


def feed(batch: int = 4, **given: Any) -> RunLoader:
    """Four batches of `Crops` an epoch."""
    return RunLoader(Crops(), lambda epoch: shuffled_batches(16, batch, seed=0, epoch=epoch, drop_last=True), **given)
