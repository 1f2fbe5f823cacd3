"""Scalars for TensorBoard, beside the history file that every run has."""

from pathlib import Path
from typing import Any

from backbones.errors import UserError


class Tracker:
    """Writes the statistics of each step as TensorBoard events into a run's folder; does nothing without a folder.

    Raises:
        UserError: the `track` extra is not installed.
    """

    def __init__(self, folder: Path | None):
        self.writer: Any = None
        if folder is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("--tracker tensorboard needs TensorBoard: pip install -e '.[track]'") from None
        self.writer = SummaryWriter(str(folder))

    def add(self, step: int, stats: dict[str, float]) -> None:
        """Write the statistics of one step."""
        if self.writer:
            for name, value in stats.items():
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is pending and close the file."""
        if self.writer:
            self.writer.close()
