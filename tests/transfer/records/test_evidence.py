"""What counts as one seed, and what never came to have a score."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runs import ended
from tests.transfer.records.recorded import broken, made, run_set, trained
from transfer.comparison.compare_arms import compared_arms, decide
from transfer.comparison.paired_intervals import mean_score
from transfer.comparison.pairing import MatchedRuns
from transfer.records.evidence import Arm, Evidence, chance, ending, is_seeded, scores_above_chance
from transfer.records.record import Record
from transfer.records.store import StoredRun
from transfer.statistics.verdicts import Breakdowns, Kind


def tuned(weights: str, seed: int = 0, score: float | None = 0.5, **given: Any) -> Record:
    """A fine-tuning of the weights with this id, at one rank-1 and mAP."""
    scores = {} if score is None else {"mAP": score}
    status = ended("completed" if score is not None else "diverged", 9)
    return made(weights_id=weights, seed=seed, scores=scores, outcome=status, **given)


def pretrainings(lasting: int, lost: int, stem: str = "patchify") -> list[Record]:
    """Pretrainings of one protocol, the last of which broke down."""
    done = [trained(f"sha256:{stem}{seed}", seed=seed, stem=stem) for seed in range(lasting)]
    given = {"task": "pretrain-dino", "dataset": {"name": "toy_digits"}, "stem": stem}
    return done + [broken(**given, seed=seed) for seed in range(lasting, lasting + lost)]


def arm_of(runs: list[Record], known: list[Record] | None = None) -> Arm:
    return Evidence([*(known or []), *runs]).variant(runs)


def test_seeds_that_change_nothing_are_one() -> None:
    runs = [made("knn", weights_id="timm:vit", seed=seed, scores={"mAP": 0.4}) for seed in (0, 1, 2)]
    assert arm_of(runs).values("mAP") == pytest.approx([40.0])
    assert len(arm_of([made("knn", seed=seed, scores={"mAP": 0.4 + 0.1 * seed}) for seed in (0, 1, 2)]).units) == 3
    assert is_seeded(made("knn", weights_id="timm:vit", untrained=["patch_embed.proj.weight"]))
    assert not is_seeded(made("knn", weights_id="timm:vit"))
    assert not is_seeded(made("mine", weights_id="timm:vit", options={"shots": 1}))  # a user's task without epochs
    assert is_seeded(made("mine", weights_id="timm:vit", options={"precision": "fp32", "epochs": None}))
    assert is_seeded(made("mine", weights_id="timm:vit"))


def test_seeds_of_a_users_task_count_where_they_change_a_score() -> None:
    """It may draw by the seed without a training, as a probe of drawn images does."""
    given: dict[str, Any] = {"weights_id": "timm:vit", "options": {"shots": 1}, "user_code": {"task": {"sha256": "a"}}}
    for spread, units in ((0.0, 1), (0.1, 3)):
        runs = [made("mine", seed=seed, scores={"mAP": 0.4 + spread * seed}, **given) for seed in range(3)]
        assert len(arm_of(runs).units) == units


def test_fine_tunings_that_broke_down_count_though_their_pretraining_has_a_score() -> None:
    """Three pretrainings, four fine-tunings of each, of which one lasts."""
    runs = [tuned(f"sha256:patchify{seed}", again, None if again else 0.8) for seed in range(3) for again in range(4)]
    variant = arm_of(runs, pretrainings(3, 0))
    assert (variant.broken, variant.breakdowns) == (0, (9, 12, 0))
    assert [*variant.with_breakdowns("mAP").values()] == pytest.approx([20.0] * 3)


def test_other_trainings_that_broke_down_do_not_count() -> None:
    runs = [tuned("sha256:patchify0"), tuned("sha256:patchify1")]
    others = [broken(task="pretrain-dino", dataset={"name": "toy_digits"}, seed=7, lr=1.0), broken(stem="conv", seed=8)]
    assert Evidence([*pretrainings(2, 0), *others, *runs]).lost(runs) == []


def test_a_breakdown_of_changed_files_counts_beside_such_alone() -> None:
    parents, run = pretrainings(1, 1), tuned("sha256:patchify0")
    parents[1].environment["dirty"] = True
    assert Evidence([*parents, run]).lost([run]) == []
    parents[0].environment["dirty"] = True
    assert Evidence([*parents, run]).lost([run]) == [parents[1]]


def test_one_that_broke_down_in_the_middle_counts() -> None:
    """DINO with three seeds, fine-tuned; one of the fine-tunings broke down, and with it all that would follow."""
    middle = [made("finetune", weights_id=f"sha256:patchify{n}", export=f"sha256:tuned{n}") for n in (0, 1)]
    failed = broken(task="finetune", weights_id="sha256:patchify2")
    variant = arm_of([tuned(f"sha256:tuned{seed}") for seed in (0, 1)], [*pretrainings(3, 0), *middle, failed])
    assert (variant.broken, len(variant.units)) == (1, 3)
    assert variant.lost_labels == [("pretraining", 2)]


def test_seeds_of_a_pretraining_elsewhere_are_known_by_what_its_export_says() -> None:
    """Records of the pretraining are not at hand; what they exported names its protocol and seed."""
    runs = [tuned(f"sha256:{seed}", 0, origin={"training": "p", "seed": seed}) for seed in (0, 1, 2)]
    assert arm_of(runs).labels == [("pretraining", seed) for seed in (0, 1, 2)]
    assert len(run_set(runs).groups) == 1


def test_trainings_that_were_not_judged_are_neither_alive_nor_dead() -> None:
    """Three seeds with a score of an older rule, and two of three fine-tunings of one pretraining that broke down."""
    runs = [made(seed=seed) for seed in range(5)]
    for run in runs[:3]:
        run.outcome = ended("at_chance") | {"rule": 1}
    assert arm_of([*runs, broken(seed=5)]).breakdowns == (1, 3, 3)
    assert len(arm_of(runs).values("mAP")) == 5
    tunings = [tuned("sha256:patchify0", seed, 0.5 if seed < 2 else None) for seed in range(4)]
    tunings[0].outcome["status"] = "not_judged"
    assert arm_of([*tunings, tuned("sha256:patchify1")], pretrainings(2, 0)).breakdowns == (2, 4, 1)


GUESSED = [
    *((0.1, 1000, False), (0.129, 1000, False), (0.131, 1000, True)),
    *((0.1, 0, False), (0.129, 0, True), (0.11, 10_000, True)),
]


@pytest.mark.parametrize(("score", "images", "above"), GUESSED)
def test_above_chance_is_what_guessing_hardly_ever_reaches(score: float, images: int, above: bool) -> None:
    """P(X >= 129) is 0.0018 and P(X >= 131) is 0.0010 for 1,000 draws at 0.1 (scipy.stats.binom)."""
    data = {"counts": {"val": {"classes": 10, "images": images}}}
    record = made("knn", dataset=data, primary="top1", metrics={}, scores={"top1": score})
    assert scores_above_chance(record) is above
    assert ending(record) == ("completed" if above else "score_at_chance")


def test_where_chance_is_not_known_the_outcome_alone_decides() -> None:
    assert scores_above_chance(made(scores={"mAP": 0.001})) is None
    assert ending(made(scores={"mAP": 0.001})) == "completed"
    counts = {"val": {"classes": 1, "images": 9}}
    assert scores_above_chance(made("knn", dataset={"counts": counts}, primary="top1", scores={"top1": 1.0})) is None


def test_chance_is_that_of_guessing_a_class() -> None:
    counts = {"train": {"classes": 10}, "val": {"classes": 10}, "ignored": 0}
    record = made("knn", dataset={"counts": counts}, metrics={"similarity_stem": {"unit": "cosine"}})
    assert {chance(record, name) for name in ("top1", "top1_k20", "accuracy", "accuracy_10shot")} == {0.1}
    assert chance(record, "top5") == 0.5
    assert chance(record, "mAP") == 0.0
    assert chance(record, "similarity_stem") is None


def scored(root: Path, record: Record) -> StoredRun:
    """The run of a fine-tuning's record: 60 queries, of which a share of the record's mAP is found at once."""
    folder = root / record.run_id
    folder.mkdir()
    values = (np.arange(60) < round(60 * record.scores.get("mAP", 0))).astype(float)
    np.savez(folder / "outcomes.npz", sample=[f"{query}.jpg" for query in range(60)], cluster=np.arange(60), mAP=values)
    return StoredRun(folder, record)


def test_a_comparison_of_survivors_says_so(tmp_path: Path) -> None:
    variants = [[tuned(f"sha256:{stem}{seed}", stem=stem, score=score) for seed in range(3)]
            for stem, score in (("conv", 0.9), ("patchify", 0.3))]  # fmt: skip
    known = [*pretrainings(3, 4, "conv"), *pretrainings(3, 0), *variants[0], *variants[1]]
    matched = MatchedRuns([[scored(tmp_path, record) for record in variant] for variant in variants])
    (row,) = compared_arms(matched, Evidence(known)).rows
    decide([row], {}, None)
    assert row.verdict.kind is Kind.A_BETTER
    assert row.verdict.breakdowns == (Breakdowns("a", 4, 7), Breakdowns("b", 0, 3))
    counted = row.verdict.counted
    assert counted.estimate == pytest.approx(3 * 0.9 / 7 - 0.3)
    assert counted.low < counted.estimate < counted.high


def test_fine_tunings_of_one_pretraining_are_one_seed_also_where_those_of_all_others_failed(tmp_path: Path) -> None:
    records = [tuned("sha256:patchify0", seed, 0.5 + seed / 10) for seed in range(3)]
    records += [tuned("sha256:patchify1", seed, None) for seed in range(2)]
    runs, evidence = [scored(tmp_path, record) for record in records], Evidence([*pretrainings(2, 0), *records])
    assert mean_score(runs, "mAP", evidence).seeds == (1,)
    assert mean_score(runs[:3], "mAP", evidence).seeds == (3,), "of a single pretraining they are seeds"


def of_processes(world: int, seed: int) -> Record:
    """A fine-tuning with batch norm by so many processes."""
    return made(stem="conv", seed=seed, environment={"precision": "bf16", "world_size": world, "sequence_parallel": 1})


def test_runs_of_other_numbers_of_processes_are_no_seeds_of_each_other() -> None:
    """Of batch norm, each process of which sees its own part of the batch; not where any number computes the same."""
    groups = run_set([of_processes(1, seed) for seed in range(3)] + [of_processes(8, 3)]).groups
    assert [len(group.records) for group in groups] == [3, 1]
    assert [dict(group.protocol.fields)["world_size"] for group in groups if group.protocol] == [1, 8]
    alike = [of_processes(world, seed) for seed, world in enumerate((1, 1, 8))]
    for run in alike:
        run.options.update({"sync_bn": True, "sam": "none", "mixup": 0})
    (group,) = run_set(alike).groups
    assert group.machines == "1 process, 8 processes"
