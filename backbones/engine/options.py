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
        check_ranges(self, 1, None, "epochs", "accumulate")
        check_ranges(self, 0, None, "lr", "weight_decay", "bias_factor", "warmup_epochs", "judge_after", "warmup_from")
        check_ranges(self, 0, None, "cosine_to", "clip")
        check_ranges(self, 0, 1, "momentum", "layer_decay")
        if self.layer_decay == 0 or self.clip == 0:
            raise WrongWords("--layer-decay and --clip must be positive (--clip None for no clipping)")
        if self.warmup_epochs >= self.epochs and self.warmup_prefix:
            raise WrongWords(f"--warmup-epochs {self.warmup_epochs}: leaves nothing of --epochs {self.epochs}")


def check_ranges(options: object, low: float, high: float | None, *names: str) -> None:
    """Raises WrongWords for the first field outside [low, high] or not a number; None and None values are no limits."""
    for name in names:
        value = getattr(options, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and not (low <= number <= (float("inf") if high is None else high)):
                limits = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
                raise WrongWords(f"--{name.replace('_', '-')} {value}: must be {limits}")
