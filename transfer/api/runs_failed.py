"""The error of a call of which some runs ended without a record."""

from typing import TYPE_CHECKING

from backbones.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transfer.api.run_set import RunSet
    from transfer.evaluation.results import RunFailed


class RunsFailed(UserError):
    """Some runs ended without a record. The same call tries them again and reuses the others.

    Attributes:
        failures: the id of each failed run with its error, whose traceback is kept.
        runs: the runs of the call that have a record.
    """

    def __init__(self, failures: "Sequence[RunFailed]", runs: "RunSet") -> None:
        self.failures, self.runs = list(failures), runs
        lines = [f"{failure.run_id}: {failure.error}" for failure in failures]
        super().__init__("\n".join(lines))
