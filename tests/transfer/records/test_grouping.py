from collections.abc import Sequence
from typing import Any

from tests.transfer.records.recorded import made, trained
from transfer.records.grouping import Group, grouped
from transfer.records.protocol import by_export
from transfer.records.record import Record


def of(records: Sequence[Record], known: Sequence[Record] | None = None) -> list[Group]:
    return grouped(records, by_export(records if known is None else known))


def protocols(groups: Sequence[Group]) -> list[dict[str, Any]]:
    return [dict(group.protocol.fields) if group.protocol else {} for group in groups]


def test_seeds_stand_in_one_row_and_configurations_apart() -> None:
    groups = of([made(), made(lr=0.1), made(seed=1), made(seed=2)])
    assert [len(group.records) for group in groups] == [3, 1]
    assert protocols(groups) == [{"lr": 0.05}, {"lr": 0.1}]
    assert protocols(of([made(), made(smoke=True), made(stem="conv")])) == [{}] * 3, "columns say that"
    data = [made(dataset={"digest": letter * 64}) for letter in "ab"]
    names = [{"dataset_digest": "aaaaaaaa"}, {"dataset_digest": "bbbbbbbb"}, {}]
    assert protocols(of([*data, made(dataset={"name": "renamed"})])) == names


def test_backbones_of_one_name_are_told_apart_by_their_parts() -> None:
    groups = of([made(), made(stem="conv"), made(backbone={"name": "other"})])
    assert [group.backbone for group in groups] == ["tiny, patchify", "tiny, conv", "other"]
    (alone,) = of([made(stem="conv", options={"lr": 0.05, "stem": "conv", "pos_embed_interp": "antialias"})])
    assert alone.backbone == "tiny, conv", "which the command set"


def test_a_users_file_that_was_edited_and_not_one_that_was_moved_is_told_from_what_it_was() -> None:
    files = [{"stem": f"/{folder}/mine.py:Stem", "files": {"stem": digit * 64}} for folder, digit in ("aa", "ba", "ab")]
    groups = of([*(made(backbone=mine) for mine in files), made(stem="conv")])
    names = ["tiny, Stem aaaaaaaa", "tiny, Stem bbbbbbbb", "tiny, conv"]
    assert [group.backbone for group in groups] == names


def test_marks_stand_beside_the_data_set() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "toy_market (version 1)"),
        ({"smoke": True, "subset": 8}, "(smoke, subset 8, version 1)"),
        ({"dataset": {"skipped": 3}}, "3 unreadable)"),
        ({"environment": {"precision": "bf16", "dirty": True}}, "(dirty, "),
        ({"details": {"resumed": ["step 2 was reached on one GPU, the rest on another"]}}, "(resumed otherwise, "),
        ({"origin": {"smoke": True, "dirty": True, "subset": 8}}, "(pretraining smoke, pretraining dirty, pretra"),
    ]
    for given, mark in cases:
        assert mark in of([made(**given)])[0].dataset
    (group,) = of([made(weights_id="sha256:a")], [trained("sha256:a", smoke=True, subset=8)])
    assert "(pretraining smoke, pretraining subset 8, " in group.dataset


def test_trainings_on_a_cpu_by_other_numbers_of_threads_are_marked() -> None:
    cpu = [{"device_type": "cpu", "threads": threads} for threads in (1, 2)]
    groups = of([made(environment=cpu[0], lr=0.05), made(environment=cpu[1], lr=0.1)])
    assert [group.machines for group in groups] == ["1 thread", "2 threads"]
    assert {group.dataset for group in groups} == {"toy_market (version 1)"}, "which is no other data set"
    alike = of([made(environment=cpu[0]), made(environment=cpu[0], lr=0.1), made(environment=cpu[0] | {"threads": 1})])
    assert {group.machines for group in alike} == {""}


def test_pretraining_is_named_with_what_differs() -> None:
    counts = {"train": {"images": 9, "classes": 2}, "val": {"images": 4}, "classes": 2}
    data = {"name": "toy_digits", "digest": "a" * 64, "counts": counts}
    parents = [trained("sha256:a"), trained("sha256:b", lr=0.1, dataset=data), trained("sha256:c", seed=5)]
    records = [made(weights_id=weights) for weights in ("sha256:a", "sha256:b", "sha256:c", "sha256:" + "d" * 64)]
    groups = of(records, parents)
    label = "dino toy_digits (dataset_digest"
    names = [f"{label} eeeeeeee, lr 0.05)", f"{label} aaaaaaaa of 9 + 4 images, lr 0.1)"]
    assert [group.pretraining for group in groups] == [*names, "sha256:dddddddd"]
    assert len(groups[0].records) == 2


def test_of_several_trainings_each_is_named_with_what_differs_and_one_that_exports_its_own_weights_ends() -> None:
    first = [trained("sha256:a"), trained("sha256:b", lr=0.1)]
    second = [made("finetune", weights_id=run.export, export=f"{run.export}2") for run in first]
    groups = of([made(weights_id=run.export) for run in second], [*first, *second])
    label = "finetune toy_market after dino toy_digits (pretraining.lr"
    assert [group.pretraining for group in groups] == [f"{label} 0.05)", f"{label} 0.1)"]
    same = [made("finetune", lr=lr, weights_id="sha256:c", export="sha256:c") for lr in (0.05, 0.1)]
    assert [group.pretraining for group in of(same, same)] == ["sha256:c", "finetune toy_market"]


def test_several_weights_of_one_training_elsewhere_are_named_by_it_and_not_by_one_of_them() -> None:
    seeds = [made(weights_id=f"sha256:{seed}", origin={"training": "p" * 64, "seed": seed}) for seed in (0, 1)]
    assert [group.pretraining for group in of([*seeds, made()])] == ["training pppppppp", "none (random weights)"]
    assert [group.pretraining for group in of([seeds[1], made()])] == ["sha256:1", "none (random weights)"]


def test_the_name_of_exported_folders_gives_way_to_the_backbones_own() -> None:
    parents = [trained("sha256:a"), trained("sha256:b", seed=1)]
    records = [made(weights_id=f"sha256:{name}", backbone={"name": f"tiny_{name}"}) for name in "ab"]
    (group,) = of(records, parents)
    assert group.backbone == "tiny"
