"""Checks that a run's folder was not changed, and that its per-sample results give its scores."""

from dataclasses import dataclass, field
from pathlib import Path

from backbones.errors import UserError, reason_of
from transfer.records.store import RECORD, Record
from transfer.verify.checks import check_files, check_run_key, check_scores


@dataclass
class Verdict:
    """The result of verifying one run."""

    folder: Path
    name: str
    """The name in messages: the folder, or a bundle and the run in it."""
    wrong: list[str] = field(default_factory=list)
    """Each difference from what was written."""
    notes: list[str] = field(default_factory=list)
    """A sentence for each check that was not possible."""
    record: Record | None = None

    def __str__(self) -> str:
        head = f"{'WRONG' if self.wrong else 'right'}  {self.name}"
        return "\n       ".join([head, *self.wrong, *(f"({note})" for note in self.notes)])


def verify(folder: Path, name: str = "") -> Verdict:
    """Check everything that can be checked in a run's folder.

    Args:
        folder: the run's folder.
        name: the name of the run in messages; by default its folder.
    """
    verdict = Verdict(folder, name or str(folder))
    try:
        record = verdict.record = Record.read(folder / RECORD, edited=True)
    except UserError as error:
        verdict.wrong.append(str(error).replace(str(folder), verdict.name))
        return verdict
    try:
        Record.read(folder / RECORD)
    except UserError:
        verdict.wrong.append(f"{RECORD}: edited after it was written")
    try:
        results = [check_files(folder, record), check_run_key(folder, record), check_scores(folder, record)]
    except OSError as error:  # no permission, a failing disk
        results = [([reason_of(error).replace(str(folder), verdict.name)], [])]
    for wrong, notes in results:
        verdict.wrong += wrong
        verdict.notes += notes
    return verdict
