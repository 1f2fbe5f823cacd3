"""Pairs of commands that must come to the same, nearly the same, or something else."""

from collections.abc import Iterator

import pytest
import torch

from tests.interactions.approximations import APPROXIMATIONS, BFLOAT16, BY_TWO, FLOAT32, created, error_of
from tests.interactions.bench import Bench
from tests.interactions.changes import CHANGES, EXEMPT, IDLE, Change
from tests.interactions.commands import command_of
from tests.interactions.covering import Row
from tests.interactions.differences import Differences, options_without_change
from tests.interactions.equalities import EQUALITIES
from tests.interactions.invariants import broken
from tests.interactions.options import FACTORS, USUAL
from tests.interactions.places import Places

EVERY = 30
"""Of the changes every thirtieth is tried here; `python -m tests.interactions` tries all."""
ROWS: dict[str, dict[str, str]] = {
    "scored again": {"work": "deit", "stem": "conv", "ffn": "conv1d_bn", "attention": "sigmoid"},
    "beside other features": {"work": "fewshot"},
    "again": {"work": "reid", "stem": "conv", "precision": "bf16"},
    "executed": {"work": "deit", "stem": "conv", "attention": "relu", "optimiser": "sam", "part": "drop_path"},
    "spelt": {"work": "finetune", "attention": "gelu", "optimiser": "sgd"},
    "repeated": {"work": "dino", "stem": "conv", "data": "fraction", "weights": "partial"},
    "resumed": {"work": "deit", "attention": "relu", "optimiser": "asam", "accumulate": "2", "precision": "fp16"},
    "reordered": {"work": "linear", "family": "volo", "data": "subset"},
    "in company": {"work": "reid", "family": "resnet", "part": "layer_decay", "data": "packed"},
    "whole": {"work": "fewshot", "family": "convnext"},
    "packed": {"work": "finetune", "family": "user", "optimiser": "sam"},
    "accumulated": {"work": "dino", "attention": "relu", "optimiser": "sam"},
    "in other batches": {"work": "knn", "stem": "conv", "family": "volo"},
    "by two ranks": {"work": "reid", "stem": "conv_ibn", "attention": "sigmoid"},
    "by shared tokens": {"work": "deit", "attention": "relu"},
}
RELATIONS = {one.name: one for one in (*EQUALITIES, *APPROXIMATIONS)}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    root = tmp_path_factory.mktemp("relations")
    with Bench(root / "runs", Places(root / "places")) as made:
        yield made


@pytest.mark.parametrize("name", [name for name in RELATIONS if name not in BY_TWO])
def test_commands_that_must_come_to_the_same(name: str, bench: Bench) -> None:
    relation, row = RELATIONS[name], USUAL | ROWS[name]
    assert relation.applies(row)
    ran = bench.run(command_of(row, bench.places))
    assert broken(ran) == []
    assert relation.check(bench, ran, row) == []


def test_every_relation_has_a_row() -> None:
    assert ROWS.keys() == RELATIONS.keys()


@pytest.fixture(scope="module")
def differences(bench: Bench) -> Differences:
    return Differences(bench)


@pytest.mark.parametrize("change", CHANGES[::EVERY], ids=str)
def test_an_option_that_must_matter_does(change: Change, differences: Differences) -> None:
    assert differences.tried(change) == []


@pytest.mark.parametrize("change", IDLE[::10], ids=str)
def test_an_option_that_must_not_matter_here_does_not(change: Change, differences: Differences) -> None:
    assert differences.idled(change) == []


def test_every_option_has_a_value_that_must_matter() -> None:
    assert options_without_change() == set()
    assert not {*EXEMPT} & {change.option for change in CHANGES}


PARTS: list[Row] = [
    *(USUAL | {"attention": name} for name in FACTORS["attention"]),
    *(USUAL | {"stem": name} for name in FACTORS["stem"]),
    *(USUAL | {"ffn": name} for name in FACTORS["ffn"]),
    *(USUAL | {"family": name} for name in FACTORS["family"]),
]


@pytest.mark.parametrize("row", PARTS, ids=lambda row: "-".join(v for n, v in row.items() if v != USUAL[n]) or "usual")
def test_features_in_fewer_digits_are_near_those_of_float64(row: Row, bench: Bench) -> None:
    backbone = created(row, bench.places)
    images = torch.rand(6, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    assert 0 < error_of(backbone, images, "fp32") < FLOAT32
    assert FLOAT32 < error_of(backbone, images, "bf16") < BFLOAT16
