"""What two numbers must share to be compared, and the fields by which runs are told apart."""

from typing import Any

import pytest

from tests.transfer.records.recorded import made, trained
from transfer.records.fields import as_value, known_fields, value_label, value_of
from transfer.records.fields import differing as differing_among
from transfer.records.protocol import NOT_RECORDED, by_export, configurations, displayed_fields, protocol
from transfer.records.record import Record


def differing(records: list[Record], without: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    return differing_among(displayed_fields(record, without) for record in records)


OF_PROTOCOL = [
    ({"dataset": {"name": "market1501"}}, None),
    ({"dataset": {"version": 3}}, "dataset_version"),
    ({"dataset": {"digest": 3}}, "dataset_digest"),
    ({"dataset": {"skipped": 3}}, "skipped"),
    ({"task": "linear"}, None),
    ({"task_version": 2}, None),
    ({"smoke": True}, None),
    ({"subset": 8}, None),
    ({"lr": 9}, "lr"),
    ({"environment": {"precision": "fp32"}}, "precision"),
    ({"environment": {"precision": "bf16", "device_type": "cuda"}}, "device_type"),
]


@pytest.mark.parametrize(("given", "field"), OF_PROTOCOL)
def test_every_field_of_the_protocol_counts(given: dict[str, Any], field: str | None) -> None:
    assert protocol(made(**given)) != protocol(made())
    assert field is None or list(differing([made(), made(**given)])) == [field]


def test_files_that_options_name_count_by_content() -> None:
    one, same, other = (made(run_key_content={"content": {"detector": {"fpn": width}}}) for width in (64, 64, 256))
    for record, path in ((one, "/a/fpn.yaml"), (same, "/b/copy.yaml"), (other, "/a/fpn.yaml")):
        record.options["detector"] = path
    assert protocol(one) == protocol(same)
    assert list(differing([one, other])) == ["detector"]


def test_differing_names_fields_with_their_values() -> None:
    later = made()
    later.run_key_content["options"] = {**later.run_key_content["options"], "new": 1}
    found = differing([made(), made(lr=0.1), made(lr=0.2, seed=1), made(lr=0.1), later])
    assert found == {"lr": [0.05, 0.1, 0.2], "new": [NOT_RECORDED, 1]}


def test_what_another_option_takes_the_effect_from_tells_nothing() -> None:
    none, some = made(warmup_epochs=0.0, idle=("sam_rho", "size")), made()
    assert differing([none, some]) == {"warmup_epochs": [0.0, 7.0]}
    assert list(differing([none, some, made(size=[8, 8])])) == ["warmup_epochs", "size"]


OF_PRETRAINING = [
    ({"seed": 1}, [], 1),
    ({"lr": 0.1, "seed": 1}, [], 2),
    ({"weights_id": "timm:x"}, [], 2),
    ({"stem": "conv"}, [], 2),
    ({"stem": "conv"}, ["stem"], 1),
    ({"lr": 0.1}, ["lr"], 2),
    ({"lr": 0.1}, ["pretraining.lr"], 1),
]


@pytest.mark.parametrize(("given", "without", "count"), OF_PRETRAINING)
def test_what_differs_in_the_pretraining_but_its_seed(given: dict[str, Any], without: list[str], count: int) -> None:
    parents = [trained("sha256:a"), trained("sha256:b", **given)]
    names = ("tiny_a", "tiny_b")  # those of the exported folders
    children = [made(weights_id=run.export, backbone={"name": name}) for run, name in zip(parents, names)]
    assert len({*configurations(children, by_export(parents), without)}) == count
    assert len({*configurations(children, {})}) == 2


def test_fields_are_found_where_they_are() -> None:
    parent = trained("sha256:a", lr=0.5, seed=4)
    mine, exports = made(weights_id="sha256:a", seed=2), by_export([parent])
    names = ("lr", "size", "seed", "task", "dataset", "backbone", "attention", "pretraining.lr", "pretraining.seed")
    assert [value_of(mine, name, exports) for name in names] == [
        0.05, "64 32", 2, "reid", "toy_market", "tiny", "softmax", 0.5, 4,
    ]  # fmt: skip
    assert value_of(mine, "pretraining.lr", {}) is None
    assert value_of(mine, "nothing", exports) is None


def test_fields_are_known_by_name_but_for_those_of_execution() -> None:
    records = [made(weights_id="sha256:a")]
    exports = by_export([trained("sha256:a")])
    known = known_fields(records, exports)
    assert {"lr", "stem", "pretraining.lr", "seed"} <= {*known}
    assert not {"out", "threads", "name", "files"} & {*known}
    assert value_of(records[0], "weights", exports) == "sha256:a"


STEMS = [
    ("3Conv+3BN+3ReLU+1Proj", 16, "conv"),
    ("3Conv+3BN+3ReLU+1Proj@2,1,1,4", 8, "conv"),
    ("of another version", 16, "of another version"),
    ("mine.py:Stem", 16, "mine.py:Stem"),
]


@pytest.mark.parametrize(("stem", "patch", "name"), STEMS)
def test_equal_stems_have_one_name(stem: str, patch: int, name: str) -> None:
    mine = made(stem=stem, patch=patch)
    assert value_of(mine, "stem", {}) == name
    assert as_value(mine, "stem", stem, {}) == name
    parent = trained("sha256:a", stem=stem, patch=patch)
    child, exports = made(weights_id="sha256:a"), by_export([parent])
    assert value_of(child, "pretraining.stem", exports) == as_value(child, "pretraining.stem", stem, exports) == name


def test_values_are_for_a_reader() -> None:
    values = (None, False, 0.05, [1, 2.5], (), "/home/someone/parts/my_stem.py:Stem", "3Conv+1Proj@2,1,1,8")
    labels = ["none", "no", "0.05", "1 2.5", "none", "Stem", "3Conv+1Proj@2,1,1,8"]
    assert list(map(value_label, values)) == labels
