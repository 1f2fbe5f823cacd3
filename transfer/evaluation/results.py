"""What a command ends with: records, and runs that failed."""

from dataclasses import dataclass

from backbones.errors import UserError
from transfer.records.record import Record


@dataclass(frozen=True)
class RunFailed:
    """A run that ended without a record, and the error that ended it."""

    run_id: str
    error: Exception

    @property
    def exit_status(self) -> int:
        """The exit status of a command that fails so."""
        return self.error.exit_status if isinstance(self.error, UserError) else 1


@dataclass
class Evaluation:
    """The result of a command: the records in order, and the runs that failed."""

    records: list[Record]
    failures: list[RunFailed]
    first_rank: bool

    @property
    def exit_status(self) -> int:
        """1 when something failed (2 when all failures are usage errors), else 3 when a training failed, else 0."""
        if self.failures:
            return min(failure.exit_status for failure in self.failures)
        return 3 if any(record.training_failed for record in self.records) else 0
