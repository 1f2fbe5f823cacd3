"""Few-shot probes on frozen features: options, metrics, version, identity; see `tasks.fewshot.scoring`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from backbones.spec import BackboneSpec
from tasks.fewshot.support_sets import SupportSets, draw_support_sets, image_digest
from tasks.labelled_images import Classification, FrozenOptions
from transfer.core.errors import reject
from transfer.core.options import Common, Needs, Range
from transfer.data.classification import ClassificationData
from transfer.data.loading.options import shorter_side
from transfer.task import Defaults, Metric, Outcomes

STRENGTHS = {"ridge": "l2", "logistic": "logistic_l2", "knn": "k"}  # the option that holds those of a probe


@dataclass(kw_only=True)
class FewshotOptions(FrozenOptions):
    """Options of `transfer.run fewshot`."""

    resize_mode: Literal["squash", "bicubic", "fast", "area"]
    """How the image is resized before the centre crop. It is resized to a square (big_vision's probes), bicubic, so on
    bytes (`fast`), or by area."""
    block: int | None
    """Features after this block (from 0; -1 is the last) instead of the network's own, pooled as those are."""
    shots: Annotated[tuple[int, ...], Range(1), Common()]
    """Images per class of the nested support sets; each gives a score."""
    draws: Annotated[int, Range(1)]
    """Support sets of each size. The run's --seeds change random weights alone."""
    support: Literal["digest", "bigvision"]
    """What draws the support sets. Chosen by content hash, they are the same on every machine;
    big_vision's generator samples in file order."""
    probe: Literal["ridge", "logistic", "knn"]
    """Least squares, logistic regression, or nearest images. Logistic regression is scikit-learn's."""
    l2: Annotated[tuple[float, ...], Needs(probe="ridge"), Range(1e-9)]
    """Regularization strength of least squares. Of several, each draw takes the best on training images outside its
    support sets."""
    logistic_l2: Annotated[tuple[float, ...], Needs(probe="logistic"), Range(1e-9)]
    """Regularization strength of logistic regression (1 / C). Several: as for --l2."""
    k: Annotated[tuple[int, ...], Needs(probe="knn"), Range(1), Common()]
    """Neighbours (all support images where there are fewer); several: as for --l2."""
    temperature: Annotated[float, Needs(probe="knn"), Range(1e-9)]
    """Temperature of the neighbours' votes."""
    val_shots: Annotated[int, Range(1)]
    """Validation images per class for hyperparameter selection. They lie outside the support sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("shots", "l2", "logistic_l2", "k"):
            values = getattr(self, name)
            if not values or len({*values}) < len(values):
                reject(f"--{name.replace('_', '-')}: set one or more different numbers")
            setattr(self, name, tuple(sorted(values)))  # their order changes nothing
        self.resize = shorter_side(self.size, self.resize)

    @property
    def strengths(self) -> tuple[float, ...]:
        """Return the strengths that the probe chooses from."""
        return tuple(map(float, getattr(self, STRENGTHS[self.probe])))

    def support_sets(self, data: ClassificationData) -> SupportSets:
        """Return the support sets of a dataset. Raises UserError."""
        select = self.val_shots if len(self.strengths) > 1 else 0
        return draw_support_sets(data, rule=self.support, draws=self.draws, shots=self.shots, select=select)


class Fewshot(Classification):
    """Mean accuracy over the draws, as `accuracy_<k>shot`, and its mean over the classes, `macro_accuracy_<k>shot`."""

    module = "tasks.fewshot.scoring"
    name, version, options, primary = "fewshot", 1, FewshotOptions, "accuracy_10shot"
    metrics = {f"accuracy_{shots}shot": Metric(averaged=True) for shots in (1, 5, 10, 25)}  # noqa: RUF012

    def metric(self, name: str) -> Metric:
        """Return the metric of any number of shots: of an accuracy, the mean over datasets is reported."""
        return Metric(averaged=name.startswith("accuracy"))

    def defaults_for_data(self, spec: BackboneSpec, dataset: ClassificationData, options: FewshotOptions) -> Defaults:
        """Return the shots that the largest class has, and those of the primary score."""
        largest = int(np.bincount(dataset.training.labels).max())
        shots = tuple(k for k in options.shots if k <= largest or f"accuracy_{k}shot" == self.primary)
        return {"shots": (shots or options.shots, f"the largest class has {largest} training images")}

    def per_sample(self, name: str, outcomes: Outcomes) -> NDArray[Any] | None:
        """Return the share of the draws whose probe classifies each image [M] correctly.

        The draws of support sets belong to the protocol: they are the same for all backbones.
        """
        correct = outcomes.get(name.replace("accuracy", "correct")) if name.startswith("accuracy_") else None
        return super().per_sample(name, outcomes) if correct is None else correct.mean(axis=1, dtype=np.float64)

    def content(self, dataset: ClassificationData, options: FewshotOptions) -> dict[str, str]:
        """Return the images' contents, and their order if the draws depend on it."""
        return {"images": image_digest(dataset, ordered=options.support == "bigvision")}


TASK = Fewshot()
