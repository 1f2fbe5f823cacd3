"""Samples one by one as sections of the page: ranked galleries, detections, and where two variants differ most.

Imports no torch.
"""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transfer.comparison.compare_arms import ComparedScore, Comparison
from transfer.comparison.paired_intervals import read_outcomes
from transfer.core.errors import UserError, shortened
from transfer.core.pictures import RANKED, RankedLists, evenly, picture_name
from transfer.records import per_sample
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.page.section_types import Exhibit, Section
from transfer.report.summary.sentences import row_name
from transfer.report.summary.variants import compared_names, versus
from transfer.report.tables.table import SIGNIFICANT, Column, Row, Table
from transfer.task import PICTURES

RUNS, QUERIES, IMAGES = 12, 6, 12
"""Largest numbers of runs shown, of queries of a run, and of pictures of a detection run."""
EACH_WAY, PAIRS_EACH_WAY = 10, 3
"""Samples in favour of each variant that a table names, and queries of which both variants' lists are shown."""
NOTES = {
    "reid": "Queries evenly spaced over their list, with the first gallery images: ✓ shows the same identity, ✗ "
    "another. Images of the query's identity under its own camera are excluded, as in the metric; images at equal "
    "distance keep the gallery's order.",
    "detect": "Validation images with the boxes that were found.",
}
MEDIA = {".jpg": "image/jpeg", ".png": "image/png"}


def galleries(run: Run, *, pictures: bool, queries: Sequence[str] = ()) -> list[Exhibit]:
    """Return ranked lists of a ReID run: of the named queries, or evenly spaced ones.

    Args:
        pictures: whether to show pictures, and to choose among the queries that have one, where there are any.

    Raises:
        UserError: the run's folder has no ranked lists, or damaged ones.
    """
    lists = RankedLists.load(run.folder / RANKED)
    rows = list(range(len(lists.query)))
    drawn = [row for row in rows if (run.folder / PICTURES / picture_name(row)).is_file()] if pictures else []
    places = {name: row for row, name in enumerate(lists.query.tolist())}
    spaced = [(drawn or rows)[place] for place in evenly(len(drawn or rows), QUERIES)]
    precisions = _precisions(run, lists)
    chosen = [places[name] for name in queries if name in places] if queries else spaced
    return [_gallery(run, lists, row, precisions[row], row in drawn) for row in chosen]


def _gallery(run: Run, lists: RankedLists, row: int, precision: float, drawn: bool) -> Exhibit:
    """Return a query with its average precision, nan without a match, and the first images of its ranked list."""

    def named(kind: str, place: int) -> str:
        names, identities, cameras = (getattr(lists, kind + part) for part in ("", "_identity", "_camera"))
        camera = f", camera {cameras[place]}" if cameras[place] >= 0 else ""
        return f"{names[place]} (identity {identities[place]}{camera})"

    found = [
        (f"{rank}: {named('gallery', place)}, distance {distance:.3g}", bool(right))
        for rank, (place, right, distance) in enumerate(
            zip(lists.places[row], lists.right[row], lists.distances[row]), 1
        )
        if place >= 0
    ]
    about = named("query", row) + ("" if np.isnan(precision) else f" · AP {100 * precision:.1f} %")
    shows = f"the query {lists.query[row]} and its first gallery images"
    address = _data_url(run.folder / PICTURES / picture_name(row)) if drawn else ""
    return Exhibit(about=about, run_id=run.record.run_id, ranked=found, address=address, shows=shows)


def _precisions(run: Run, lists: RankedLists) -> NDArray[Any]:
    """Return the average precision of each query; nan without a match, or if the outcomes cannot be used."""
    try:
        outcomes = per_sample.arrays_in(run.folder / per_sample.OUTCOMES)
    except per_sample.UnusableOutcomes:
        outcomes = {}
    is_known = np.array_equal(outcomes.get("sample", np.zeros(0)), lists.query)
    return outcomes["ap"] if is_known else np.full(len(lists.query), np.nan)


def drawn(run: Run) -> list[Exhibit]:
    """Return the pictures in the folder of a detection run."""
    files = sorted(path for path in (run.folder / PICTURES).glob("*") if path.suffix in MEDIA)
    return [Exhibit(about=path.stem, run_id=run.record.run_id, address=_data_url(path)) for path in files[:IMAGES]]


def _data_url(path: Path) -> str:
    return f"data:{MEDIA[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def picture_sections(runs: Sequence[Run], *, pictures: bool) -> Iterator[Section]:
    """Yield sections with galleries of ReID runs and pictures of detection runs, one seed of each configuration."""
    for task, needed, title, count in (("reid", RANKED, "Ranked galleries", 12), ("detect", PICTURES, "Detections", 8)):
        chosen: dict[str, Run] = {}
        for run in sorted(runs, key=lambda run: (not (run.folder / needed).exists(), run.record.seed)):
            if run.record.task == task and run.record.scores:
                chosen.setdefault(run.record.config_digest, run)
        kept = [run for run in chosen.values() if (run.folder / needed).exists()]
        shown: list[Exhibit] = []
        damaged = []
        for run in kept[:RUNS] if pictures or task == "reid" else ():
            try:
                shown += galleries(run, pictures=pictures) if task == "reid" else drawn(run)
            except UserError:
                damaged.append(run.record.run_id)
        lines = [NOTES[task]]
        lines += [f"{len(kept)} of {len(chosen)} configurations have {needed}; at most {RUNS} are shown."]
        lines += [f"The file {needed} cannot be read: {shortened(damaged)}."] * bool(damaged)
        if not any(one.address for one in shown):
            lines.append(
                f"For pictures, give a finished run's command again with --save-pictures {count} (python -m "
                f"transfer.run {task} --config RUN/options.yaml --out RUNS --save-pictures {count}), and the report "
                "--pictures."
            )
        if chosen:
            yield Section(title=title, note="\n".join(lines), exhibits=shown)


def differing_samples(row: ComparedScore) -> Table:
    """Return the samples with the largest differences of a score, the best for the first variant first.

    Columns: `sample`; `a`, `b`: its value in each variant, a mean over the runs that it counts in, in percent or in the
    score's own unit; `difference`. Samples without a difference are left out, and so are those that count in the runs
    of one variant alone. The table is empty where samples do not add up to the score, or outcomes cannot be read.
    """
    digits = None if row.percent else SIGNIFICANT
    columns = [Column(name, digits=1, significant_digits=digits) for name in ("a", "b", "difference")]
    try:
        a, b = (_means(runs, row.score) for runs in row.matched.variants)
    except (UserError, per_sample.UnusableOutcomes):
        return Table(columns, [])
    differences = {name: row.scale * (a[name] - b[name]) for name in a.keys() & b.keys()}
    ordered = sorted((name for name in differences if differences[name]), key=lambda name: (-differences[name], name))
    rows: list[Row] = [
        {"sample": name, "a": row.scale * a[name], "b": row.scale * b[name], "difference": differences[name]}
        for name in _ends(ordered, EACH_WAY)
    ]
    return Table.from_rows(rows, columns)


def _ends(names: Sequence[str], count: int) -> Sequence[str]:
    return names if len(names) <= 2 * count else [*names[:count], *names[-count:]]


def _means(runs: Sequence[Run], score: str) -> dict[str, float]:
    """Return the mean over runs of each sample's value, by the sample's name; empty if samples have none."""
    values: dict[str, list[float]] = {}
    for run in runs:
        if not run.record.scored:
            continue
        outcomes = read_outcomes(run)
        of_run = per_sample.values_of(run.record, score, outcomes)
        if of_run is None:
            return {}
        for name, value in zip(outcomes["sample"].tolist(), np.asarray(of_run).tolist(), strict=True):
            if value == value:  # a query that does not count has nan
                values.setdefault(str(name), []).append(float(value))
    return {name: sum(of_sample) / len(of_sample) for name, of_sample in values.items()}


def sample_sections(comparison: Comparison, runs: RunSet, *, pictures: bool) -> Iterator[Section]:
    """Yield the samples with the largest differences in the primary scores, and what both variants make of some.

    Those are ranked lists of the queries that differ most, and images of detection that both variants have drawn.

    Args:
        comparison: of two variants.
        runs: among which they were compared.
        pictures: whether pictures are embedded; ranked lists are shown as marks without.
    """
    names, heading = compared_names(comparison, runs), versus(comparison, runs)
    rows = [row for row in comparison.rows if row.primary and row.effect is None]
    tables = [(row, differing_samples(row)) for row in rows]
    cells: list[Row] = [{"score": row_name(row), **cell} for row, table in tables for cell in table.rows]
    if cells:
        columns = [column for _, table in tables for column in table.columns]
        yield Section(title=f"Samples with the largest differences: {heading}", table=Table.from_rows(cells, columns))
    for row, table in tables:
        title = f"side by side: {row.matched.label}, {' vs. '.join(names)}"
        queries = _ends(table["sample"], PAIRS_EACH_WAY) if len(table) else ()
        if pairs := _pairs(row, names, RANKED, queries, pictures=pictures) if queries else []:
            note = f"The queries on which {' and '.join(names)} differ most: ✓ shows the same identity, ✗ another."
            yield Section(title=f"Ranked lists {title}", note=note, exhibits=pairs, in_pairs=True)
        if pairs := _pairs(row, names, PICTURES) if pictures and row.matched.first.task == "detect" else []:
            note = "Objects are grey, boxes that were found have the color of their class."
            yield Section(title=f"Detections {title}", note=note, exhibits=pairs, in_pairs=True)


def _pairs(
    row: ComparedScore, names: Sequence[str], file: str, queries: Sequence[str] = (), *, pictures: bool = True
) -> list[Exhibit]:
    """Return the exhibits of both variants that show the same, from the first scored run of each that has a file."""
    found = []
    for runs in row.matched.variants:
        run = next((run for run in runs if run.record.scores and (run.folder / file).exists()), None)
        try:
            shown = [] if run is None else galleries(run, pictures=pictures, queries=queries) if queries else drawn(run)
        except UserError:  # damaged lists are named where a run's own are shown
            return []
        found.append({one.shows or one.about: one for one in shown})
    both = [what for what in found[0] if what in found[1]][: None if queries else IMAGES]
    pairs = [(name, of_variant[what]) for what in both for name, of_variant in zip(names, found, strict=True)]
    return [replace(one, about=f"{name}: {one.about}") for name, one in pairs]
