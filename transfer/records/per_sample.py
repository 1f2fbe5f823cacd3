"""Reads and checks `outcomes.npz`, a run's results for each sample, from which intervals are made. Imports no torch.

Comparisons and `verify` read and check the file by the same functions, so that both accept the same files.
Shapes: M samples.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import shortened
from transfer.records.protocol import known_task
from transfer.records.record import Record
from transfer.task import Outcomes

OUTCOMES = "outcomes.npz"
RESAMPLED = "resampled_"
"""The prefix of a score's values [B] on bootstrap resamples of clusters; the score is not a mean over samples."""
TOLERANCE = 1e-9
"""The largest difference between a recorded score and the mean of its samples, which is summed in another order."""


class UnusableOutcomes(Exception):
    """The reason why no interval can be made from outcomes, as a phrase that follows the name of their file."""


class ScoreMismatch(UnusableOutcomes):
    """The reason why outcomes do not belong to a record: they give another score than the record has."""


def arrays_in(path: Path) -> Outcomes:
    """Return the arrays of a file. Raises UnusableOutcomes."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except FileNotFoundError:
        raise UnusableOutcomes(
            "missing, although there are scores; copy the complete folder of the run, or run it again"
        ) from None
    except Exception as error:  # what a damaged archive raises has no common type
        raise UnusableOutcomes(f"not readable ({type(error).__name__}: {error}), so it cannot be scored") from None


def read(path: Path) -> Outcomes:
    """Return `arrays_in` a file. Raises UnusableOutcomes, also if samples lack clusters or share a name."""
    outcomes = arrays_in(path)
    if missing := [name for name in ("sample", "cluster") if name not in outcomes]:
        raise UnusableOutcomes(f"has no {' and no '.join(missing)}, so its samples cannot be paired")
    if len({*outcomes["sample"].tolist()}) < len(outcomes["sample"]):
        names, times = np.unique(outcomes["sample"], return_counts=True)
        twice = shortened(sorted(map(str, names[times > 1])), 3)
        raise UnusableOutcomes(f"several samples have one name ({twice}), so they cannot be paired")
    return outcomes


def check_outcomes(record: Record, outcomes: Outcomes) -> None:
    """Check every score of a record that outcomes give. Raises UnusableOutcomes."""
    for name in record.scores:
        sample_values(record, name, outcomes)
    with scoring():
        aggregated = known_task(record.task).aggregated(list(record.scores), outcomes)
    for name, score in aggregated.items():
        check_score(record, name, score)


def sample_values(record: Record, name: str, outcomes: Outcomes) -> NDArray[Any] | None:
    """Return `per_sample`, whose mean is the record's score of this name; None if the outcomes do not give it.

    Raises:
        UnusableOutcomes: there is not one value for each sample.
        ScoreMismatch: the mean is not the record's score.
    """
    with scoring():
        values = known_task(record.task).per_sample(name, outcomes)
        if values is None:
            return None
        if values.shape != outcomes["sample"].shape:
            raise ValueError(f"{name}: {len(values)} values of {len(outcomes['sample'])} samples")
    counted = values[~np.isnan(values)]
    check_score(record, name, float(counted.mean()) if len(counted) else np.nan)
    return values


def check_score(record: Record, name: str, score: float) -> None:
    """Raise ScoreMismatch if the record has another score."""
    recorded = record.scores.get(name)
    if recorded is not None and not abs(score - recorded) <= TOLERANCE:
        raise ScoreMismatch(f"gives {name} = {score:.6f}, the record says {recorded:.6f}")


@contextmanager
def scoring() -> Iterator[None]:
    """Turn the errors of arrays that are missing or have wrong sizes into UnusableOutcomes."""
    try:
        yield
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise UnusableOutcomes(f"cannot be scored ({type(error).__name__}: {error})") from None
