"""What counts as one seed, and what never came to have a score, in every table."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from backbones.errors import UserError
from tests.transfer.records.recorded import broken, made, trained
from tests.transfer.report.tables import test_comparison as knn
from tests.transfer.report.tables.of_records import letters, map_of, over_datasets_of, said, summary_of, texts
from transfer.cli.ignored_options import FROZEN
from transfer.records.evidence import Evidence, chance, is_seeded
from transfer.records.record import Record
from transfer.records.store import Run
from transfer.report.render.run_table import run_table
from transfer.report.tables.cell_text import cell_text
from transfer.report.tables.table import Table
from transfer.statistics.verdicts import Breakdowns, Kind


def tuned(weights: str, seed: int = 0, score: float | None = 0.5, **given: Any) -> Record:
    """A fine-tuning of the weights with this id, at one rank-1 and mAP."""
    scores = {} if score is None else {"mAP": score}
    status = {"status": "completed" if score is not None else "diverged", "reason": "", "step": 9}
    return made(weights_id=weights, seed=seed, scores=scores, outcome=status, **given)


def pretrainings(lasting: int, lost: int, stem: str = "patchify") -> list[Record]:
    """Pretrainings of one protocol, the last of which broke down."""
    done = [trained(f"sha256:{stem}{seed}", seed=seed, stem=stem) for seed in range(lasting)]
    data = {"name": "toy_digits"}
    return done + [
        broken(task="pretrain-dino", dataset=data, seed=seed, stem=stem) for seed in range(lasting, lasting + lost)
    ]


def only(table: pd.DataFrame | Table) -> dict[str, Any]:
    (row,) = table.rows if isinstance(table, Table) else table.to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_fine_tunings_of_one_pretraining_are_one_seed() -> None:
    """Four of one at 30 and one of another at 60 are two seeds of 45, not five of 36."""
    parents = pretrainings(2, 0)
    runs = [tuned("sha256:patchify0", seed, 0.3) for seed in range(4)] + [tuned("sha256:patchify1", 0, 0.6)]
    table = summary_of(runs, [*parents, *runs])
    assert only(table)["seeds"] == 2
    assert only(table)["mAP"] == pytest.approx(45.0)
    assert only(table)["mAP sd"] == pytest.approx(30 / 2**0.5)
    assert any("5 runs count as 2: those that start from one pretraining" in note for note in said(table))


def test_fine_tunings_of_the_only_pretraining_are_seeds() -> None:
    runs = [tuned("sha256:patchify0", seed, 0.3 + 0.1 * seed) for seed in range(3)]
    assert only(summary_of(runs, [*pretrainings(1, 0), *runs]))["seeds"] == 3


def test_trainings_on_one_pretraining_are_the_units_of_what_follows_them() -> None:
    """One DINO, fine-tuned twice; each probed with three seeds."""
    first = trained("sha256:dino")
    middle = [made("finetune", weights_id="sha256:dino", seed=seed, export=f"sha256:tuned{seed}") for seed in (0, 1)]
    runs = [tuned(f"sha256:tuned{seed}", again, 0.2 + 0.2 * seed) for seed in (0, 1) for again in (0, 1, 2)]
    row = only(summary_of(runs, [first, *middle, *runs]))
    assert (row["seeds"], row["mAP"]) == (2, pytest.approx(30.0))


def test_seeds_that_change_nothing_are_one() -> None:
    runs = [made("knn", weights_id="timm:vit", seed=seed, scores={"mAP": 0.4}) for seed in (0, 1, 2)]
    table = summary_of(runs)
    assert only(table)["seeds"] == 1
    assert "mAP sd" not in table
    assert any("3 runs count as 1: seeds change nothing here" in note for note in said(table))
    assert "sd" not in run_table(runs)
    random = [made("knn", seed=seed, scores={"mAP": 0.4 + 0.1 * seed}) for seed in (0, 1, 2)]
    assert only(summary_of(random))["seeds"] == 3


def test_a_part_without_weights_makes_seeds_matter() -> None:
    assert is_seeded(made("knn", weights_id="timm:vit", untrained=["patch_embed.proj.weight"]))
    assert not is_seeded(made("knn", weights_id="timm:vit"))


def test_what_needs_no_seed_is_known() -> None:
    """The tasks that train nothing have no option of the training loop."""
    import tasks.task
    from backbones.engine.options import FitOptions
    from transfer.cli.command import task_names

    idle = {name for name in task_names() if not issubclass(tasks.task.load_task(name).options, FitOptions)}
    assert idle == {*FROZEN}


def test_pretrainings_that_broke_down_count_where_their_weights_are_missing() -> None:
    parents = pretrainings(2, 3)
    runs = [tuned(f"sha256:patchify{seed}", 0, 0.5 + 0.1 * seed) for seed in (0, 1)]
    table = summary_of(runs, [*parents, *runs])
    row = only(table)
    assert cell_text(row["broke down"]).startswith("3 of 5 ")
    assert cell_text(row["outcomes"]) == "2 completed, 3 diverged in pretraining"
    assert (row["seeds"], row["mAP"]) == (5, pytest.approx(55.0))
    assert row["mAP with breakdowns"] == pytest.approx(22.0)  # (50 + 60 + 3 * 0) / 5


def test_other_trainings_that_broke_down_do_not_count() -> None:
    runs = [tuned("sha256:patchify0"), tuned("sha256:patchify1")]
    others = [broken(task="pretrain-dino", dataset={"name": "toy_digits"}, seed=7, lr=1.0), broken(stem="conv", seed=8)]
    evidence = Evidence([*pretrainings(2, 0), *others, *runs])
    assert evidence.lost(runs) == []
    assert evidence.lost([]) == []


def test_a_breakdown_of_changed_files_counts_beside_such_alone() -> None:
    parents, run = pretrainings(1, 1), tuned("sha256:patchify0")
    parents[1].environment["dirty"] = True
    assert Evidence([*parents, run]).lost([run]) == []
    parents[0].environment["dirty"] = True
    assert Evidence([*parents, run]).lost([run]) == [parents[1]]


def test_one_that_broke_down_in_the_middle_counts() -> None:
    """DINO with three seeds, fine-tuned; one of the fine-tunings broke down, and with it all that would follow."""
    first = pretrainings(3, 0)
    middle = [
        made("finetune", weights_id=f"sha256:patchify{seed}", seed=0, export=f"sha256:tuned{seed}") for seed in (0, 1)
    ]
    failed = broken(task="finetune", weights_id="sha256:patchify2", seed=0)
    runs = [tuned(f"sha256:tuned{seed}") for seed in (0, 1)]
    arm = Evidence([*first, *middle, failed, *runs]).arm(runs)
    assert (arm.broken, len(arm.units)) == (1, 3)
    assert arm.lost_labels == [("pretraining", 2)]


def test_chance_is_that_of_guessing_a_class() -> None:
    record = made("knn", dataset={"counts": {"train": {"classes": 10}, "val": {"classes": 10}, "ignored": 0}})
    assert chance(record, "top1", {}) == chance(record, "accuracy_10shot", {}) == chance(record, "top1_k20", {}) == 0.1
    assert chance(record, "top5", {}) == 0.5
    assert chance(record, "mAP", {}) == 0.0
    assert chance(record, "similarity_stem", {"similarity_stem": {"unit": "cosine"}}) is None


def survivors(root: Path, sizes: dict[str, tuple[int, int]]) -> list[Run]:
    """For each stem so many pretrainings with a k-NN run each, and so many that broke down."""
    runs = []
    for stem, (lasting, lost) in sizes.items():
        runs += [knn.pretraining(root, stem, seed) for seed in range(lasting)]
        runs += [knn.pretraining(root, stem, seed, broke=True) for seed in range(lasting, lasting + lost)]
        runs += [knn.made(root, stem, seed=seed, weights_id=f"sha256:{stem}{seed}") for seed in range(lasting)]
    return runs


def test_a_comparison_of_survivors_says_so(tmp_path: Path) -> None:
    runs = survivors(tmp_path, {"conv": (3, 4), "patchify": (3, 0)})
    found = knn.compared(runs, "task=knn,stem=conv", "task=knn,stem=patchify", draws=300)
    table = knn.compare(runs, "task=knn,stem=conv", "task=knn,stem=patchify", draws=300)
    (top1,) = [row for row in found.rows if row.score == "top1"]
    assert top1.verdict.kind is Kind.A_BETTER
    assert top1.verdict.breakdowns == (Breakdowns("a", 4, 7), Breakdowns("b", 0, 3))
    row = knn.row(table, score="top1")
    assert row["broke down a"].startswith("4 of 7 ")
    assert row["verdict"].startswith("a better; of survivors alone: broke down a 4 of 7; with these at chance -1")
    counted = top1.verdict.counted
    scored = [run.record for run in runs if run.record.scores]
    both = [[one.scores["top1"] for one in scored if one.backbone["stem"] == stem] for stem in ("conv", "patchify")]
    assert counted.estimate == pytest.approx(sum(both[0]) / 7 - sum(both[1]) / 3)
    assert counted.low < counted.estimate < counted.high
    assert "a better among survivors in 1" in knn.notes(table)


def test_pretrainings_that_broke_down_are_those_of_their_own_part_in_a_map() -> None:
    parents = [*pretrainings(2, 3, "conv"), *pretrainings(2, 0, "patchify")]
    runs = [tuned(f"sha256:{stem}{seed}", stem=stem) for stem in ("conv", "patchify") for seed in (0, 1)]
    rows = map_of(runs, "lr", "stem", known=[*parents, *runs])
    assert dict(zip(rows["stem"], rows["breakdown_rate"])) == pytest.approx({"conv": 0.6, "patchify": 0.0})
    assert dict(zip(rows["stem"], rows["outcome"])) == {"conv": "diverged", "patchify": "completed"}


def test_a_side_all_of_whose_pretrainings_broke_down_is_said_to_have_nothing(tmp_path: Path) -> None:
    runs = survivors(tmp_path, {"conv": (3, 0), "patchify": (0, 3)})
    said = knn.notes(knn.compare(runs, "stem=conv", "stem=patchify", draws=100))
    assert "knn on toy_market: 'stem=patchify' has nothing there, since 3 of 3 trainings before it broke down" in said
    with pytest.raises(
        UserError, match="'stem=patchify' has nothing there, since 3 of 3 trainings before it broke down"
    ):
        knn.compare(runs, "task=knn,stem=conv", "stem=patchify", draws=100)


def test_without_breakdowns_nothing_is_said_of_survivors(tmp_path: Path) -> None:
    runs = survivors(tmp_path, {"conv": (2, 0), "patchify": (2, 0)})
    found = knn.compared(runs, "task=knn,stem=conv", "task=knn,stem=patchify", draws=300)
    table = knn.compare(runs, "task=knn,stem=conv", "task=knn,stem=patchify", draws=300)
    assert "survivors" not in knn.notes(table) + str(knn.column(table, "verdict"))
    assert all(row.verdict.counted is None for row in found.rows)


def test_other_released_weights_are_another_arm(tmp_path: Path) -> None:
    """A conv stem on DINO's weights and one on DeiT's are no two seeds of one arm, and beside patchify that is said."""
    levels = {"timm:dino": 0.7, "timm:deit": 0.2}
    conv = [knn.made(tmp_path, "conv", weights_id=name, level=level) for name, level in levels.items()]
    plain = [knn.made(tmp_path, "patchify", weights_id="timm:supervised")]
    with pytest.raises(UserError, match="'stem=conv' differ in weights; narrow it"):
        knn.compare([*conv, *plain], "stem=conv", "stem=patchify", draws=100)
    said = knn.notes(knn.compare([conv[0], *plain], "stem=conv", "stem=patchify", draws=100))
    assert "besides, the arms have weights timm:dino against weights timm:supervised" in said


def test_trainings_behind_the_last_one_tell_arms_apart(tmp_path: Path) -> None:
    """Fine-tuned alike, from other released weights."""
    runs = []
    for stem, start in (("conv", "timm:dino"), ("patchify", "timm:deit")):
        parent = knn.pretraining(tmp_path, stem, 0, weights_id=start)
        runs += [parent, knn.made(tmp_path, stem, weights_id=parent.record.export)]
    said = knn.notes(knn.compare(runs, "task=knn,stem=conv", "task=knn,stem=patchify", draws=100))
    assert "besides, the arms have pretraining.weights timm:dino against pretraining.weights timm:deit" in said


def test_seeds_of_a_pretraining_elsewhere_are_known_by_what_its_export_says(tmp_path: Path) -> None:
    """Records of the pretraining are not at hand; what they exported names its protocol and seed."""
    runs = [
        knn.made(tmp_path, stem, seed=0, weights_id=f"sha256:{stem}{seed}", level=0.5 + 0.1 * seed,
                 origin={"training": f"protocol of {stem}", "seed": seed})
        for stem in ("conv", "patchify") for seed in (0, 1, 2)
    ]  # fmt: skip
    table = knn.compare(runs, "stem=conv", "stem=patchify", draws=100)
    assert knn.row(table, score="top1")["seeds"] == "3 in pairs"
    assert summary_of([run.record for run in runs])["seeds"] == [3, 3]


def sets(backbone: str, **scores: float | None) -> list[Record]:
    """Few-shot records by data set."""
    return [
        made("fewshot", backbone={"name": backbone}, dataset={"name": name, "digest": name * 10},
             primary="accuracy_10shot", scores={} if score is None else {"accuracy_10shot": score},
             metrics={"accuracy_10shot": {"averaged": True}})
        for name, score in scores.items()
    ]  # fmt: skip


def test_means_are_over_sets_that_all_rows_have() -> None:
    """88.00 over pets and caltech beside 61.50 over pets and cars told nothing: the second is better on pets."""
    table = over_datasets_of(
        [*sets("one", pets=0.8, flowers=0.7, caltech=0.96), *sets("two", pets=0.83, flowers=0.8, cars=0.4)]
    )
    assert texts(table, "data sets") == ["mean of 2", "mean of 2"]
    assert dict(zip(table["backbone"], table["accuracy_10shot"])) == pytest.approx({"one": 75.0, "two": 81.5})
    assert "means are over flowers, pets" in said(table)
    assert {
        "not in the means, since other rows lack it: caltech",
        "not in the means, since other rows lack it: cars",
    } <= {*said(table)}


def test_a_row_of_one_set_is_named_beside_means() -> None:
    table = over_datasets_of([*sets("one", pets=0.8, cars=0.96), *sets("two", pets=0.83)])
    assert table["backbone"] == ["one"]
    assert "not in the means, since a row has it alone: pets" in said(table)


def test_a_record_without_a_start_is_older_than_one_with() -> None:
    old, new, other = (sets("one", **scores)[0] for scores in ({"pets": 0.1}, {"pets": 0.3}, {"cars": 0.5}))
    for record, started in ((old, None), (new, "2026-01-01"), (other, "2026-01-01")):
        record.environment["started"] = started
    for records in ([old, new, other], [new, old, other]):
        assert over_datasets_of(records)["accuracy_10shot"] == pytest.approx([40.0])


def test_a_mean_of_survivors_says_so() -> None:
    parents = pretrainings(1, 2)
    runs = [
        made("fewshot", weights_id="sha256:patchify0", dataset={"name": name, "digest": name * 10}, scores={"mAP": 0.5},
             metrics={"mAP": {"averaged": True}})
        for name in ("pets", "cars")
    ]  # fmt: skip
    mean = only(over_datasets_of(runs, [*parents, *runs]))["data sets"]
    assert cell_text(mean) == "mean of 2, of survivors: 2 pretrainings like its own broke down"


def test_rows_with_one_set_in_common_have_no_mean() -> None:
    table = over_datasets_of([*sets("one", pets=0.8, caltech=0.96), *sets("two", pets=0.83, cars=0.4)])
    assert texts(table, "data sets") == ["1 in common with the other rows"] * 2
    assert "accuracy_10shot" not in table


def of_processes(world: int, seed: int, score: float, stem: str = "conv", **environment: Any) -> Record:
    """A fine-tuning, with batch norm unless its stem is another, by so many processes."""
    said = {"precision": "bf16", "dirty": False, "world_size": world, "sequence_parallel": 1, **environment}
    return made(stem=stem, seed=seed, scores={"mAP": score}, environment=said)


def test_runs_of_other_numbers_of_processes_are_no_seeds_of_each_other() -> None:
    """Three of one process at 60 to 62 and one of eight at 20 were four seeds of 50.75."""
    runs = [of_processes(1, seed, 0.6 + 0.01 * seed) for seed in range(3)] + [of_processes(8, 3, 0.2)]
    table = summary_of(runs)
    assert table["seeds"] == [3, 1]
    assert table["mAP"] == pytest.approx([61.0, 20.0])
    assert letters(table) == ["a", "b"]
    assert said(table)[:2] == ["protocol a: world_size 1", "protocol b: world_size 8"]


def test_where_any_number_computes_the_same_it_is_said_at_the_row() -> None:
    options = {"sync_bn": True, "sam": "none", "mixup": 0}
    runs = [of_processes(world, seed, 0.6) for seed, world in enumerate((1, 1, 8))]
    for run in runs:
        run.options.update(options)
    table = summary_of(runs)
    assert only(table)["seeds"] == 3
    assert only(table)["dataset"] == "toy_market (1 process, 8 processes, version 1)"


def test_kinds_of_device_and_versions_of_torch_are_said_at_the_row() -> None:
    new = {"device_type": "cuda", "versions": {"torch": "2.13.0+cu130"}}
    old = {"device_type": "cpu", "versions": {"torch": "2.12.1"}}
    runs = [of_processes(1, 0, 0.6, **new), of_processes(1, 1, 0.6, **old), of_processes(1, 2, 0.6, "patchify", **old)]
    table = summary_of(runs)
    assert table["seeds"] == [2, 1]
    assert table["dataset"] == [
        "toy_market (cpu, cuda, torch 2.12, torch 2.13, version 1)",
        "toy_market (cpu, torch 2.12, version 1)",
    ]
    alike = [of_processes(1, seed, 0.6, **old) for seed in range(2)]
    assert summary_of(alike)["dataset"] == ["toy_market (version 1)"]
