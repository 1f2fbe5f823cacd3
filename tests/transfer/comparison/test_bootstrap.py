from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones.errors import UserError
from tasks.detection.coco.averages import Averager
from tasks.detection.coco.match_arrays import Matches
from tasks.detection.coco.scores import evaluate, scores
from tasks.ranking.metrics import Ranking, rank_distances
from tasks.task import load_task
from tests.tasks.detection.coco.cases import drawn as drawn_coco
from tests.transfer.records.test_store import CONTENT, record
from transfer.comparison.bootstrap import _jackknife, read_outcomes, resample
from transfer.records.per_sample import per_sample
from transfer.records.store import Run, RunKey
from transfer.statistics.contrasts import contrast

Outcomes = dict[str, np.ndarray]


def run_of(folder: Path, task: str, outcomes: Outcomes, scores: dict[str, float], **fields: Any) -> Run:
    """Return a finished run in a folder that holds its record and outcomes only."""
    folder.mkdir(parents=True)
    np.savez(folder / "outcomes.npz", **outcomes)
    primary = next(iter(scores), "mAP")
    run_key = RunKey({**CONTENT, "folder": folder.name})
    return Run(folder, record(run_key, run_id=folder.name, task=task, scores=scores, primary=primary, **fields))


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


@pytest.mark.parametrize("task", ["reid", "classify", "linear", "knn", "fewshot"])
def test_the_mean_over_samples_is_the_score(task: str) -> None:
    outcomes = outcomes_of(task)
    for name, score in load_task(task).rescore(outcomes).items():
        values = per_sample(name, outcomes)
        assert values is not None
        assert np.nanmean(values) == pytest.approx(score, abs=1e-12)
    assert per_sample("cosine_similarity", outcomes) is None


def test_draws_are_the_score_of_the_clusters_that_were_drawn(tmp_path: Path) -> None:
    """Two clusters: every draw is the score of one, of the other, or of both."""
    outcomes = ranked()
    outcomes["cluster"] = (outcomes["cluster"] > 9).astype(int)
    recorded = load_task("reid").rescore(outcomes)
    results = resample([run_of(tmp_path / "a", "reid", outcomes, recorded)], ["mAP", "rank5"], draws=200)
    for name in ("mAP", "rank5"):
        values = per_sample(name, outcomes)
        parts = [np.nanmean(values[outcomes["cluster"] == side]) for side in (0, 1)]
        expected = sorted([*parts, np.nanmean(values)])
        assert np.unique(np.round(results[name].bootstrap_scores, 12)) == pytest.approx(expected)
        assert results[name].clusters == 2


def test_the_order_of_samples_does_not_matter(tmp_path: Path) -> None:
    task, outcomes = "reid", outcomes_of("reid")
    order = np.random.default_rng(2).permutation(len(outcomes["sample"]))
    shuffled = {name: values[order] for name, values in outcomes.items()}
    recorded = load_task(task).rescore(outcomes)
    runs = [run_of(tmp_path / name, task, arrays, recorded) for name, arrays in (("a", outcomes), ("b", shuffled))]
    for resampled in resample(runs, list(recorded), draws=100).values():
        first, second = resampled.bootstrap_scores
        np.testing.assert_allclose(first, second, rtol=1e-12)
        assert len(np.unique(first)) > 20


def coco_run(folder: Path, seed: int, reverse: bool = False, without: int | None = None) -> Run:
    """Return a run of a detector; with `without`, it detects nothing on the image of this index."""
    truth, results = drawn_coco(seed)
    if without is not None:
        results = [result for result in results if result["image_id"] != truth["images"][without]["id"]]
    outcomes: Outcomes = {}
    recorded: dict[str, float] = {}
    for kind in ("bbox", "segm"):
        matches = evaluate(truth, results, kind)
        outcomes |= matches.outcomes()
        recorded |= scores(matches)
    outcomes["cluster"] = np.arange(12)
    if reverse:  # as if the images' ids rose the other way
        outcomes["sample"] = outcomes["sample"][::-1].copy()
        for name in [name for name in outcomes if name.endswith("_image")]:
            outcomes[name] = 11 - outcomes[name]
    return run_of(folder, "detect", outcomes, recorded)


def test_average_precision_is_computed_again_for_every_draw(tmp_path: Path) -> None:
    run = coco_run(tmp_path / "a", 0)
    names = ["box_AP", "mask_AP50", "mask_ARs"]
    results = resample([run], names, ap_draws=30)
    assert list(results) == names
    weights = np.random.default_rng(0).multinomial(12, np.full(12, 1 / 12), size=30)
    outcomes = read_outcomes(run)
    for index, times in enumerate(weights):
        for name in names:
            kind = "bbox" if name.startswith("box") else "segm"
            again = Averager(Matches.from_outcomes(outcomes, kind), most=int(times.max())).means(times)
            assert results[name].bootstrap_scores[0, index] == again[name.partition("_")[2]]
    assert results["box_AP"].scores[0] == run.record.scores["box_AP"]


def test_images_are_paired_by_name_for_average_precision_too(tmp_path: Path) -> None:
    runs = [coco_run(tmp_path / "a", 0), coco_run(tmp_path / "b", 0, reverse=True)]
    resampled = resample(runs, ["box_AP50"], ap_draws=20)["box_AP50"]
    np.testing.assert_allclose(
        resampled.bootstrap_scores[0], resampled.bootstrap_scores[1], atol=0.02
    )  # orders of tied scores differ
    assert resampled.bootstrap_scores[0].std() > 0.04


def test_detectors_that_differ_on_one_image_prove_nothing(tmp_path: Path) -> None:
    runs = [coco_run(tmp_path / "a", 0), coco_run(tmp_path / "b", 0, without=4)]
    resampled = resample(runs, ["box_AP50"], ap_draws=50)["box_AP50"]
    assert resampled.contributions is not None
    assert resampled.differences_only
    differences = resampled.contributions.sums[0] - resampled.contributions.sums[1]
    assert np.count_nonzero(differences) == 1
    difference = resampled.scores[0] - resampled.scores[1]
    assert differences.sum() == pytest.approx(difference, rel=0.5)  # to first order
    parts = [resampled.contributions.select([index]) for index in (0, 1)]
    arms = [resampled.scores[[index]] for index in (0, 1)], [resampled.bootstrap_scores[[index]] for index in (0, 1)]
    estimate = contrast(*arms, (1, -1), clusters=12, parts=parts, bounds=(0.0, 1.0))
    assert (estimate.p, estimate.discordant) == (1.0, 1)
    assert estimate.low < 0 < estimate.high
    assert contrast(*arms, (1, -1), clusters=12).p < 0.5
    unlike = [coco_run(tmp_path / "c", 0), coco_run(tmp_path / "d", 1)]
    parts_of_all = resample(unlike, ["box_AP"], ap_draws=9)["box_AP"].contributions
    assert parts_of_all is not None
    assert np.count_nonzero(np.ptp(parts_of_all.sums, axis=0)) > 6


def test_without_each_cluster_in_turn_a_mean_falls_into_its_parts() -> None:
    values = np.random.default_rng(0).random((2, 9))
    values[1, 3:] = values[0, 3:]  # equal but for three
    left_out = np.stack([np.delete(values, place, axis=1).mean(axis=1) for place in range(3)], axis=1)
    contributions = _jackknife(values.mean(axis=1), left_out, np.arange(3), 9)
    assert contributions is not None
    np.testing.assert_allclose(contributions.sums[:, :3], values[:, :3] / 9)
    np.testing.assert_allclose(contributions.sums.sum(axis=1), values.mean(axis=1))
    assert (contributions.sums[0, 3:] == contributions.sums[1, 3:]).all()
    left_out[0, 0] = np.nan
    assert _jackknife(values.mean(axis=1), left_out, np.arange(3), 9) is None


def test_other_samples_are_an_error_that_counts_them(tmp_path: Path) -> None:
    outcomes = outcomes_of("knn")
    names = outcomes["sample"].copy()
    names[:3] = ["x", "y", "z"]
    recorded = load_task("knn").rescore(outcomes)
    runs = [
        run_of(tmp_path / "a", "knn", outcomes, recorded),
        run_of(tmp_path / "b", "knn", outcomes | {"sample": names}, recorded),
    ]
    with pytest.raises(UserError, match=r"3 samples of a are missing in b, 3 the other way \(0.jpg"):
        resample(runs, ["top1"])


def test_other_clusters_are_an_error(tmp_path: Path) -> None:
    outcomes = ranked()
    recorded = load_task("reid").rescore(outcomes)
    renamed, other = outcomes["cluster"][::-1].copy(), outcomes["cluster"] // 2
    runs = [
        run_of(tmp_path / name, "reid", outcomes | {"cluster": cluster}, recorded)
        for name, cluster in (("a", outcomes["cluster"]), ("b", renamed), ("c", other))
    ]
    assert resample(runs[:2], ["mAP"], draws=10)  # 20 identities under other numbers
    with pytest.raises(UserError, match="a and c: their samples form other clusters"):
        resample(runs, ["mAP"], draws=10)


def test_queries_without_a_match_do_not_count() -> None:
    outcomes = ranked()
    values = per_sample("rank1", outcomes)
    assert values is not None
    assert np.isnan(values).sum() == (~Ranking.from_outcomes(outcomes).valid).sum() > 0
