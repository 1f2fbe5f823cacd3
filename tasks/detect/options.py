"""Options of detection fine-tuning, and detectors as their YAML files describe them."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from backbones.spec import BackboneSpec
from transfer.core.errors import UsageError, did_you_mean, kept, reject, unknown
from transfer.core.options import Common, Execution, Files, Needs, Range
from transfer.core.settings import CONFIGS, config_names, read_yaml
from transfer.core.user_code import has_parameter, is_user_part
from transfer.engine.options import TRAINING, FitOptions


@dataclass(frozen=True, kw_only=True)
class DetectorSpec:
    """A detector as described by its YAML file."""

    name: str
    base: str
    """Name of a file of mmdetection's configs/_base_/models, without its suffix."""
    masks: bool
    """Whether the detector predicts masks."""
    model: dict[str, Any]
    """Values merged into the base, as mmdetection's own configurations merge one file into another."""


def resolve_detector(name: str) -> DetectorSpec:
    """Read the description of a detector from a shipped name, or from a YAML file with the same keys.

    Raises:
        UsageError: the name or a key is unknown, or a value is of the wrong type.
    """
    path = Path(name).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        if name not in (known := config_names("detectors")):
            raise unknown("detector", name, known, "; or a YAML")
        path = CONFIGS / "detectors" / f"{name}.yaml"
    content = {"name": path.stem, "model": {}, **read_yaml(path)}
    known_keys = {item.name: {"masks": bool, "model": dict}.get(item.name, str) for item in fields(DetectorSpec)}
    for key in sorted(content.keys() ^ known_keys.keys()):
        problem = "missing" if key in known_keys else f"unknown{did_you_mean(key, known_keys)}"
        raise UsageError(f"{path}: the key {key!r} is {problem}")
    for key, value in content.items():
        if not isinstance(value, known_keys[key]):
            raise UsageError(f"{path}: `{key}` is {value!r}; it must be of type {known_keys[key].__name__}")
    return DetectorSpec(**content)


@dataclass(kw_only=True)
class DetectOptions(FitOptions):
    """Options of `transfer.run detect` besides those of the training loop."""

    detector: Annotated[str | None, Files(), Common()]
    """A name of configs/detectors, or a YAML file. None: mask_rcnn where the data has masks, else faster_rcnn."""
    pyramid: Literal["simple", "taps"]
    """What the levels of the pyramid are made of. They come from the last map (ViTDet), or from four blocks through an
    FPN; for models with several strides it is the FPN."""
    out_indices: Annotated[tuple[int, ...] | None, Needs(pyramid="taps")]
    """The four blocks of --pyramid taps. None: the last of each quarter."""
    window: Annotated[int, Range(0)]
    """Side of the attention windows in tokens; 0: every block sees the whole image."""
    window_padding: Annotated[Literal["keys", "masked"], Needs(window=True)]
    """How windows end beyond the image. `masked` has no keys there, so that every attention sees the image's tokens
    alone and L counts these; `keys` has zeros that pass through the projections, as in ViTDet's published results."""
    global_blocks: Annotated[tuple[int, ...] | None, Needs(window=True)]
    """Blocks without windows. None: the last of each quarter."""
    relative: bool
    """Relative positions within the attention, from zero; a function of one's own can have them if it takes `scale`."""
    grad_checkpointing: Annotated[bool, Execution()]
    """Recompute activations in the backward pass. It takes less memory and a third more time."""
    norm_eval: Annotated[bool, TRAINING]
    """Keep the statistics of the backbone's batch norms. Small batches give poor ones."""
    drop_path: Annotated[float, TRAINING, Range(0, 0.99), Common()]
    """Stochastic depth of the last block; earlier blocks grow to it linearly."""
    resize_mode: Literal["jitter", "resize", "scales"]
    """How training images are resized. Large-scale jitter, 0.1 to 2 times the size and cropped to it; the whole image;
    or the whole image with the limit of its shorter side drawn from 0.6 to 1 times that of --size."""
    size: Annotated[tuple[int, int], Range(1), Common()]
    """Limits of the shorter and longer side in pixels; with jitter the height and width of the crop."""
    flip: Annotated[float, TRAINING, Range(0, 1)]
    """Probability of a horizontal flip."""
    batch_size: Annotated[int, TRAINING, Range(1), Common()]
    """Images per step, over all ranks."""
    eval_batch_size: Annotated[int, Range(1), Execution()]
    """Images per batch in evaluation, per rank."""
    validate_at: Annotated[tuple[int, ...], TRAINING, Execution()]
    """Epochs with a validation on the way; the last one's is the run's score."""
    test_dataset: Annotated[tuple[str, ...], Execution(), Common()]
    """Datasets to score as well, where classes agree by name. Each gives a record of its own, and its images must not
    be among the training images."""
    save_pictures: Annotated[int, Range(0), Execution()]
    """Validation images saved with the boxes found on them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size[0] > self.size[1]:
            reject(f"--size {self.size[0]} {self.size[1]}: the limit of the shorter side comes first")
        if self.out_indices is not None and (
            self.pyramid != "taps" or len(self.out_indices) != 4 or len({*self.out_indices}) != 4
        ):
            reject(f"--out-indices {self.out_indices}: set four different blocks, with --pyramid taps")
        if any(not 1 <= epoch <= self.epochs for epoch in self.validate_at):
            reject(f"--validate-at {self.validate_at}: epochs count from 1 to {self.epochs}")
        with kept():
            resolve_detector(self.detector or "mask_rcnn")


def check_relative(spec: BackboneSpec) -> None:
    """Check from a user's attention file, without running it, that it can have relative positions.

    Raises:
        UsageError: it cannot.
    """
    if spec.attention is not None and is_user_part(spec.attention) and not has_parameter(spec.attention, "scale"):
        reject(
            f"{spec.attention} cannot have relative positions: use --no-relative, or make it a function of "
            "(q, k, v, scale=None), whose scores are scale q k^T where a scale is given, with values narrower than q"
        )


def block_index(number: int, depth: int, flag: str) -> int:
    """Return a block counted from 0, where -1 is the last. Raises UsageError naming the flag."""
    if not -depth <= number < depth:
        raise UsageError(f"{flag}: block {number} does not exist; use 0 to {depth - 1}, or -1 for the last")
    return number % depth
