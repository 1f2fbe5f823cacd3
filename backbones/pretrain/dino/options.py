"""The options of DINO; `configs/pretrain/dino.yaml` sets their values."""

from dataclasses import dataclass
from typing import Annotated, Literal

from backbones.pretrain.options import PretrainOptions
from transfer.core.errors import reject
from transfer.core.options import Needs, Span, check_ranges, check_rising
from transfer.data.loading.options import ImageOpsOptions


@dataclass(kw_only=True)
class DinoOptions(ImageOpsOptions, PretrainOptions):
    """Options of the `dino` method besides those of the training loop."""

    batch_size: int
    """Images per batch, over all ranks and micro-batches."""
    size: int
    """Height and width of the global crops in pixels. Images of the k-NN evaluation have this size too."""
    global_area: tuple[float, float]
    """Smallest and largest area share of a global crop."""
    local_size: Annotated[int, Needs(local_crops=True)]
    """Height and width of the local crops in pixels."""
    local_area: Annotated[tuple[float, float], Needs(local_crops=True)]
    """Smallest and largest area share of a local crop."""
    local_crops: int
    """Local crops per image."""
    blur: tuple[float, float] | None
    """Smallest and largest blur radius in pixels; None is off."""
    resize: int | None
    """Shorter side before the k-NN evaluation's crop. None is floor(size / 0.875)."""
    drop_path: float
    """Stochastic depth of the student's last block; earlier blocks grow to it linearly. The teacher has none."""
    out_dim: int
    """Prototypes (K): outputs of the projection head."""
    norm_last_layer: bool
    """Keep the norms of the last layer's weights at 1."""
    freeze_last_layer: Annotated[int, Span(whole=True)]
    """First epochs in which the last layer is not trained."""
    student_temp: float
    """Temperature of the student's softmax."""
    teacher_temp: float
    """Temperature of the teacher's softmax after its warm-up."""
    warmup_teacher_temp: Annotated[float, Needs(warmup_teacher_temp_epochs=True)]
    """Teacher's temperature at the start of its warm-up."""
    warmup_teacher_temp_epochs: Annotated[int, Span(whole=True)]
    """Epochs in which the teacher's temperature grows linearly; held for an epoch each."""
    teacher_momentum: float
    """Share of its own that the teacher keeps in a step; grows to 1 along a cosine over all steps."""
    center_momentum: float
    """Momentum of the center of the teacher's outputs."""
    teacher_bn: Literal["own", "ema", "eval"]
    """Batch norm of the teacher in training. own: batch statistics, and running ones of its own (the reference). ema:
    batch statistics; the running ones are the moving average of the student's. eval: normalises by that average."""
    local_bn: Annotated[bool, Needs(local_crops=True)]
    """Update the student's batch norms by local crops too. Global crops update them in any case."""
    export: Literal["teacher", "student"]
    """Network whose backbone is scored and exported. The heads are not."""
    knn_k: int
    """Neighbours that vote in the k-NN evaluation."""
    knn_temperature: float
    """Temperature of their votes."""
    eval_batch_size: int
    """Images per batch when features are extracted, per rank."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ranges(self, 1, None, "batch_size", "size", "local_size", "resize", "knn_k", "eval_batch_size")
        check_ranges(self, 2, None, "out_dim")
        check_ranges(self, 0, None, "local_crops", "freeze_last_layer", "warmup_teacher_temp_epochs", "blur")
        check_ranges(self, 0, 1, "drop_path", "teacher_momentum", "center_momentum", "global_area", "local_area")
        check_ranges(self, 1e-9, None, "student_temp", "teacher_temp", "warmup_teacher_temp", "knn_temperature")
        check_rising(self, "global_area", "local_area")
        if self.drop_path == 1:
            reject("--drop-path must be below 1")
        if self.resize is not None and self.resize < self.size:
            reject(f"--resize {self.resize}: must be at least --size {self.size}")
        if self.local_size == self.size and self.local_crops and not self.local_bn:
            reject("--no-local-bn: crops of equal size share one pass; set --local-size different from --size")
