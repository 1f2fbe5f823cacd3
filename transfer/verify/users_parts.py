"""The parts of a run that are a user's: their files here, checked against the record, and scores of metrics."""

from typing import Any

from numpy.typing import NDArray

from backbones import user_code
from backbones.errors import UserError
from transfer.records.record import Record

METRIC = "metric "
"""Beginning of the names of metrics in `Record.user_code`."""


def users_file(record: Record, part: str) -> str:
    """Return a user's part of a run, `path/to/file.py:NAME`; empty if that part is one of the suite.

    Raises:
        UserError: its file is not here, or not the one that the run used, or the user has not named it before.
    """
    if part not in record.user_code:
        return ""
    code = record.user_code[part]
    file = user_code.locate(code["file"])
    if (here := user_code.digest(file)) != code["sha256"]:
        raise UserError(
            f"the {part} of the run, {file}: the file has changed since (sha256 {code['sha256'][:12]} in the record, "
            f"{here[:12]} here)"
        )
    user_code.check_allowed(file)
    return file


def users_metrics(record: Record) -> list[str]:
    """Return the names of the scores that a user's metrics gave."""
    return [part.removeprefix(METRIC) for part in record.user_code if part.startswith(METRIC)]


def scores_of_metrics(record: Record, outcomes: dict[str, NDArray[Any]]) -> dict[str, float]:
    """Return the scores that a user's metrics give of the arrays of a run. Raises UserError."""
    from tasks.users_metrics import load_metrics

    metrics = load_metrics([users_file(record, f"{METRIC}{name}") for name in users_metrics(record)])
    return {own.name: own.score(outcomes)[0] for own in metrics}
