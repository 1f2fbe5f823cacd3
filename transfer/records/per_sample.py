"""What `outcomes.npz` says of a run's samples, and whether intervals can be made of it. Imports no torch.

`resampling` takes outcomes through here, and `verify` looks at them by the same functions, so that neither finds fault
with what the other takes.
Letters: M samples.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backbones.errors import shortened
from transfer.records.record import Record

if TYPE_CHECKING:
    from tasks.detection.coco.match_arrays import Matches

OUTCOMES = "outcomes.npz"
PREFIXES = ("box", "mask")
"""Prefixes of COCO's scores."""
OF_DETECTIONS = ("image", "category", "score", "rank", "matched", "ignored")
OF_OBJECTS = ("truth_image", "truth_category", "truth_counted")
"""Columns of equal length."""
TOLERANCE = 1e-9
"""Between a recorded score and the same from outcomes, added in another order."""
Outcomes = dict[str, NDArray[Any]]


class Unfit(Exception):
    """Outcomes of which no interval can be made, for a reason of their own; in words that follow their file's name."""


class Unlike(Unfit):
    """Outcomes that give another score than the record's."""


def read(path: Path) -> Outcomes:
    """The arrays of a file, samples whose names differ and their clusters. Raises Unfit."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = dict(file)
    except FileNotFoundError:
        raise Unfit("missing, and there are scores; copy the whole folder of the run, or run it again") from None
    except Exception as error:  # what a damaged archive raises has no common type
        raise Unfit(f"not readable ({type(error).__name__}: {error}), so it cannot be scored") from None
    if missing := [name for name in ("sample", "cluster") if name not in found]:
        raise Unfit(f"has no {' and no '.join(missing)}, so its samples cannot be paired")
    if found["sample"].shape != found["cluster"].shape or found["sample"].ndim != 1:
        raise Unfit("samples and their clusters are not equally many")
    if not len(found["sample"]):
        raise Unfit("has no samples")
    if len({*found["sample"].tolist()}) < len(found["sample"]):
        names, times = np.unique(found["sample"], return_counts=True)
        twice = shortened(sorted(map(str, names[times > 1])), 3)
        raise Unfit(f"several samples have one name ({twice}), so they cannot be paired")
    return found


def check_clusters(outcomes: Outcomes) -> None:
    """Raises Unfit where all samples are of one cluster: no fault of the file, and no interval can be made of it."""
    if len(np.unique(outcomes["cluster"])) < 2:
        raise Unfit("all samples are of one cluster, and two are the fewest that say how a score varies")


def check(record: Record, outcomes: Outcomes) -> None:
    """Looks at every score of a record that outcomes give. Raises Unfit."""
    for name in record.scores:
        values_of(record, name, outcomes)
    for prefix in PREFIXES:
        if names := [name for name in record.scores if name.startswith(f"{prefix}_")]:
            from tasks.detection.coco.averages import Averager

            matches = matches_of(prefix, outcomes)
            short = [name.removeprefix(f"{prefix}_") for name in names]
            with scoring():
                found = Averager(matches, short, most=1).means(np.ones(len(outcomes["sample"]), dtype=np.int64))
            for name, one in zip(names, short, strict=True):
                agrees(record, name, found.get(one, np.nan))


def values_of(record: Record, name: str, outcomes: Outcomes) -> NDArray[Any] | None:
    """Those of `per_sample`, whose mean is the record's score of this name, if it has one.

    Raises:
        Unfit: they are not one for each sample, or infinite. Unlike: their mean is another one.
    """
    with scoring():
        values = per_sample(name, outcomes)
        if values is None:
            return None
        if values.shape != outcomes["sample"].shape:
            raise ValueError(f"{name}: {len(values)} values of {len(outcomes['sample'])} samples")
        if len(places := np.flatnonzero(np.isinf(values))):
            raise ValueError(f"{name}: infinite for {shortened([str(one) for one in outcomes['sample'][places]], 3)}")
    counted = values[~np.isnan(values)]
    agrees(record, name, float(counted.mean()) if len(counted) else np.nan)
    return values


def agrees(record: Record, name: str, score: float) -> None:
    """Raises Unlike where the record says another score."""
    recorded = record.scores.get(name)
    if recorded is not None and not abs(score - recorded) <= TOLERANCE:
        raise Unlike(f"gives {name} = {score:.6f}, the record says {recorded:.6f}")


def matches_of(prefix: str, outcomes: Outcomes) -> "Matches":
    """The matches of COCO's scores with this prefix. Raises Unfit."""
    from tasks.detection.coco.match_arrays import PREFIX, Matches

    with scoring():
        matches = Matches.from_outcomes(outcomes, next(kind for kind, own in PREFIX.items() if own == prefix))
        for columns in OF_DETECTIONS, OF_OBJECTS:
            sizes = {f"{prefix}_{name}": len(getattr(matches, name)) for name in columns}
            if len({*sizes.values()}) > 1:
                raise ValueError(", ".join(f"{size} of {name}" for name, size in sizes.items()))
        if max(one.max(initial=0) for one in (matches.image, matches.truth_image)) >= len(matches.sample):
            raise ValueError(f"{prefix}: detections of more images than there are")
        return matches


@contextmanager
def scoring() -> Iterator[None]:
    """What arrays raise that are missing or of other sizes, as Unfit."""
    try:
        yield
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise Unfit(f"cannot be scored ({type(error).__name__}: {error})") from None


def per_sample(name: str, outcomes: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    """float64 [M] whose mean over samples is the score of this name; nan where a sample does not count.

    None where the outcomes do not give it, or not as a mean.
    """
    if "hits" in outcomes:
        return _of_query(name, outcomes)
    if name.startswith("accuracy_"):
        correct = outcomes.get(name.replace("accuracy", "correct"))
        # the draws of support sets are part of the protocol: the same for all backbones
        return None if correct is None else correct.mean(axis=1, dtype=np.float64)
    accuracy = re.fullmatch(r"(best_|knn_)?top(\d+)(_k\d+)?", name)
    if accuracy is None:
        # what was measured of each sample stands under the score's own name
        return outcomes[name].astype(np.float64) if name in outcomes else None
    kind, k, neighbours = accuracy.groups()
    best = "best_" if kind == "best_" else ""
    rank = outcomes.get(f"{best}rank{neighbours or ''}")
    # of classes that are level with the true one each place is as likely
    places = outcomes.get(f"{best}ties", np.zeros(1)) + 1
    return None if rank is None else np.clip((int(k) - rank) / places, 0.0, 1.0)


def _of_query(name: str, outcomes: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    from tasks.ranking.tie_expectations import expected_cmc

    if name in ("mAP", "mINP"):
        return np.asarray(outcomes["ap" if name == "mAP" else "inp"], dtype=np.float64)
    if not (rank := re.fullmatch(r"rank(\d+)", name)):
        return None
    chance = expected_cmc(outcomes["before"], outcomes["tied"], outcomes["hits"], int(rank[1]))[:, -1]
    return np.where(outcomes["hits"] > 0, chance, np.nan)
