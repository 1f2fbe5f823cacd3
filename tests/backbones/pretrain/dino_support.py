"""What the tests of DINO share: options, backbones of one block, crops of random pixels."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from backbones import create
from backbones.pretrain.dino.method import DinoOptions
from backbones.pretrain.dino.training import DinoLearner
from tests.support import command
from transfer.core.seeding import key_seed
from transfer.data.loading.loader import RunLoader, shuffled_batches

DINO = vars(command("dino", "--backbone", "tiny", "--smoke").options) | {
    "epochs": 3, "lr": 1e-3, "warmup_epochs": 0.0, "warmup_lr": None, "warmup_prefix": False, "warmup_inclusive": False,
    "min_lr": None, "precision": "fp32", "sync_bn": False, "batch_size": 4, "eval_batch_size": 16, "size": 32,
    "local_size": 16, "resize": 32, "drop_path": 0.0, "out_dim": 24, "teacher_momentum": 0.9, "knn_k": 3,
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
