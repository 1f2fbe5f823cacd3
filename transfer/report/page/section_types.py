"""Sections of a report: a table, a figure, exhibits or text, under a title."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transfer.report.figures.svg import Plot
from transfer.report.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A picture of a run, a query with the first images of its ranked list, or both."""

    about: str
    """Caption."""
    run_id: str
    ranked: Sequence[tuple[str, bool]] = ()
    """What each image is, and whether it shows the identity of the query."""
    address: str = ""
    """The picture as a data URL; empty without one."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Section of a report; fields that are None or empty are left out."""

    title: str
    table: Table | None = None
    """Table whose column in `RUN_COLUMNS`, if any, is shown last."""
    note: str = ""
    """Plain text, a paragraph per line; of a part that leads, the first line after an empty one is a headline."""
    reading: str = ""
    """How to read the section, in one or two sentences; shown on the page alone."""
    lead: bool = False
    """Whether it is part of the answer, with which the page begins."""
    folded: bool = False
    """Whether the page shows its title alone until it is opened."""
    plot: Plot | None = None
    exhibits: Sequence[Exhibit] = ()

    @property
    def paragraphs(self) -> list[str]:
        """The lines of the note that are not empty."""
        return [line for line in self.note.splitlines() if line.strip()]

    @property
    def slug(self) -> str:
        """The title in small letters, digits and hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "data"

    @property
    def file_name(self) -> str:
        """Name of files with its content, without suffix: whole words of the slug, at most 45 characters."""
        return self.slug if len(self.slug) <= 45 else self.slug[:46].rpartition("-")[0] or self.slug[:45]
