"""Options and runs of tasks as a command would make them, for tests in process."""

from typing import Any

import numpy as np
import torch

from backbones.spec import BackboneSpec, resolve
from tests.support import command, context
from transfer.data.classification import ClassificationData
from transfer.data.spec import resolve_dataset
from transfer.data.splits.split import Split
from transfer.engine.context import Context
from transfer.task import Outcomes, Scores, load_task


def smoke_options(task: str, *words: str) -> Any:
    """The task's options under `--smoke`, with flags on top."""
    return command(task, "--smoke", "--backbone", "tiny", *words).options


def digits(per_class: int | None = None, task: str = "knn", *words: str) -> ClassificationData:
    """The embedded digits as a task opens them."""
    options = smoke_options(task, *words)
    return load_task(task).open(resolve_dataset("toy_digits"), options, root=None, subset=per_class, drop_corrupt=False)


def images_of(split: Split | None) -> torch.Tensor:
    """All images of a split as they are stored, [M, C, H, W] in [0, 1]."""
    return torch.stack([split.read_pixels(index) for index in range(len(split))]) / 255


def run_task(
    task: str, data: ClassificationData, *words: str, spec: BackboneSpec | None = None, **given: Any
) -> tuple[Scores, Outcomes, Context]:
    """Checks and runs a task on `tiny`, or another backbone, with smoke options; returns its context besides, in which
    `given` is.
    """
    options, here = smoke_options(task, *words), context(**given)
    spec = spec or resolve("tiny")
    load_task(task).check(spec, data, options, here)
    scores, outcomes = load_task(task).execute(spec, data, options, here)
    if scores:
        assert load_task(task).rescore(outcomes) == scores
        for name, (low, high) in ((name, load_task(task).metric(name).bounds) for name in scores):
            assert low <= scores[name] <= high
        assert outcomes["sample"].tolist() == list(data.val.names)
        assert all(len(values) == len(data.val) for values in outcomes.values())
        assert len(np.unique(outcomes["cluster"])) == len(data.val)
    return scores, outcomes, here
