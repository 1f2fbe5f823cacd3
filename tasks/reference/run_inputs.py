"""Inputs of a recomputation (a run's options, data, weights, results), and features of its images in float64.

Letters: S images, D channels.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from backbones.backbone import Backbone, create
from backbones.data.loading.floats import to_floats
from backbones.engine.trained_weights import load_trained
from backbones.errors import MissingInput, UserError
from backbones.runtime.seeding import seed_torch
from backbones.spec import BackboneSpec
from tasks.reference.recomputed import FEATURE_ERRORS

BATCH = 16
"""Number of images in one forward pass."""
LARGEST_OUTPUT = 1e30
"""Squares and products of larger outputs, in distances and probes, would leave float64."""


class InputsUnavailable(UserError):
    """A file or folder that the recomputation needs is missing or unusable; the text names it."""


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """Options, data, weights, scores and per-sample results of one run."""

    folder: Path
    options: Any
    """Options of the task."""
    dataset: Any
    """Data set, as the task opens it."""
    spec: BackboneSpec
    """Resolved backbone of the run; its `weights` are the initial ones if they were found."""
    weights_description: str
    """Description of the initial weights for the report; empty if they were not found."""
    export: Path | None
    """Folder of the exported weights; None if it is missing."""
    store: Path | None
    """Folder of the feature store that the run used; None if it used none."""
    seed: int
    precision: str
    """Precision in which the run was scored."""
    scores: dict[str, float]
    details: dict[str, Any]
    outcomes: dict[str, NDArray[Any]]
    subset: int | None
    """Number of samples to recompute; None means all."""
    missing_weights: str = ""
    """Reason why the initial weights were not found."""

    @property
    def feature_error(self) -> float:
        """Return the error of the run's features as a fraction of their norm."""
        return FEATURE_ERRORS[self.precision]

    def sample_indices(self, total: int | None = None) -> NDArray[Any]:
        """Return the evenly spaced indices [S] of the samples to recompute among `total` (default: all)."""
        total = len(self.outcomes["sample"]) if total is None else total
        count = min(self.subset or total, total)
        return np.arange(count) * total // count

    def initial_backbone(self, size: Any) -> Backbone:
        """Return the backbone with its initial weights, in float64. Raises InputsUnavailable."""
        if not self.weights_description:
            raise InputsUnavailable(self.missing_weights)
        seed_torch(self.seed)  # random weights are those that the run drew first
        backbone: Backbone = in_float64(create(self.spec, img_size=size))
        return backbone

    def exported_backbone(self, size: Any, classes: str | None = None) -> Backbone:
        """Return the backbone with the exported weights, in float64. Raises InputsUnavailable."""
        if self.export is None:
            raise InputsUnavailable(f"the run's weights: there is no {self.folder / 'export'} here")
        spec = replace(self.spec, weights=str(self.export), load="strict")
        backbone: Backbone = in_float64(create(spec, img_size=size, classes=classes))  # type: ignore[arg-type]
        return backbone

    def trained_tensors(self) -> dict[str, Tensor]:
        """Read the trained tensors by name. Raises InputsUnavailable."""
        try:
            return load_trained(self.folder)
        except MissingInput as missing:
            raise InputsUnavailable(str(missing)) from None

    @property
    def spec_without_weights(self) -> BackboneSpec:
        """Return the backbone with random weights, into which trained tensors are loaded."""
        return replace(self.spec, weights="random", load="strict")


def in_float64(model: Any) -> Any:
    """Convert a model to float64 on the CPU, frozen and in evaluation mode."""
    return model.cpu().double().eval().requires_grad_(False)


def load_strictly(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load tensors into a model. Raises InputsUnavailable unless names and shapes all match."""
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise InputsUnavailable(
            f"the run's weights: not of this model: {str(error).splitlines()[-1].strip()}"
        ) from None


@torch.inference_mode()
def encode_images(
    encode: Callable[[Tensor], Tensor], read: Callable[[int], Tensor], indices: Iterable[int], label: str
) -> Any:
    """Apply `encode` to images, BATCH at a time, and return the float64 outputs [S, ...].

    Args:
        encode: maps float64 images [B, 3, H, W] in [0, 1] to outputs [B, ...].
        read: maps an index to an image [3, H, W], float in [0, 1] or uint8.
        indices: the indices of the S images.
        label: the label of the progress bar on stderr.

    Raises:
        InputsUnavailable: no score can be computed from the outputs.
    """
    order: Sequence[int] = [int(index) for index in indices]
    starts = range(0, len(order), BATCH)
    outputs = []
    for start in tqdm(starts, label, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False):
        batch = torch.stack([to_floats(read(index)).double() for index in order[start : start + BATCH]])
        outputs.append(encode(batch).numpy())
    return usable(np.concatenate(outputs), label)


def usable(outputs: NDArray[Any], label: str) -> NDArray[Any]:
    """Return a model's outputs [S, ...]. Raises InputsUnavailable for those that no score can be computed from."""
    if not (np.abs(outputs) <= LARGEST_OUTPUT).all():
        raise InputsUnavailable(
            f"the run's weights: their outputs for the {label} are not finite, or beyond {LARGEST_OUTPUT:g}"
        )
    return outputs
