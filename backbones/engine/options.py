"""The options of one training run, shared by every task and pretraining method. Values live in YAML, none here."""

from dataclasses import dataclass
from typing import Literal

from backbones.errors import WrongWords


@dataclass(kw_only=True)
class FitOptions:
    """What `fit` needs to know."""

    epochs: int
    """Passes over the training data."""
    optimizer: Literal["sgd", "adamw"]
    """SGD with momentum, or AdamW (betas 0.9, 0.999)."""
    lr: float
    """Peak learning rate. The value given is the value used: no scaling by batch or world size."""
    momentum: float
    """Momentum of SGD."""
    weight_decay: float
    """Coupled l2 decay for SGD, decoupled decay for AdamW."""
    bias_factor: float
    """Peak rate of bias parameters as a multiple of lr."""
    no_decay: tuple[str, ...]
    """Shell patterns of names of parameters without weight decay; `1d` stands for biases, norms and other vectors."""
    layer_decay: float
    """Rate of each layer as a multiple of the next one's; 1 leaves all equal."""
    schedule: Literal["step", "epoch"]
    """Whether the cosine schedule moves with every step or is held for an epoch."""
    schedule_offset: int
    """Epochs added to the clock of `schedule: epoch` (1: the rate of an epoch is that of its end)."""
    warmup_epochs: float
    """Epochs of linear warm-up; the cosine's clock runs from the first epoch."""
    warmup_prefix: bool
    """Whether the cosine's clock starts after the warm-up instead."""
    warmup_from: float
    """Rate at the start of the warm-up."""
    cosine_to: float
    """Rate at the end of the cosine."""
    ends: Literal["factor", "absolute"]
    """Whether warmup_from and cosine_to are multiples of lr or rates."""
    clip: float | None
    """Largest norm of the whole gradient."""
    accumulate: int
    """Micro-batches per step; batch statistics and mining then see one micro-batch at a time."""
    precision: Literal["auto", "bf16", "fp16", "fp32"]
    """`auto` is bf16 where the machine has it, else fp32; what it resolves to is recorded."""
    sync_bn: bool
    """Whether batch norm in the backbone sees the batch of all ranks."""
    judge_after: int
    """Steps past the warm-up before a run can be called diverged, collapsed or at chance."""

    def __post_init__(self) -> None:
        for name in ("epochs", "accumulate"):
            if getattr(self, name) < 1:
                raise WrongWords(f"--{name} {getattr(self, name)}: must be at least 1")
        for name in ("lr", "momentum", "weight_decay", "bias_factor", "warmup_epochs", "judge_after"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise WrongWords(
                    f"--{name.replace('_', '-')} {getattr(self, name)}: must be a finite number, 0 or more"
                )
        if not 0 < self.layer_decay <= 1:
            raise WrongWords(f"--layer-decay {self.layer_decay}: must be in (0, 1]")
        if self.clip is not None and self.clip <= 0:
            raise WrongWords(f"--clip {self.clip}: must be positive, or None for no clipping")
        if self.warmup_epochs >= self.epochs and self.warmup_prefix:
            raise WrongWords(f"--warmup-epochs {self.warmup_epochs}: leaves nothing of --epochs {self.epochs}")
