from typing import Any

import pytest

from tests.transfer.records.recorded import made, trained
from transfer.records.fields import differing as differing_among
from transfer.records.protocol import (
    NOT_RECORDED,
    backbone_of,
    by_export,
    configurations,
    displayed_fields,
    lineage,
    pretraining,
    protocol,
)
from transfer.records.record import Record


def differing(records: list[Record], without: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    return differing_among(displayed_fields(record, without) for record in records)


@pytest.mark.parametrize(
    ("given", "field"),
    [
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
    ],
)
def test_every_field_of_the_protocol_counts(given: dict[str, Any], field: str | None) -> None:
    assert protocol(made(**given)) != protocol(made())
    assert field is None or list(differing([made(), made(**given)])) == [field]


def test_backbone_weights_and_seed_do_not_count() -> None:
    for given in ({"seed": 3}, {"weights_id": "timm:x"}, {"stem": "conv"}, {"backbone": {"name": "other"}}):
        assert protocol(made(**given)) == protocol(made())


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


def test_what_is_varied_on_purpose_can_be_left_out() -> None:
    assert protocol(made(lr=0.1), ["lr"]) == protocol(made(), ["lr"])
    # without a warm-up its start has no effect, with one it has
    none, some = made(warmup_epochs=0.0), made()
    assert protocol(none, ["warmup_epochs"]) == protocol(some, ["warmup_epochs"])


def test_backbones_are_compared_by_what_they_are() -> None:
    whole = "3Conv+3BN+3ReLU+1Proj@2,1,1,8"
    assert backbone_of(made(stem="conv")) == backbone_of(made(stem=whole))
    backbones = [{"stem": f"/{folder}/my.py:Stem", "files": {"stem": sha * 64}} for folder, sha in ("a0", "b0", "a1")]
    own, moved, edited = (made(backbone=backbone) for backbone in backbones)
    assert backbone_of(own) == backbone_of(moved)
    assert backbone_of(own) != backbone_of(edited)


def test_lineage_leads_back_through_the_weights() -> None:
    first = trained("sha256:a")
    second = trained("sha256:b", weights_id="sha256:a", epochs=5)
    last = made(weights_id="sha256:b")
    exports = by_export([last, second, first])
    assert pretraining(last, exports) is second
    assert lineage(last, exports) == [second, first]
    assert lineage(first, exports) == []
    assert pretraining(made(weights_id="sha256:lost"), exports) is None


@pytest.mark.parametrize(
    ("given", "without", "count"),
    [
        ({"seed": 1}, [], 1),
        ({"lr": 0.1, "seed": 1}, [], 2),
        ({"weights_id": "timm:x"}, [], 2),
        ({"stem": "conv"}, [], 2),
        ({"stem": "conv"}, ["stem"], 1),
        ({"lr": 0.1}, ["lr"], 2),
        ({"lr": 0.1}, ["pretraining.lr"], 1),
    ],
)
def test_seeds_of_pretraining_are_seeds_and_what_else_differs_in_it_is_another_configuration(
    given: dict[str, Any], without: list[str], count: int
) -> None:
    parents = [trained("sha256:a"), trained("sha256:b", **given)]
    names = ("tiny_a", "tiny_b")  # those of the exported folders
    children = [made(weights_id=run.export, backbone={"name": name}) for run, name in zip(parents, names)]
    assert len({*configurations(children, by_export(parents), without)}) == count
    assert len({*configurations(children, {})}) == 2


def test_a_configuration_differs_in_seeds_alone() -> None:
    records = [made(), made(seed=1), made(lr=0.1), made(stem="conv"), made(dataset={"skipped": 2})]
    keys = configurations(records, {})
    assert keys[0] == keys[1]
    assert len({*keys}) == 4
