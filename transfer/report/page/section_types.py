"""One part of the page: a table, a plot, pictures or text, under a title."""

from collections.abc import Sequence
from dataclasses import dataclass

from transfer.report.tables.table import Table


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of the page; what is None or empty is left out."""

    title: str
    table: Table | None = None
    """A column of `RUN_COLUMNS` names the runs behind a row; it is shown first."""
    note: str = ""
    """Plain text, a paragraph per line."""
    figure: str | None = None
    """SVG of `transfer.report.figures.training_curves`, or of a source that is trusted as much: it goes in as it is."""
    data: str | None = None
    """CSV of what the figure shows."""
    galleries: "Sequence[Gallery]" = ()
    pictures: "Sequence[Picture]" = ()


@dataclass(frozen=True)
class Picture:
    """An image that the page holds."""

    about: str
    media_type: str
    content: bytes
    run_id: str


@dataclass(frozen=True)
class RankedImage:
    """One place of a ranked list."""

    about: str
    right: bool


@dataclass(frozen=True)
class Gallery:
    """A query, and whether the images at the first places of its list show the same identity."""

    run_id: str
    about: str
    places: tuple[RankedImage, ...]
    picture: Picture | None = None
