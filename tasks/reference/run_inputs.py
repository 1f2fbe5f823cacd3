"""What is at hand of a run that is computed anew, and features of its images in float64 on the CPU.

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
from backbones.engine.learner_weights import LEARNER
from backbones.errors import UserError
from backbones.runtime.seeding import seed_torch
from backbones.spec import BackboneSpec
from tasks.reference.recomputed import ERRORS

BATCH = 16
"""Images that go through a network at a time."""


class InputsUnavailable(UserError):
    """What is missing, so that a run cannot be computed anew."""


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """A run, its data and its weights."""

    folder: Path
    options: Any
    """The options of the task."""
    dataset: Any
    """The data set, as the task opens it."""
    spec: BackboneSpec
    """Fully resolved, as the run had it; `weights` are those it started from, where they lie here."""
    weights: str
    """What these are, in words; empty where they are not here."""
    export: Path | None
    """Folder of what the run exported, where it is here."""
    store: Path | None
    """The feature store that the run used."""
    seed: int
    precision: str
    """The precision in which the run scored."""
    scores: dict[str, float]
    details: dict[str, Any]
    outcomes: dict[str, NDArray[Any]]
    subset: int | None
    """How many samples are looked at; None: all."""
    note: str = ""
    """Why the weights that the run started from are not here."""

    @property
    def error(self) -> float:
        """Of the features that the run scored, as a share of their length."""
        return ERRORS[self.precision]

    def places(self, total: int | None = None) -> NDArray[Any]:
        """Of the samples looked at among all, evenly spaced."""
        total = len(self.outcomes["sample"]) if total is None else total
        count = min(self.subset or total, total)
        return np.arange(count) * total // count

    def frozen(self, size: Any) -> Backbone:
        """The backbone that the run started from, in float64. Raises InputsUnavailable."""
        if not self.weights:
            raise InputsUnavailable(self.note)
        seed_torch(self.seed)  # random weights are those that the run drew first
        backbone: Backbone = exact(create(self.spec, img_size=size))
        return backbone

    def exported(self, size: Any, classes: str | None = None) -> Backbone:
        """The backbone that the run left, in float64. Raises InputsUnavailable."""
        if self.export is None:
            raise InputsUnavailable(f"the run's weights: there is no {self.folder / 'export'} here")
        spec = replace(self.spec, weights=str(self.export), load="strict")
        backbone: Backbone = exact(create(spec, img_size=size, classes=classes))  # type: ignore[arg-type]
        return backbone

    def learned(self) -> dict[str, Tensor]:
        """The tensors of what the run trained, by name. Raises InputsUnavailable."""
        from safetensors.torch import load_file

        path = self.folder / LEARNER
        if not path.is_file():
            raise InputsUnavailable(
                f"the run's weights: there is no {path} here (runs of --save-weights none leave none)"
            )
        return dict(load_file(path))

    @property
    def built(self) -> BackboneSpec:
        """The backbone without its weights, for those that the run learned."""
        return replace(self.spec, weights="random", load="strict")


def exact(model: Any) -> Any:
    """The same in float64 and in evaluation mode."""
    return model.cpu().double().eval().requires_grad_(False)


def load_all(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Puts tensors into a model, one for one. Raises InputsUnavailable when they are those of another."""
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise InputsUnavailable(f"{LEARNER}: not of this model: {str(error).splitlines()[-1].strip()}") from None


@torch.inference_mode()
def rows(encode: Callable[[Tensor], Tensor], images: Callable[[int], Tensor], places: Iterable[int], label: str) -> Any:
    """`encode` of images, BATCH at a time, as float64 [S, ...].

    Args:
        encode: float64 [B, 3, H, W] in [0, 1] -> rows [B, ...].
        images: place -> float [3, H, W].
        places: of the S images.
        label: for the progress on stderr.
    """
    order: Sequence[int] = [int(place) for place in places]
    starts = range(0, len(order), BATCH)
    found = []
    for start in tqdm(starts, label, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False):
        batch = torch.stack([images(place).double() for place in order[start : start + BATCH]])
        found.append(encode(batch).numpy())
    return np.concatenate(found)
