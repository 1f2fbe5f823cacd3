from collections.abc import Sequence

import pytest

from tests.transfer.records.recorded import made, trained
from transfer.records.comparability import Comparability
from transfer.records.grouping import Grouping, grouped
from transfer.records.labels import content_label, letter
from transfer.records.protocol import by_export
from transfer.records.protocol import processes as per_process_count
from transfer.records.record import Record


def of(records: Sequence[Record], known: Sequence[Record] | None = None) -> Grouping:
    return grouped(records, by_export(records if known is None else known))


def letters(grouping: Grouping) -> list[str]:
    """What the letters stand for."""
    return [
        f"{group.letter}: {content_label(dict(group.fields), dict(group.fields))}"
        for group in grouping.comparability.groups
    ]


def test_seeds_stand_in_one_row_and_configurations_apart() -> None:
    grouping = of([made(), made(lr=0.1), made(seed=1), made(seed=2)])
    groups = grouping.groups
    assert [len(group.records) for group in groups] == [3, 1]
    assert [group.protocol and group.protocol.letter for group in groups] == ["a", "b"]
    assert letters(grouping) == ["a: lr 0.05", "b: lr 0.1"]


def test_one_protocol_needs_no_letter_and_one_origin_no_word() -> None:
    grouping = of([made(), made(seed=1)])
    (group,) = grouping.groups
    assert (group.protocol, group.pretraining, letters(grouping)) == (None, "", [])


def test_letters_name_only_what_no_column_says() -> None:
    records = [made(), made(dataset={"name": "toy_msmt17", "digest": "e" * 64}), made(smoke=True), made(stem="conv")]
    assert letters(of(records)) == []


def test_data_of_one_name_with_other_contents_is_another_protocol() -> None:
    one, other = made(), made(dataset={"digest": "e" * 64})
    grouping = of([one, other])
    groups = grouping.groups
    assert letters(grouping) == ["a: dataset_digest dddddddd", "b: dataset_digest eeeeeeee"]
    assert [group.protocol and group.protocol.letter for group in groups] == ["a", "b"]


def test_rows_of_other_tasks_share_no_letters() -> None:
    grouping = of([made(), made("linear", lr=1.0), made("linear", lr=2.0)])
    groups = grouping.groups
    assert [group.protocol for group in groups] == [
        None,
        Comparability("a", (("lr", 1.0),)),
        Comparability("b", (("lr", 2.0),)),
    ]
    assert len(letters(grouping)) == 2


def test_backbones_of_one_name_are_told_apart_by_their_parts() -> None:
    groups = of([made(), made(stem="conv"), made(backbone={"name": "other"})]).groups
    assert [group.backbone for group in groups] == ["tiny, stem patchify", "tiny, stem conv", "other"]


def test_a_users_file_that_was_edited_is_told_from_what_it_was() -> None:
    mine = [made(stem="/a/mine.py:Stem", backbone={"files": {"stem": digit * 64}}) for digit in "ab"]
    groups = of([*mine, made(stem="conv")]).groups
    names = ["tiny, stem mine.py:Stem aaaaaaaa", "tiny, stem mine.py:Stem bbbbbbbb", "tiny, stem conv"]
    assert [group.backbone for group in groups] == names


@pytest.mark.parametrize(
    ("given", "mark"),
    [
        ({"smoke": True}, "smoke"),
        ({"subset": 8}, "subset 8"),
        ({"dataset": {"skipped": 3}}, "3 unreadable"),
        ({"environment": {"precision": "bf16", "dirty": True}}, "dirty"),
    ],
    ids=str,
)
def test_marks_stand_beside_the_data_set(given: dict[str, object], mark: str) -> None:
    (group,) = of([made(**given)]).groups
    assert mark in group.dataset
    assert mark not in of([made()]).groups[0].dataset


def test_marks_of_the_pretraining_are_inherited() -> None:
    parent = trained("sha256:a", smoke=True, environment={"precision": "bf16", "dirty": True})
    (group,) = of([made(weights_id="sha256:a")], [parent]).groups
    assert "pretraining smoke" in group.dataset
    assert "pretraining dirty" in group.dataset


def test_records_say_themselves_what_their_weights_come_from() -> None:
    origin = {"smoke": True, "dirty": True, "subset": 8}
    for records, known in (
        ([made(weights_id="sha256:a", origin=origin)], []),
        ([made(weights_id="sha256:a")], [trained("sha256:a", origin=origin)]),
    ):
        (group,) = of(records, known).groups
        assert "(pretraining smoke, pretraining dirty, pretraining subset 8, " in group.dataset
    (group,) = of([made(weights_id="sha256:a", origin={"smoke": False, "dirty": None, "subset": None})]).groups
    assert "pretraining" not in group.dataset
    (group,) = of([made(weights_id="sha256:a")], [trained("sha256:a", subset=8)]).groups
    assert "(pretraining subset 8, " in group.dataset


def test_pretraining_is_named_with_what_differs() -> None:
    parents = [trained("sha256:a"), trained("sha256:b", lr=0.1), trained("sha256:c", seed=5)]
    records = [made(weights_id=weights) for weights in ("sha256:a", "sha256:b", "sha256:c", "sha256:" + "d" * 64)]
    groups = of(records, parents).groups
    assert [group.pretraining for group in groups] == [
        "dino toy_digits, lr 0.05",
        "dino toy_digits, lr 0.1",
        "sha256:dddddddd",
    ]
    assert len(groups[0].records) == 2


def test_pretraining_in_two_stages_is_named_and_told_apart() -> None:
    first, other = trained("sha256:a"), trained("sha256:b", epochs=5)
    later = [trained(f"sha256:{name}2", weights_id=f"sha256:{name}", lr=0.1) for name in "ab"]
    groups = of([made(weights_id=run.export) for run in later], [first, other, *later]).groups
    assert len({group.pretraining for group in groups}) == 2
    assert all(group.pretraining.startswith("dino toy_digits after dino toy_digits, ") for group in groups)


def test_the_name_of_exported_folders_gives_way_to_the_backbones_own() -> None:
    parents = [trained("sha256:a"), trained("sha256:b", seed=1)]
    records = [made(weights_id=f"sha256:{name}", backbone={"name": f"tiny_{name}"}) for name in "ab"]
    (group,) = of(records, parents).groups
    assert group.backbone == "tiny"
    assert by_export(parents).keys() == {"sha256:a", "sha256:b"}


def test_options_without_effect_are_not_said() -> None:
    records = [made(warmup_epochs=0.0, idle=("sam_rho", "size")), made()]
    assert letters(of(records)) == ["a: warmup_epochs 0", "b: warmup_epochs 7"]
    grouping = of([*records, made(size=[8, 8])])
    assert letters(grouping) == ["a: warmup_epochs 0", "b: warmup_epochs 7, size 64 32", "c: warmup_epochs 7, size 8 8"]


def test_letters_go_on_after_z() -> None:
    assert [letter(number) for number in (0, 25, 26, 51, 52, 701, 702)] == ["a", "z", "aa", "az", "ba", "zz", "aaa"]


def test_the_processes_are_named_only_where_their_number_differs() -> None:
    """Of a backbone with batch norm it belongs to the protocol, and yet both were made by one process."""
    environment = {"precision": "bf16", "dirty": False, "device": "cpu", "world_size": 1}
    shared = {"options": {"lr": 0.05, "sync_bn": False}}
    plain = made(environment=environment, **shared)
    convolutional = made(environment=environment, stem="conv", **shared)
    assert (per_process_count(plain), per_process_count(convolutional)) == (None, 1)
    assert [group.dataset for group in of([plain, convolutional]).groups] == ["toy_market (version 1)"] * 2
    eight = made(environment=environment | {"world_size": 8}, **shared)
    assert "8 processes" in of([eight, convolutional]).groups[0].dataset


def test_a_training_that_went_on_elsewhere_is_marked() -> None:
    note = "step 2 was reached on one GPU, the rest on another"
    plain, resumed = made(), made(seed=1, details={"resumed": [note]})
    assert of([plain]).groups[0].dataset == "toy_market (version 1)"
    assert "resumed otherwise" in of([plain, resumed]).groups[0].dataset
