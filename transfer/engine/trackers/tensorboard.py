"""TensorBoard: event files in the run's folder. `tensorboard --logdir runs` shows them."""

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from transfer.engine.trackers import Ending, TrackedRun, Tracker


class TensorBoard(Tracker):
    """Writes events. Those of steps that a resumed run repeats are hidden."""

    def __init__(self, run: TrackedRun):
        self.folder, self.step = run.folder, 0
        self.writer: SummaryWriter | None = None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar for each number."""
        writer, self.step = self._writer(step), step
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    def attach(self, record: Path, scores: Mapping[str, float], outcome: str) -> None:
        """Write the record as text, and each score as a scalar at the last step."""
        writer = self._writer(self.step)
        writer.add_text("outcome", outcome, self.step)
        writer.add_text("record", f"```json\n{record.read_text(encoding='utf-8')}\n```", self.step)
        for name, value in scores.items():
            writer.add_scalar(f"score/{name}", value, self.step)

    def close(self, ending: Ending) -> None:
        """Close the event file."""
        if self.writer is not None:
            self.writer.close()

    def _writer(self, step: int) -> SummaryWriter:
        if self.writer is None:  # only now is it known at which step a resumed run continues
            self.writer = SummaryWriter(str(self.folder), purge_step=step or None)
        return self.writer


TRACKER = TensorBoard
