"""The scores of every task from the results of its samples, one sample at a time."""

import re
from collections.abc import Iterable, Mapping
from math import isnan
from typing import Any

from numpy.typing import NDArray

from tasks.reference.ranking import TieGroup, expected_cmc


def plain_scores(names: Iterable[str], outcomes: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """Return those of the named scores that are means over samples, from the arrays of `outcomes.npz`."""
    values = {name: _per_sample(name, outcomes) for name in names}
    return {name: _mean(found) for name, found in values.items() if found is not None}


def _mean(values: list[float]) -> float:
    """Return the mean over the samples that count."""
    counted = [value for value in values if not isnan(value)]
    return sum(counted) / len(counted) if counted else float("nan")


def _per_sample(name: str, outcomes: Mapping[str, NDArray[Any]]) -> list[float] | None:
    """Return the score of each sample, nan for one that does not count; None if it is no mean over samples."""
    columns = {key: array.tolist() for key, array in outcomes.items()}
    if name in columns:
        return [float(value) for value in columns[name]]
    if "hits" in columns:
        return _of_queries(name, columns)
    if (correct := name.replace("accuracy_", "correct_")) in columns:
        return [sum(draws) / len(draws) for draws in columns[correct]]
    accuracy = re.fullmatch(r"(best_)?(?:knn_)?top(\d+)(_k\d+)?", name)
    if accuracy is None or (ranks := columns.get(f"{accuracy[1] or ''}rank{accuracy[3] or ''}")) is None:
        return None
    k, ties = int(accuracy[2]), columns.get(f"{accuracy[1] or ''}ties", [0] * len(ranks))
    return [min(max(k - rank, 0) / (tied + 1), 1.0) for rank, tied in zip(ranks, ties)]


def _of_queries(name: str, columns: dict[str, list[Any]]) -> list[float] | None:
    if name in ("mAP", "mINP"):
        return list(columns["ap" if name == "mAP" else "inp"])
    if not re.fullmatch(r"rank\d+", name):
        return None
    groups = [TieGroup(*row[:2], 0, row[2]) for row in zip(columns["before"], columns["tied"], columns["hits"])]
    rank = int(name.removeprefix("rank"))
    return [expected_cmc(group, rank) if group.matches else float("nan") for group in groups]
