"""Outcomes of runs sample by sample: paired, resampled, refused as `verify` does, and computed anew from files."""

import json
import pickle
import runpy
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from tasks.detect.coco.averages import Averager, resampled
from tasks.detect.coco.matching import Pairing
from tasks.ranking.metrics import rank_distances
from tests.documents import ROOT
from tests.tasks.detect.coco.cases import drawn as drawn_coco
from tests.tasks.detect.coco.cases import evaluate
from tests.transfer.records.recorded import scored
from transfer.comparison.paired_intervals import PairedOutcomes, mean_score, read_outcomes
from transfer.core.errors import UserError
from transfer.records.evidence import Evidence
from transfer.records.store import StoredRun
from transfer.report.__main__ import main
from transfer.task import load_task
from transfer.verify.checks import check_scores

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


@pytest.mark.parametrize("task", ["reid", "classify", "linear", "knn", "fewshot"])
def test_what_verifies_can_be_compared(tmp_path: Path, task: str) -> None:
    run = scored(tmp_path, task, outcomes_of(task), "a")
    assert check_scores(run.folder, run.record) == ([], [])
    assert all(map(PairedOutcomes([run]).scores, run.record.scores))


RIGHT = load_task("reid").rescore(outcomes_of("reid"))


def without(name: str) -> Outcomes:
    return {key: values for key, values in outcomes_of("reid").items() if key != name}


def changed(**given: np.ndarray) -> Outcomes:
    return outcomes_of("reid") | given


FAULTS: dict[str, tuple[Outcomes, str]] = {
    "equal names": (changed(sample=np.full(60, "a")), "several samples have one name (a), so they cannot be"),
    "no names": (without("sample"), "has no sample, so its samples cannot be paired"),
    "no values": (without("ap"), "cannot be scored (KeyError: 'ap')"),
    "fewer values": (changed(ap=np.zeros(3)), "cannot be scored (ValueError: mAP: 3 values of 60 samples)"),
}


def refusal(run: StoredRun) -> str:
    """What `--compare` says of a run's own file."""
    with pytest.raises(UserError) as error:
        all(map(PairedOutcomes([run, run]).scores, run.record.scores))
    return str(error.value).removeprefix(f"{run.folder / 'outcomes.npz'}: ").partition("; `python -m")[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_refused_does_not_verify_and_both_say_why(tmp_path: Path, fault: str) -> None:
    outcomes, says = FAULTS[fault]
    run = scored(tmp_path, "reid", outcomes, "a", scores=RIGHT)
    said = refusal(run)
    assert said.startswith(says)
    assert f"outcomes.npz: {said}" in check_scores(run.folder, run.record)[0]


def test_a_single_cluster_is_no_fault_of_the_file_and_has_no_interval(tmp_path: Path) -> None:
    run = scored(tmp_path, "reid", changed(cluster=np.zeros(60, int)), "a", scores=RIGHT)
    with pytest.raises(UserError, match="a: an interval needs at least 2 clusters, not 1"):
        mean_score([run], "mAP", Evidence([run.record]))

    assert check_scores(run.folder, run.record)[0] == []


@pytest.mark.parametrize("content", [None, b"PK\x03\x04", pickle.dumps({"ap": [0.5]})], ids=["none", "torn", "pickle"])
def test_a_file_that_cannot_be_read_is_said_alike(tmp_path: Path, content: bytes | None) -> None:
    run = scored(tmp_path, "reid", outcomes_of("reid"), "a")
    path = run.folder / "outcomes.npz"
    path.unlink() if content is None else path.write_bytes(content)
    said = refusal(run)
    assert said.startswith("missing, although there are scores; copy" if content is None else "not readable (")
    assert check_scores(run.folder, run.record)[0] == [f"outcomes.npz: {said}"]


def test_a_sample_that_counts_in_one_arm_alone_is_named(tmp_path: Path) -> None:
    def measured(name: str, values: np.ndarray) -> StoredRun:
        scores = {"cosine_similarity": float(np.nanmean(values))}
        return scored(tmp_path, "tokens", images(cosine_similarity=values), name, scores=scores)

    values = np.random.default_rng(0).random(50)
    missing = np.where(np.isin(np.arange(50), (3, 7)), np.nan, values)
    a, b = measured("a", values), measured("b", missing)
    with pytest.raises(UserError) as error:
        PairedOutcomes([a, b]).scores("cosine_similarity")
    says = "a and b are not paired in cosine_similarity: 2 of 50 samples count in one of them alone (3.jpg, 7.jpg)"
    assert str(error.value) == says
    paired = PairedOutcomes([b, measured("c", missing / 2)]).scores("cosine_similarity")
    assert paired.shares.tolist() == [1 / 48] * 48
    assert mean_score([b], "cosine_similarity", Evidence([b.record])) is not None


SCRIPT = ROOT / "docs" / "concepts" / "rebuild_intervals.py"


def written(out: Path, task: str, stem: str, seed: int, outcomes: Outcomes) -> None:
    scores = load_task(task).rescore(outcomes)
    if task == "detect":
        scores = {name: scores[name] for name in ("box_AP", "box_AP50", "mask_AP")}
    about = {"backbone": {"name": f"tiny_{stem}", "stem": stem}, "origin": {"seed": seed, "training": stem}}
    about |= {"seed": seed, "weights_id": f"sha256:{stem}{seed}", "scores": scores}
    scored(out, task, outcomes, f"{task}-{stem}-{seed}", **about)


def test_the_script_finds_the_intervals_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, rng = tmp_path / "runs", np.random.default_rng(0)
    for place, stem in enumerate(("conv", "patchify")):
        for seed in range(3):
            queries = ranked(10 * place + seed)
            queries["tied"] = queries["hits"]  # the script leaves out what ties need
            written(out, "reid", stem, seed, queries)
        for seed in range(2):
            run = coco_run(tmp_path / f"{stem}{seed}", 2 * seed, without=3 + place)
            with np.load(run.folder / "outcomes.npz") as file:
                written(out, "detect", stem, seed, dict(file))
        rank = rng.integers(0, 2 + place, 300)
        written(out, "classify", stem, 0, images(rank=rank, ties=0 * rank))
        equal = np.repeat([0, 3], 40)
        written(out, "linear", stem, 0, images(rank=equal, ties=0 * equal, best_rank=equal, best_ties=0 * equal))
    rows = tmp_path / "rows.csv"
    assert not main([str(out), "--compare", "stem=conv", "stem=patchify", "--format", "csv", "--output", str(rows)])
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(out), str(rows)])
    capsys.readouterr()
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_path(str(SCRIPT))
    told = capsys.readouterr().out.splitlines()
    scores = {"reid mAP", "reid rank1", "detect box_AP", "detect mask_AP", "classify top1", "linear top1"}
    assert scores <= {line.split(":")[0] for line in told}
    # and it would tell: one value changed by a hundredth of its interval's width is found
    text = rows.read_text()
    low = next(line.split("[")[1].split(",")[0] for line in told if line.startswith("reid mAP"))
    rows.write_text(text.replace(low, json.dumps(float(low) - 1)))
    with pytest.raises(SystemExit, match=r"^1$"):
        runpy.run_path(str(SCRIPT))
