"""Conditions and later fields, as annotations of options."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from backbones.attention import ATTENTIONS
from backbones.spec import POINTWISE
from transfer.core.options import Added, Needs, Other, idle_options, noted
from transfer.core.settings import parse


@dataclass(kw_only=True)
class Sample:
    kind: str = "a"
    scale: Annotated[float, Needs(kind=("a", "b"))] = 1.0
    """A meaning."""
    late: Annotated[float, Needs(scale=True)] = 2.0
    other: Annotated[int | None, Needs(kind=Other("a"))] = None
    new: Annotated[bool, Added(False)] = False


@pytest.mark.parametrize(
    ("values", "idle"),
    [
        ({"kind": "a", "scale": 1.0}, {"other"}),
        ({"kind": "b", "scale": 0}, {"late"}),
        ({"kind": "c", "scale": 1.0}, {"scale", "late"}),  # what needs an option that does not act does not act either
        ({"kind": "c"}, {"scale"}),  # of what is missing nothing is concluded
        ({}, set()),
    ],
)
def test_an_option_acts_where_its_condition_holds(values: dict[str, object], idle: set[str]) -> None:
    assert set(idle_options(noted(Sample, Needs), values)) == idle


def test_a_field_keeps_its_notes_where_a_derived_class_declares_it_anew() -> None:
    @dataclass(kw_only=True)
    class Derived(Sample):
        new: bool = True

    assert noted(Derived, Added) == {"new": Added(False)}


def test_the_parser_reads_annotated_fields_as_their_types() -> None:
    words = ["--scale", "0.5", "--other", "3", "--new"]
    assert parse(Sample, words, prog="x") == Sample(scale=0.5, other=3, new=True)
    assert noted(Sample, Added) == {"new": Added(False)}


def test_the_length_scales_the_pointwise_attentions() -> None:
    assert {*POINTWISE} == {name for name in ATTENTIONS if name != "softmax" and not name.endswith("_sum")}
