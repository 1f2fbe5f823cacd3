"""What a paper got wrong or left out stands where its numbers stand."""

import re

import pytest

from backbones.settings import CONFIGS
from tests.transfer.report.published.runs import shown_table
from transfer.published.rows import PublishedTable, paper_names, read_paper

EVERY = [
    one for name in paper_names() for kind in ("tables", "figures") for one in getattr(read_paper(name), kind).values()
]

TOLD = [
    ("pointwise", "figure1", "around 9e5 steps.*give 9.3e4"),
    ("pointwise", "figure2", "gelu is run as the exact one.*--attention gelu_tanh"),
    ("pointwise", "figure4", "activation is not stated: sigmoid"),
    ("scaled_relu", "1", r"\+28 %.*three maps of 64 x 112 x 112.*from 295,296 to 1,573,248"),
    ("scaled_relu", "2", "Theorem 1.*out of the decay.*2-norm"),
    ("scaled_relu", "4", "36.0.*88.6"),
    ("anchors", "reid", "flips at the test off, re-ranking off, camera embedding off"),
    ("scaled_relu", "figure1", "Theorem 2's conditions"),
]


@pytest.mark.parametrize(("paper", "table", "said"), TOLD)
def test_notes_are_shown_with_the_numbers(paper: str, table: str, said: str) -> None:
    _, notes = shown_table([], paper, table)
    assert any(re.search(said, note) for note in notes)


@pytest.mark.parametrize("table", EVERY, ids=lambda one: f"{one.paper}-{one.name}")
def test_the_header_of_a_sweep_has_the_notes(table: PublishedTable) -> None:
    said = _header(table.sweep)
    for note in (*read_paper(table.paper).notes, *table.notes):
        assert " ".join(note.split()) in said


def _header(sweep: str) -> str:
    """The comments at the top of a sweep's file, as one line."""
    lines = (CONFIGS / "sweeps" / f"{sweep}.yaml").read_text().partition("about:")[0].splitlines()
    return " ".join(" ".join(line.removeprefix("#") for line in lines).split())
