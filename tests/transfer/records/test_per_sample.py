"""`verify` and `--compare` take the same outcomes, and refuse the same with the same sentence."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.transfer.comparison.test_paired_outcomes import Outcomes, images, outcomes_of
from tests.transfer.records.recorded import scored
from transfer.comparison.paired_intervals import PairedOutcomes, mean_score
from transfer.core.errors import UserError
from transfer.records.evidence import Evidence
from transfer.records.store import StoredRun
from transfer.task import load_task
from transfer.verify.checks import check_scores


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
}  # fmt: skip


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
