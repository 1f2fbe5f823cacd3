"""Ranked galleries and detection pictures of runs, as sections of the page. Imports no torch."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.comparison.compare_arms import ComparedScore, Comparison
from transfer.core.errors import UserError, shortened
from transfer.core.pictures import RANKED, RankedLists, evenly, picture_name
from transfer.records.per_sample import OUTCOMES, UnusableOutcomes, arrays_in
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.page.section_types import Gallery, Picture, RankedImage, Section
from transfer.report.summary.differing_samples import differing_samples
from transfer.report.summary.naming import compared_names
from transfer.task import PICTURES

RUNS, QUERIES, IMAGES = 12, 6, 12
"""Largest numbers of runs shown, of queries of a run, and of pictures of a detection run."""
BOXES = "Validation images with the boxes that were found."
MEDIA = {".jpg": "image/jpeg", ".png": "image/png"}


def galleries(run: Run, *, pictures: bool) -> list[Gallery]:
    """Return ranked lists of a ReID run, evenly spaced over its queries.

    Args:
        pictures: whether to choose among the queries that have a picture, where there are any.

    Raises:
        UserError: the run's folder has no ranked lists, or damaged ones.
    """
    lists = RankedLists.load(run.folder / RANKED)
    rows = [row for row in range(len(lists.query)) if (run.folder / PICTURES / picture_name(row)).is_file()]
    shown = rows if pictures and rows else range(len(lists.query))
    precisions = _precisions(run, lists)
    return [
        _gallery(run, lists, row, precisions[row], pictures)
        for row in (shown[place] for place in evenly(len(shown), QUERIES))
    ]


def gallery_of(run: Run, query: str, *, pictures: bool) -> Gallery | None:
    """Return the ranked list of one query of a ReID run; None if it has none of that name.

    Raises:
        UserError: see `galleries`.
    """
    lists = RankedLists.load(run.folder / RANKED)
    rows = np.flatnonzero(lists.query == query)
    if not len(rows):
        return None
    row = int(rows[0])
    return _gallery(run, lists, row, _precisions(run, lists)[row], pictures)


def _gallery(run: Run, lists: RankedLists, row: int, precision: float | None, pictures: bool) -> Gallery:
    images = tuple(
        RankedImage(
            f"{number}: {_image_name(lists.gallery, lists.gallery_identity, lists.gallery_camera, place)}"
            + f", distance {lists.distances[row, number - 1]:.3g}",
            bool(right),
        )
        for number, (place, right) in enumerate(zip(lists.places[row], lists.right[row]), start=1)
        if place >= 0
    )
    about = _image_name(lists.query, lists.query_identity, lists.query_camera, row)
    about += "" if precision is None else f" · AP {100 * precision:.1f} %"
    name = f"the query {lists.query[row]} and its first {len(images)} gallery images"
    path = run.folder / PICTURES / picture_name(row)
    picture = _read(run, path, name) if pictures and path.is_file() else None
    return Gallery(run.record.run_id, about, images, picture)


def _image_name(names: NDArray[Any], identities: NDArray[Any], cameras: NDArray[Any], place: int) -> str:
    camera = f", camera {cameras[place]}" if cameras[place] >= 0 else ""
    return f"{names[place]} (identity {identities[place]}{camera})"


def _precisions(run: Run, lists: RankedLists) -> list[float | None]:
    """Return the average precision of each query; None without a match, or if the outcomes cannot be used."""
    try:
        outcomes = arrays_in(run.folder / OUTCOMES)
    except UnusableOutcomes:
        outcomes = {}
    if not np.array_equal(outcomes.get("sample", np.zeros(0)), lists.query):
        return [None] * len(lists.query)
    return [None if np.isnan(value) else float(value) for value in outcomes["ap"]]


def drawn(run: Run) -> list[Picture]:
    """Return the pictures in the folder of a detection run."""
    files = sorted(path for path in (run.folder / PICTURES).glob("*") if path.suffix in MEDIA)
    return [_read(run, path, path.stem) for path in files[:IMAGES]]


def _read(run: Run, path: Path, about: str) -> Picture:
    return Picture(about, MEDIA[path.suffix], path.read_bytes(), run.record.run_id)


def picture_sections(runs: Sequence[Run], *, pictures: bool) -> list[Section]:
    """Return sections with galleries of ReID runs and pictures of detection runs, one seed of each configuration."""
    return [
        *_gallery_section(runs, pictures),
        *_detections_section(runs, pictures),
    ]


def _gallery_section(runs: Sequence[Run], pictures: bool) -> list[Section]:
    reid = _one_of_each(runs, "reid", RANKED)
    kept = [run for run in reid if (run.folder / RANKED).is_file()]
    shown: list[Gallery] = []
    damaged = []
    for run in kept[:RUNS]:
        try:
            shown += galleries(run, pictures=pictures)
        except UserError:
            damaged.append(run.record.run_id)
    if not reid:
        return []
    lines = [
        "Queries evenly spaced over their list, with the first gallery images: ✓ shows the same identity, ✗ another. "
        "Images of the query's identity under its own camera are excluded, as in the metric; images at equal distance "
        "keep the gallery's order.",
        _left_out(kept),
    ]
    if len(kept) < len(reid):
        lines.append(f"Configurations without a run that has a file {RANKED}: {len(reid) - len(kept)}.")
    if damaged:
        lines.append(f"The file {RANKED} cannot be read: {shortened(damaged)}.")
    if not any(gallery.picture for gallery in shown):
        lines.append(_how_to_draw("reid", "12"))
    return [Section(title="Ranked galleries", note="\n".join(lines), galleries=shown)]


def _detections_section(runs: Sequence[Run], pictures: bool) -> list[Section]:
    """Return a section with the pictures of detection runs."""
    of_task = _one_of_each(runs, "detect", PICTURES)
    if not of_task:
        return []
    shown = [picture for run in of_task[:RUNS] for picture in drawn(run)] if pictures else []
    lines = [BOXES, _left_out(of_task), *([] if shown else [_how_to_draw("detect", "8")])]
    return [Section(title="Detections", note="\n".join(lines), pictures=shown)]


def _one_of_each(runs: Sequence[Run], task: str, needed: str) -> list[Run]:
    """Return one scored run of each configuration of a task: preferably with `needed` in its folder, then by seed."""
    chosen: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: (not (run.folder / needed).exists(), run.record.seed)):
        if run.record.task == task and run.record.scores:
            chosen.setdefault(run.record.config_digest, run)
    return list(chosen.values())


def _left_out(runs: Sequence[Run]) -> str:
    return f"Further configurations, not shown: {len(runs) - RUNS}." if len(runs) > RUNS else ""


def _how_to_draw(task: str, count: str) -> str:
    return (
        f"For pictures, give a finished run's command again with --save-pictures {count} "
        f"(python -m transfer.run {task} --config RUN/options.yaml --out RUNS --save-pictures {count}), "
        "and the report --pictures."
    )


EACH_WAY = 3
"""Queries that are shown in favour of each variant."""


def side_by_side(comparison: Comparison, runs: RunSet, *, pictures: bool) -> Iterator[Section]:
    """Yield, for each primary score, the samples of both variants beside each other, where the runs have kept them.

    Queries are those on which the variants differ most; images of detection are those that both variants have drawn.

    Args:
        comparison: of two variants.
        runs: among which they were compared.
        pictures: whether pictures are embedded; ranked lists are shown as marks without.
    """
    a, b = compared_names(comparison, runs)
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
