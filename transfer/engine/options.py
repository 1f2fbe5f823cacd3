"""The options of one training run, shared by every task and pretraining method. Values live in YAML, none here."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from transfer.core.errors import reject
from transfer.core.options import Added, Checked, Common, Execution, Needs, Range, Span

TRAINING = Needs(epochs=True)
"""Condition of options that only training reads; `--epochs 0` evaluates the weights as they are."""
RESOLVED = ("precision", "eval_precision")
"""The options that count as what they come to on the machine, also those of a user's own dataclass."""


@dataclass(kw_only=True)
class FitOptions(Checked):
    """The training loop."""

    epochs: Annotated[int | float, Range(0), Common()]
    """Passes over the training data. Of a fraction, as 4.37, the last epoch is cut short."""
    trainable: Annotated[tuple[str, ...], TRAINING, Common()]
    """Name patterns of the parameters that train; `*` is all of them."""
    optimizer: Annotated[Literal["sgd", "adamw"], TRAINING]
    """SGD with momentum, or AdamW (betas 0.9, 0.999)."""
    lr: Annotated[float, TRAINING, Range(0), Common()]
    """Peak learning rate. The value given is the value used: no scaling by batch or world size."""
    momentum: Annotated[float, Needs(optimizer="sgd"), Range(0, 1)]
    """Momentum of SGD."""
    weight_decay: Annotated[float, TRAINING, Range(0), Common()]
    """Coupled l2 decay for SGD, decoupled decay for AdamW."""
    weight_decay_end: Annotated[float | None, TRAINING, Range(0)]
    """Weight decay at the end of a cosine; None keeps it constant. It runs over all epochs, at the
    schedule position of the learning rate."""
    decay_scale: Annotated[Literal["rate", "schedule"], Needs(optimizer="adamw")]
    """What scales decoupled decay, lr or its schedule. `schedule` multiplies by the learning rate /
    its peak (big_vision)."""
    bias_lr_factor: Annotated[float, TRAINING, Range(0)]
    """Peak learning rate of bias parameters as a multiple of lr."""
    no_decay: Annotated[tuple[str, ...], TRAINING]
    """Name patterns of parameters without weight decay. With `norm:` before it a pattern means norm layers alone; `1d`
    stands for biases, norms and other vectors."""
    decay_norm: Annotated[bool, TRAINING]
    """Apply weight decay to norm layers even if `no_decay` contains `1d`."""
    layer_decay: Annotated[float, TRAINING, Range(0, 1)]
    """Learning rate of a layer as a multiple of the next one's. 1 is the same for all."""
    schedule: Annotated[Literal["step", "epoch"], TRAINING]
    """Move the cosine with every step, or hold it per epoch."""
    schedule_offset: Annotated[int, Needs(schedule="epoch")]
    """Epochs added to the position of `schedule: epoch`. With 1 an epoch has the learning rate of its end."""
    warmup_epochs: Annotated[float, TRAINING, Span(), Range(0), Common()]
    """Epochs of linear warm-up. The cosine starts at the first epoch."""
    warmup_prefix: Annotated[bool, Needs(warmup_epochs=True, also=Needs(milestones=None))]
    """Start the cosine after the warm-up."""
    warmup_lr: Annotated[float | None, Needs(warmup_epochs=True), Range(0)]
    """Learning rate at the start of warm-up. None: warmup_lr_factor times lr."""
    warmup_lr_factor: Annotated[float, Needs(warmup_lr=None), Range(0)]
    """The same as a multiple of lr, used if `warmup_lr` is None."""
    warmup_inclusive: Annotated[bool, Needs(warmup_epochs=True)]
    """Reach the peak learning rate in the last warm-up step. Otherwise the next step would be the first with it, where
    the curve does not fall yet (--warmup-prefix)."""
    min_lr: Annotated[float | None, Needs(milestones=None), Range(0)]
    """Learning rate at the end of the cosine. None: min_lr_factor times lr."""
    min_lr_factor: Annotated[float, Needs(min_lr=None), Range(0)]
    """The same as a multiple of lr, used if `min_lr` is None."""
    curve: Annotated[Literal["cosine", "linear"], Needs(milestones=None), Added("cosine")] = "cosine"
    """How the learning rate falls to its end."""
    cooldown_epochs: Annotated[float, Needs(milestones=None, otherwise=Needs(weight_decay_end=True)), Span(), Range(0)]
    """Last epochs, at the final learning rate and weight decay."""
    milestones: Annotated[tuple[float, ...] | None, TRAINING, Span()]
    """Epochs at which lr is multiplied by 0.1 (empty: constant; None: it follows --curve). They may be fractional."""
    clip_grad: Annotated[float | None, TRAINING, Range(0)]
    """Maximum gradient norm; None disables clipping."""
    clip_grad_per_param: Annotated[bool, Needs(clip_grad=True)]
    """Clip the gradient of each parameter by itself. Otherwise the norm of the whole gradient is bounded."""
    sam: Annotated[Literal["none", "sam", "asam"], TRAINING]
    """Sharpness-aware minimization. It takes two passes a step; asam scales the perturbation by the weights."""
    sam_rho: Annotated[float, Needs(sam=("sam", "asam")), Range(0)]
    """Radius of the perturbation."""
    sam_sync: Annotated[bool, Needs(sam=("sam", "asam"))]
    """Compute SAM's perturbation from the gradient of all ranks instead of per rank."""
    grad_accum_steps: Annotated[int, TRAINING, Range(1)]
    """Micro-batches per step. Batch statistics and mining then see one micro-batch at a time."""
    precision: Annotated[Literal["auto", "bf16", "fp16", "fp32"], TRAINING, Common()]
    """Precision of training; auto is bf16 where available. Elsewhere it is fp32; what it resolves to is recorded."""
    eval_precision: Literal["fp32", "run", "bf16", "fp16"]
    """Precision of the network in evaluation. Validation counts too; fp32 is without TF32, `run` is that of
    training."""
    sync_bn: Annotated[bool, TRAINING]
    """Compute batch-norm statistics over all ranks."""
    compile: Annotated[bool, Execution()]
    """Compile the training's forward pass by torch.compile."""
    watch: Annotated[Literal["none", "blocks"], TRAINING, Execution(), Added("none")] = "none"
    """Record the largest attention logit and gradient norm of each block. They go to history.jsonl and the tracker."""
    watch_every: Annotated[int, Needs(watch="blocks"), Range(1), Execution(), Added(50)] = 50
    """Steps between these values; the first step always has them."""
    stop_early: Annotated[bool, TRAINING]
    """Stop training early if it meets the rule for failed runs. It must do so at five consecutive tenths of its epochs
    after warm-up."""

    @property
    def last_epoch(self) -> int:
        """The number of the last epoch, from 1, which may be cut short."""
        return math.ceil(self.epochs)

    @property
    def warmup_start(self) -> float:
        """The learning rate at the start of the warm-up."""
        return self.warmup_lr_factor * self.lr if self.warmup_lr is None else self.warmup_lr

    @property
    def cosine_end(self) -> float:
        """The learning rate at the end of the cosine."""
        return self.min_lr_factor * self.lr if self.min_lr is None else self.min_lr

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs == self.last_epoch:
            self.epochs = self.last_epoch  # 5.0 is the same run as 5
        if not self.trainable:
            reject("--trainable: set at least one pattern ('*' trains everything)")
        if self.layer_decay == 0:
            reject("--layer-decay 0: must be positive")
        if self.clip_grad == 0:
            reject("--clip-grad 0: must be positive (None for no clipping)")
        if self.epochs == 0:
            return  # training options have no effect
        if self.lr == 0:
            reject("--lr 0 would train nothing; set a positive rate, or --epochs 0 to evaluate without training")
        warm, cool, offset = self.warmup_epochs, self.cooldown_epochs, self.schedule_offset
        offset = offset if self.schedule == "epoch" else 0
        if warm + max(cool, -offset if warm else 0) >= self.epochs:
            spans = {"--warmup-epochs": warm, "--cooldown-epochs": cool, "--schedule-offset": offset}
            text = ", ".join(f"{flag} {value:g}" for flag, value in spans.items() if value)
            reject(
                f"{text}: the peak learning rate is never reached in --epochs {self.epochs}; lower it or raise --epochs"
            )
        if self.warmup_inclusive and self.schedule != "step":
            reject("--warmup-inclusive counts steps: it needs --schedule step")
        falls = self.milestones or ()
        if list(falls) != sorted({*falls}) or any(not 0 < epoch < self.epochs for epoch in falls):
            reject(f"--milestones {' '.join(map(str, falls))}: set rising epochs between 0 and --epochs {self.epochs}")
        warm_up = f"--warmup-epochs {warm:g} with --schedule epoch, which holds the rate for an epoch"
        if self.schedule == "epoch" and warm % 1:
            reject(f"{warm_up}: use whole epochs or --schedule step")
        if self.schedule == "epoch" and warm and not self.warmup_start and offset <= 0:
            fix = "set --schedule step or --warmup-lr above 0 (DeiT's is 1e-6)"
            fix += " or --schedule-offset 1" if self.cosine_end else ""
            reject(f"{warm_up}: the first epoch would train at 0; {fix}")
        if math.floor(cool + max(offset, 0)) and not self.cosine_end and self.milestones is None:
            held = f"--cooldown-epochs {cool:g}, --schedule-offset {offset}"
            fix = "set it above 0, or remove the cool-down and --schedule-offset"
            reject(f"--min-lr 0: the last epochs would train at 0 ({held}); {fix}")
        if self.decay_scale == "schedule" and self.optimizer == "sgd":
            reject("--decay-scale schedule: the decay of SGD is part of the gradient; use --optimizer adamw")
        if self.decay_scale == "schedule" and self.bias_lr_factor == 0:
            reject("--decay-scale schedule divides by the peak rate: --bias-lr-factor must be positive")
        if self.sam != "none" and self.sam_rho == 0:
            reject(f"--sam-rho 0: --sam {self.sam} needs a positive radius")


Precision = Literal["bf16", "fp16", "fp32"]
