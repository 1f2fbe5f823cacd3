"""mmdetection's own training: the Runner of mmengine over mmdet's CocoDataset, around a detector that is given."""

import contextlib
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tasks.detect.pipelines import train_transforms
from tasks.detect.task import DetectOptions
from transfer.data.coco.split import CocoSplit


class Peer:
    """Its epoch-based loop in fp32 (OptimWrapper, AdamW), one epoch a call; saves no checkpoints, and logs to a file.

    Args:
        detector: of `build_detector`, trained in place. split: images, and the annotations that the peer reads itself.
        classes: names of the categories. options: batch, size, view, rate and weight decay.
        device: "cpu" or "cuda".
    """

    def __init__(
        self, detector: Any, split: CocoSplit, classes: Sequence[str], options: DetectOptions, device: str
    ) -> None:
        from mmengine.runner import Runner

        self._folder = tempfile.TemporaryDirectory()
        self._started, self._device = False, device
        adamw = {"type": "AdamW", "lr": options.lr, "weight_decay": options.weight_decay}
        self.runner = Runner(
            model=detector,
            work_dir=self._folder.name,
            train_dataloader=_dataloader(split, classes, options, detector.with_mask),
            train_cfg={"by_epoch": True, "max_epochs": 1},
            optim_wrapper={"type": "OptimWrapper", "optimizer": adamw},
            default_hooks={"checkpoint": None},
            default_scope="mmdet",
            randomness={"seed": 0},
            log_level="ERROR",
            experiment_name=Path(self._folder.name).name,
        )

    def epoch(self) -> None:
        """All images once."""
        quiet = contextlib.redirect_stdout(io.StringIO())  # pycocotools says what it reads
        with quiet, mock.patch("mmengine.runner.runner.get_device", return_value=self._device):
            if not self._started:
                self.runner.train()
            else:
                self.runner.train_loop._max_epochs += 1
                self.runner.train_loop.run()
        self._started = True

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()


def _dataloader(split: CocoSplit, classes: Sequence[str], options: DetectOptions, masks: bool) -> dict[str, Any]:
    """As mmdetection's `_base_/datasets/coco_instance.py` has it, with the suite's transforms behind its own reader."""
    transforms = train_transforms(options.resize_mode, options.size, options.flip, masks)
    return {
        "batch_size": options.batch_size,
        "num_workers": 0,
        "sampler": {"type": "DefaultSampler", "shuffle": True},
        "dataset": {
            "type": "CocoDataset",
            "ann_file": str(split.file),
            "data_prefix": {"img": str(split.folder)},
            "metainfo": {"classes": tuple(classes)},
            "filter_cfg": {"filter_empty_gt": True, "min_size": 1},
            "pipeline": [{"type": "LoadImageFromFile"}, *transforms],
        },
    }
