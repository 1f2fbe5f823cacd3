"""What a paper got wrong or left out stands where its numbers stand."""

import pytest

from backbones.settings import CONFIGS
from transfer.published.rows import paper_names, read_paper
from transfer.published.schema import PublishedTable

EVERY = [
    one for name in paper_names() for kind in ("tables", "figures") for one in getattr(read_paper(name), kind).values()
]


@pytest.mark.parametrize("table", EVERY, ids=lambda one: f"{one.paper}-{one.name}")
def test_the_header_of_a_sweep_has_the_notes(table: PublishedTable) -> None:
    said = _header(table.sweep)
    for note in (*read_paper(table.paper).notes, *table.notes):
        assert " ".join(note.split()) in said


def _header(sweep: str) -> str:
    """The comments at the top of a sweep's file, as one line."""
    lines = (CONFIGS / "sweeps" / f"{sweep}.yaml").read_text().partition("about:")[0].splitlines()
    return " ".join(" ".join(line.removeprefix("#") for line in lines).split())
