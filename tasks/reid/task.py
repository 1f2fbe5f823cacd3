"""Person re-identification: options, metrics, version, data; see `tasks.reid.training`."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from backbones.spec import BackboneSpec
from transfer.core.errors import reject
from transfer.core.options import Added, Common, Execution, Needs, Range, check_pad
from transfer.data.reid.dataset import REID_FORMATS, ReidData, join, open_reid, split_off
from transfer.data.spec import DatasetSpec
from transfer.engine.options import TRAINING, FitOptions
from transfer.task import Array, Defaults, Metric, Outcomes, Task


@dataclass(kw_only=True)
class ReidOptions(FitOptions):
    """Options of `transfer.run reid` besides those of the training loop."""

    size: Annotated[tuple[int, int], Range(1), Common()]
    """Height and width of the images in pixels."""
    num_identities: Annotated[int, TRAINING, Range(2)]
    """Identities per batch (P), over all ranks."""
    num_instances: Annotated[int, TRAINING, Range(2), Common()]
    """Images per identity in a batch (K)."""
    flip: Annotated[float, TRAINING, Range(0, 1)]
    """Probability of a horizontal flip."""
    pad: Annotated[int, TRAINING, Range(0)]
    """Pixels of black border before the random crop."""
    erase: Annotated[float, TRAINING, Range(0, 1)]
    """Probability of random erasing."""
    drop_path: Annotated[float, TRAINING, Range(0, 0.99), Common()]
    """Stochastic depth of the last block; earlier blocks grow to it linearly."""
    identity_weight: Annotated[float, TRAINING, Range(0)]
    """Weight of the identity loss (cross-entropy)."""
    label_smoothing: Annotated[float, Needs(identity_weight=True), Range(0, 1)]
    """Label smoothing of the identity loss."""
    triplet_weight: Annotated[float, TRAINING, Range(0)]
    """Weight of the batch-hard triplet loss (before the neck)."""
    margin: Annotated[float | None, Needs(triplet_weight=True), Range(0)]
    """Margin of the triplet loss; None is the soft margin."""
    feature: Literal["before", "after"]
    """Rank the feature before or after the neck."""
    flip_test: bool
    """Rank the mean feature of an image and its mirror image."""
    ap: Literal["rectangle", "trapezoid"]
    """How the area under precision and recall is computed. `rectangle` is as in torchreid and TransReID, the other as
    in Market-1501's own script."""
    rerank: Annotated[bool, Common()]
    """Re-rank distances by k-reciprocal neighbors."""
    rerank_k1: Annotated[int, Needs(rerank=True), Range(1)]
    """Size of the reciprocal neighborhoods."""
    rerank_k2: Annotated[int, Needs(rerank=True), Range(1)]
    """Neighbors averaged in the local query expansion."""
    rerank_lambda: Annotated[float, Needs(rerank=True), Range(0, 1)]
    """Weight of the original distance."""
    msmt17_val: Annotated[bool, TRAINING]
    """Train on MSMT17's validation half as well."""
    joint: Annotated[bool, TRAINING, Added(False), Common()] = False
    """Train once on the training images of all datasets. Each dataset is then evaluated in a record of its own."""
    validate_at: Annotated[tuple[int, ...], TRAINING, Added(())] = ()
    """Epochs (1-based) after which held-out training identities are ranked."""
    validation_share: Annotated[float, Needs(validate_at=True), Added(0.1), Range(0, 1)] = 0.1
    """Share of the training identities held out for `validate_at`, drawn by the seed."""
    keep: Annotated[Literal["last", "best"], Needs(validate_at=True), Added("last")] = "last"
    """Evaluate and export the state of the last epoch, or that of the validation with the best mAP."""
    test_dataset: Annotated[tuple[str, ...], Execution(), Common()]
    """Datasets on which the trained backbone is scored as well. Each makes a record of its own, without training."""
    eval_batch_size: Annotated[int, Range(1), Execution()]
    """Images per batch when features are extracted, per rank."""
    save_pictures: Annotated[int, Range(0), Execution()]
    """Queries to save as pictures with ten gallery images. They are spaced evenly over the list of queries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.identity_weight + self.triplet_weight == 0:
            reject("one of --identity-weight and --triplet-weight must be above 0")
        check_pad(self.pad, *self.size)
        if self.epochs and any(not 1 <= epoch <= self.last_epoch for epoch in self.validate_at):
            reject(f"--validate-at {' '.join(map(str, self.validate_at))}: epochs count from 1 to {self.last_epoch}")


class Reid(Task):
    """mAP and CMC of a fine-tuned backbone on a re-identification dataset."""

    module = "tasks.reid.training"
    name, version, options, primary = "reid", 1, ReidOptions, "mAP"
    metrics = {name: Metric() for name in ("mAP", "rank1", "rank5", "rank10", "mINP")}  # noqa: RUF012
    formats = tuple(REID_FORMATS)

    def open(self, spec: DatasetSpec, options: ReidOptions, *, root: Path | None, **chosen: Any) -> ReidData:
        """Read the lists of images, identities and cameras; see `transfer.data.reid.dataset.open_reid`."""
        return open_reid(spec, root, msmt17_val=options.msmt17_val, trained=options.epochs > 0, **chosen)

    def join(self, datasets: Sequence[ReidData]) -> ReidData:
        """Return one training set; see `transfer.data.reid.dataset.join`."""
        return join(datasets)

    def content(self, dataset: ReidData, options: ReidOptions) -> dict[str, Any]:
        """Return the names and digests of the datasets that are trained on together."""
        return {"joint": dataset.joined} if dataset.joined else {}

    def training_split(self, dataset: ReidData, options: ReidOptions, seed: int) -> ReidData:
        """Return what is trained on, and as query and gallery what is validated on, if anything is."""
        return split_off(dataset, options.validation_share, seed) if options.epochs and options.validate_at else dataset

    def defaults_for_data(self, spec: BackboneSpec, dataset: ReidData, options: ReidOptions) -> Defaults:
        """Return the largest power of 2 as identities per batch where there are fewer than the recipe's."""
        identities = len({sample.identity for sample in self.training_split(dataset, options, 0).train})
        if not options.epochs or not 2 <= identities < options.num_identities:
            return {}
        return {"num_identities": (2 ** int(math.log2(identities)), f"there are {identities} training identities")}

    def per_sample(self, name: str, outcomes: Outcomes) -> Array | None:
        """Return the precision or the expected match of each query [Q]; nan for a query without a match."""
        from tasks.ranking.ties import expected_cmc

        if "hits" not in outcomes or name in outcomes:
            return super().per_sample(name, outcomes)
        if name in ("mAP", "mINP"):
            return np.asarray(outcomes["ap" if name == "mAP" else "inp"], dtype=np.float64)
        if not (rank := re.fullmatch(r"rank(\d+)", name)):
            return None
        chance = expected_cmc(outcomes["before"], outcomes["tied"], outcomes["hits"], int(rank[1]))[:, -1]
        return np.where(outcomes["hits"] > 0, chance, np.nan)

    def finish(self, folder: Path, dataset: ReidData, options: ReidOptions) -> None:
        """Save pictures of `save_pictures` queries with their first gallery images."""
        if options.save_pictures and dataset.query:
            from tasks.reid.pictures import save_pictures

            save_pictures(folder, dataset.root, options.save_pictures)


TASK = Reid()
