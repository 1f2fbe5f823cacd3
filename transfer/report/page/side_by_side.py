"""Ranked lists and detections of the two variants of a comparison side by side. Imports no torch."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from backbones.errors import UserError
from tasks.ranking.galleries import RANKED
from tasks.task import PICTURES
from transfer.comparison.compare_arms import ComparedScore, Comparison
from transfer.records.store import Run
from transfer.report.page.galleries import IMAGES, drawn, gallery_of
from transfer.report.page.section_types import Gallery, Picture, Section
from transfer.report.summary.differing_samples import differing_samples
from transfer.report.summary.naming import compared_names

EACH_WAY = 3
"""Queries that are shown in favour of each variant."""


def side_by_side(comparison: Comparison, *, pictures: bool) -> Iterator[Section]:
    """Yield, for each primary score, the samples of both variants beside each other, where the runs have kept them.

    Queries are those on which the variants differ most; images of detection are those that both variants have drawn.

    Args:
        comparison: of two variants.
        pictures: whether pictures are embedded; ranked lists are shown as marks without.
    """
    a, b = compared_names(comparison)
    for row in comparison.rows:
        if not row.primary or row.effect is not None:
            continue
        where = f"{row.matched.label}, {a} vs. {b}"
        if lists := list(_lists(row, (a, b), pictures=pictures)):
            note = f"The queries on which {a} and {b} differ most: ✓ shows the same identity, ✗ another."
            yield Section(title=f"Ranked lists side by side: {where}", note=note, galleries=lists, in_pairs=True)
        if pairs := list(_detections(row, (a, b))) if pictures else []:
            note = "Objects are grey, boxes that were found have the color of their class."
            yield Section(title=f"Detections side by side: {where}", note=note, pictures=pairs, in_pairs=True)


def _lists(row: ComparedScore, names: tuple[str, str], *, pictures: bool) -> Iterator[Gallery]:
    """Yield the lists of both variants for the queries that differ most, the best for the first variant first."""
    runs = [_with(variant, RANKED) for variant in row.matched.variants]
    if None in runs:
        return
    queries = list(map(str, differing_samples(row)["sample"])) if len(differing_samples(row)) else []
    chosen = queries if len(queries) <= 2 * EACH_WAY else [*queries[:EACH_WAY], *queries[-EACH_WAY:]]
    with suppress(UserError):  # damaged lists are named where a run's own are shown
        for query in chosen:
            pair = [gallery_of(run, query, pictures=pictures) for run in runs if run is not None]
            if None in pair:
                continue
            for name, gallery in zip(names, pair, strict=True):
                assert gallery is not None
                yield replace(gallery, about=f"{name}: {gallery.about}")


def _detections(row: ComparedScore, names: tuple[str, str]) -> Iterator[Picture]:
    """Yield the pictures of images that both variants have drawn."""
    runs = [_with(variant, PICTURES) for variant in row.matched.variants]
    if row.matched.first.task != "detect" or None in runs:
        return
    of_arms = [{picture.about: picture for picture in drawn(run)} for run in runs if run is not None]
    for about in [about for about in of_arms[0] if about in of_arms[1]][:IMAGES]:
        for name, of_arm in zip(names, of_arms, strict=True):
            yield replace(of_arm[about], about=f"{name}: {about}")


def _with(runs: list[Run], file: str) -> Run | None:
    """Return the first scored run that has kept a file."""
    return next((run for run in runs if run.record.scores and (run.folder / file).exists()), None)
