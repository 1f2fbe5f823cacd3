import pytest

from tests.transfer.records.recorded import made, trained
from transfer.records.fields import as_value, check_fields, known_fields, value_label, value_of
from transfer.records.protocol import by_export


def test_fields_are_found_where_they_are() -> None:
    parent = trained("sha256:a", lr=0.5, seed=4)
    mine, exports = made(weights_id="sha256:a", seed=2), by_export([parent])
    names = ("lr", "size", "seed", "task", "dataset", "backbone", "attention", "pretraining.lr", "pretraining.seed")
    assert [value_of(mine, name, exports) for name in names] == [
        0.05, "64 32", 2, "reid", "toy_market", "tiny", "softmax", 0.5, 4,
    ]  # fmt: skip
    assert value_of(mine, "pretraining.lr", {}) is None
    assert value_of(mine, "nothing", exports) is None


def test_a_part_is_what_the_backbone_has_not_what_was_said() -> None:
    mine = made(stem="conv")
    assert mine.options["stem"] is None
    assert value_of(mine, "stem", {}) == "conv"
    own = made(backbone={"stem": "/home/me/my.py:Stem", "files": {"stem": "0" * 64}})
    assert value_of(own, "stem", {}) == f"sha256:{'0' * 64}:Stem"


def test_every_known_field_is_one_that_check_takes() -> None:
    records = [made(weights_id="sha256:a")]
    exports = by_export([trained("sha256:a")])
    known = known_fields(records, exports)
    check_fields(known, records, exports)
    assert {"lr", "stem", "pretraining.lr", "seed"} <= {*known}
    assert not {"out", "threads", "name", "files"} & {*known}
    assert value_of(records[0], "weights", exports) == "sha256:a"


@pytest.mark.parametrize(
    ("stem", "patch", "name"),
    [
        ("3Conv+3BN+3ReLU+1Proj", 16, "conv"),
        ("3Conv+3BN+3ReLU+1Proj@2,1,1,4", 8, "conv"),
        ("of another version", 16, "of another version"),
        ("mine.py:Stem", 16, "mine.py:Stem"),
    ],
)
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
