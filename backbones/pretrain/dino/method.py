"""The method `dino`: options, metrics, version; see `backbones.pretrain.dino.training`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from backbones.pretrain.method import PretrainingMethod, PretrainOptions
from transfer.core.errors import reject
from transfer.core.options import Common, Execution, Needs, Range, Span
from transfer.data.loading.options import ImageOpsOptions
from transfer.task import Metric


@dataclass(kw_only=True)
class DinoOptions(ImageOpsOptions, PretrainOptions):
    """Options of the `dino` method besides those of the training loop."""

    batch_size: Annotated[int, Range(1), Common()]
    """Images per batch, over all ranks and micro-batches."""
    size: Annotated[int, Range(1), Common()]
    """Height and width of the global crops in pixels. Images of the k-NN evaluation have this size too."""
    global_area: Annotated[tuple[float, float], Range(0, 1, rising=True)]
    """Smallest and largest area share of a global crop."""
    local_size: Annotated[int, Needs(local_crops=True), Range(1)]
    """Height and width of the local crops in pixels."""
    local_area: Annotated[tuple[float, float], Needs(local_crops=True), Range(0, 1, rising=True)]
    """Smallest and largest area share of a local crop."""
    local_crops: Annotated[int, Range(0)]
    """Local crops per image."""
    blur: Annotated[tuple[float, float] | None, Range(0)]
    """Smallest and largest blur radius in pixels; None is off."""
    resize: Annotated[int | None, Range(1)]
    """Shorter side before the k-NN evaluation's crop. None is floor(size / 0.875)."""
    drop_path: Annotated[float, Range(0, 1), Common()]
    """Stochastic depth of the student's last block; earlier blocks grow to it linearly. The teacher has none."""
    out_dim: Annotated[int, Range(2)]
    """Prototypes (K): outputs of the projection head."""
    norm_last_layer: bool
    """Keep the norms of the last layer's weights at 1."""
    freeze_last_layer: Annotated[int, Span(whole=True), Range(0)]
    """First epochs in which the last layer is not trained."""
    student_temp: Annotated[float, Range(1e-9)]
    """Temperature of the student's softmax."""
    teacher_temp: Annotated[float, Range(1e-9)]
    """Temperature of the teacher's softmax after its warm-up."""
    warmup_teacher_temp: Annotated[float, Needs(warmup_teacher_temp_epochs=True), Range(1e-9)]
    """Teacher's temperature at the start of its warm-up."""
    warmup_teacher_temp_epochs: Annotated[int, Span(whole=True), Range(0)]
    """Epochs in which the teacher's temperature grows linearly; held for an epoch each."""
    teacher_momentum: Annotated[float, Range(0, 1)]
    """Share of its own that the teacher keeps in a step; grows to 1 along a cosine over all steps."""
    center_momentum: Annotated[float, Range(0, 1)]
    """Momentum of the center of the teacher's outputs."""
    teacher_bn: Literal["own", "ema", "eval"]
    """Batch norm of the teacher in training. own: batch statistics, and running ones of its own (the reference). ema:
    batch statistics; the running ones are the moving average of the student's. eval: normalises by that average."""
    local_bn: Annotated[bool, Needs(local_crops=True)]
    """Update the student's batch norms by local crops too. Global crops update them in any case."""
    export: Literal["teacher", "student"]
    """Network whose backbone is scored and exported. The heads are not."""
    knn_k: Annotated[int, Range(1)]
    """Neighbours that vote in the k-NN evaluation."""
    knn_temperature: Annotated[float, Range(1e-9)]
    """Temperature of their votes."""
    eval_batch_size: Annotated[int, Range(1), Execution()]
    """Images per batch when features are extracted, per rank."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop_path == 1:
            reject("--drop-path must be below 1")
        if self.resize is not None and self.resize < self.size:
            reject(f"--resize {self.resize}: must be at least --size {self.size}")
        if self.local_size == self.size and self.local_crops and not self.local_bn:
            reject("--no-local-bn: crops of equal size share one pass; set --local-size different from --size")


class Dino(PretrainingMethod):
    """A backbone whose features agree across crops of an image with those of its own moving average."""

    module = "backbones.pretrain.dino.training"
    name, version, options, primary = "pretrain-dino", 1, DinoOptions, "knn_top1"
    metrics = {name: Metric() for name in ("knn_top1", "knn_top5")}  # noqa: RUF012


METHOD = Dino()
