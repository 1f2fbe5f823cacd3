from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from tasks.detect.coco.averages import Averager, resampled
from tasks.detect.coco.matching import Pairing
from tasks.ranking.metrics import rank_distances
from tests.tasks.detect.coco.cases import drawn as drawn_coco
from tests.tasks.detect.coco.cases import evaluate
from tests.transfer.records.recorded import scored
from transfer.comparison.paired_intervals import PairedOutcomes, read_outcomes
from transfer.core.errors import UserError
from transfer.records.store import StoredRun
from transfer.task import load_task

Outcomes = dict[str, np.ndarray]


def ranked(seed: int = 0, queries: int = 60) -> Outcomes:
    """Return outcomes of queries of 20 identities with tied distances; queries of the last identity have no match."""
    rng = np.random.default_rng(seed)
    run_key = np.repeat(np.arange(20), queries // 20)
    gallery = rng.integers(0, 19, 200)
    distances = rng.integers(0, 12, (queries, 200)) - 3.0 * (run_key[:, None] == gallery)
    ranking = rank_distances(distances, run_key, gallery, np.zeros(queries, dtype=int), np.ones(200, dtype=int))
    assert (~ranking.valid).any()
    assert (ranking.tied > ranking.hits).any()
    names = np.array([f"query/{number:04d}.jpg" for number in range(queries)])
    return ranking.outcomes() | {"sample": names, "cluster": run_key}


def images(**columns: np.ndarray) -> Outcomes:
    """Return outcomes of a classification in which every image is a cluster."""
    size = len(next(iter(columns.values())))
    return {"sample": np.array([f"{place}.jpg" for place in range(size)]), "cluster": np.arange(size), **columns}


def outcomes_of(task: str) -> Outcomes:
    rng = np.random.default_rng(1)
    rank, ties = rng.integers(0, 9, 200), rng.integers(0, 3, 200)
    cases = {
        "reid": ranked(),
        "classify": images(rank=rank, ties=ties),
        "linear": images(rank=rank, ties=ties, best_rank=rank[::-1].copy(), best_ties=ties),
        "knn": images(rank=rank, rank_k10=rank[::-1].copy()),
        "fewshot": images(correct_1shot=rng.random((200, 4)) < 0.3, correct_10shot=rng.random((200, 4)) < 0.6),
    }
    return cases[task]


def runs_of(root: Path, task: str, *outcomes: Outcomes) -> list[StoredRun]:
    """Return runs a, b, ... with the scores of the first."""
    recorded = load_task(task).rescore(outcomes[0])
    return [scored(root, task, arrays, name, scores=recorded) for name, arrays in zip("abc", outcomes)]


def test_the_order_of_samples_does_not_matter(tmp_path: Path) -> None:
    outcomes = outcomes_of("reid")
    order = np.random.default_rng(2).permutation(len(outcomes["sample"]))
    runs = runs_of(tmp_path, "reid", outcomes, {name: values[order] for name, values in outcomes.items()})
    for name, score in runs[0].record.scores.items():
        found = PairedOutcomes(runs).scores(name)
        np.testing.assert_allclose(found.sums[0], found.sums[1], rtol=1e-12)
        assert found.values == pytest.approx([score] * 2)


@lru_cache
def detected(seed: int, without: int | None) -> tuple[Outcomes, dict[str, float]]:
    """Outcomes and scores of a detector; with `without`, it detects nothing on the image of this index."""
    truth, results = drawn_coco(seed)
    if without is not None:
        results = [result for result in results if result["image_id"] != truth["images"][without]["id"]]
    outcomes: Outcomes = {"cluster": np.arange(12)}
    for kind in ("bbox", "segm"):
        matches = evaluate(truth, results, kind)
        outcomes |= matches.outcomes() | resampled(matches)
    return outcomes, load_task("detect").rescore(outcomes)


def coco_run(folder: Path, seed: int, reverse: bool = False, without: int | None = None) -> StoredRun:
    known, scores = detected(seed, without)
    outcomes = dict(known)
    if reverse:  # as if the images' ids rose the other way
        outcomes["sample"] = outcomes["sample"][::-1].copy()
        outcomes |= {name: 11 - values for name, values in outcomes.items() if name.endswith("_image")}
    return scored(folder.parent, "detect", outcomes, folder.name, scores=scores)


def test_average_precision_is_computed_again_for_every_resample(tmp_path: Path) -> None:
    outcomes = read_outcomes(coco_run(tmp_path / "a", 0))
    weights = np.random.default_rng(0).multinomial(12, np.full(12, 1 / 12), size=500)
    for index in (0, 77, 499):
        times = weights[index][np.argsort(np.argsort(outcomes["sample"]))]
        for name in ("box_AP", "mask_AP50", "mask_ARs"):
            kind = "bbox" if name.startswith("box") else "segm"
            again = Averager(Pairing.from_outcomes(outcomes, kind), most=int(times.max())).means(times)
            assert outcomes[f"resampled_{name}"][index] == again[name.partition("_")[2]]


def test_images_are_resampled_by_name(tmp_path: Path) -> None:
    runs = [coco_run(tmp_path / "a", 0), coco_run(tmp_path / "b", 0, reverse=True)]
    found = PairedOutcomes(runs).scores("box_AP50")
    assert found.values[0] == runs[0].record.scores["box_AP50"]
    spread = np.sqrt((found.influence**2).sum(axis=1))
    assert spread[0] > 0.04
    # orders of tied scores differ
    assert np.sqrt(((found.influence[0] - found.influence[1]) ** 2).sum()) < 0.2 * spread[0]
    assert len(found.shares) == 12


def test_other_samples_are_an_error_that_counts_them(tmp_path: Path) -> None:
    outcomes = outcomes_of("knn")
    names = outcomes["sample"].copy()
    names[:3] = ["x", "y", "z"]
    with pytest.raises(UserError, match=r"3 samples of a are missing in b, 3 the other way \(0.jpg"):
        PairedOutcomes(runs_of(tmp_path, "knn", outcomes, outcomes | {"sample": names}))


def test_other_clusters_are_an_error(tmp_path: Path) -> None:
    outcomes = ranked()
    clusters = outcomes["cluster"], outcomes["cluster"][::-1].copy(), outcomes["cluster"] // 2
    runs = runs_of(tmp_path, "reid", *(outcomes | {"cluster": cluster} for cluster in clusters))
    assert PairedOutcomes(runs[:2])  # 20 identities under other numbers
    with pytest.raises(UserError, match="a and c: their samples form other clusters"):
        PairedOutcomes(runs)
