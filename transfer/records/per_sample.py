"""Reads and checks `outcomes.npz`, a run's results for each sample, from which intervals are made. Imports no torch.

Comparisons and `verify` read and check the file by the same functions, so that both accept the same files.
Shapes: M samples.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from transfer.core.errors import shortened
from transfer.records.record import Record

if TYPE_CHECKING:
    from tasks.detect.coco.matching import Matches

OUTCOMES = "outcomes.npz"
RESAMPLED = "resampled_"
"""The prefix of a score's values [B] on bootstrap resamples of clusters; the score is not a mean over samples."""
PREFIXES = ("box", "mask")
"""The prefixes of COCO's scores."""
TOLERANCE = 1e-9
"""The largest difference between a recorded score and the mean of its samples, which is summed in another order."""
Outcomes = dict[str, NDArray[Any]]


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
            "missing, and there are scores; copy the whole folder of the run, or run it again"
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


def check_clusters(outcomes: Outcomes) -> None:
    """Raise UnusableOutcomes if all samples are of one cluster: the file is valid, but an interval needs two."""
    if len(np.unique(outcomes["cluster"])) < 2:
        raise UnusableOutcomes("all samples are of one cluster, and two are the fewest that say how a score varies")


def check(record: Record, outcomes: Outcomes) -> None:
    """Check every score of a record that outcomes give. Raises UnusableOutcomes."""
    for name in record.scores:
        values_of(record, name, outcomes)
    for prefix in PREFIXES:
        if names := [name for name in record.scores if name.startswith(f"{prefix}_")]:
            from tasks.detect.coco.averages import Averager

            matches = matches_of(prefix, outcomes)
            short = [name.removeprefix(f"{prefix}_") for name in names]
            with scoring():
                means = Averager(matches, short, most=1).means(np.ones(len(outcomes["sample"]), dtype=np.int64))
            for name, short_name in zip(names, short, strict=True):
                check_score(record, name, means.get(short_name, np.nan))


def values_of(record: Record, name: str, outcomes: Outcomes) -> NDArray[Any] | None:
    """Return `per_sample`, whose mean is the record's score of this name; None if the outcomes do not give it.

    Raises:
        UnusableOutcomes: there is not one value for each sample.
        ScoreMismatch: the mean is not the record's score.
    """
    with scoring():
        values = per_sample(name, outcomes)
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


def matches_of(prefix: str, outcomes: Outcomes) -> "Matches":
    """Return the matches from which COCO's scores with this prefix are computed. Raises UnusableOutcomes."""
    from tasks.detect.coco.matching import PREFIX, Matches

    with scoring():
        return Matches.from_outcomes(outcomes, next(kind for kind, start in PREFIX.items() if start == prefix))


@contextmanager
def scoring() -> Iterator[None]:
    """Turn the errors of arrays that are missing or have wrong sizes into UnusableOutcomes."""
    try:
        yield
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise UnusableOutcomes(f"cannot be scored ({type(error).__name__}: {error})") from None


def per_sample(name: str, outcomes: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    """Return values [M] in float64 whose mean over samples is the score of this name; nan if a sample does not count.

    None is returned if the outcomes do not give the score, or not as a mean.
    """
    if name in outcomes:  # a measurement of each sample has the name of its score
        return outcomes[name].astype(np.float64)
    if "hits" in outcomes:
        return _of_query(name, outcomes)
    if name.startswith("accuracy_"):
        correct = outcomes.get(name.replace("accuracy", "correct"))
        # the draws of support sets belong to the protocol: they are the same for all backbones
        return None if correct is None else correct.mean(axis=1, dtype=np.float64)
    accuracy = re.fullmatch(r"(best_|knn_)?top(\d+)(_k\d+)?", name)
    if accuracy is None:
        return None
    kind, k, neighbours = accuracy.groups()
    best = "best_" if kind == "best_" else ""
    rank = outcomes.get(f"{best}rank{neighbours or ''}")
    # classes that tie with the true one have each place with equal probability
    places = outcomes.get(f"{best}ties", np.zeros(1)) + 1
    return None if rank is None else np.clip((int(k) - rank) / places, 0.0, 1.0)


def _of_query(name: str, outcomes: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    from tasks.ranking.ties import expected_cmc

    if name in ("mAP", "mINP"):
        return np.asarray(outcomes["ap" if name == "mAP" else "inp"], dtype=np.float64)
    if not (rank := re.fullmatch(r"rank(\d+)", name)):
        return None
    chance = expected_cmc(outcomes["before"], outcomes["tied"], outcomes["hits"], int(rank[1]))[:, -1]
    return np.where(outcomes["hits"] > 0, chance, np.nan)
