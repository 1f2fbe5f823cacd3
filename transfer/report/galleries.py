"""Samples one by one as sections of the page: ranked galleries, detections, and where two variants differ most.

Imports no torch.
"""

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path

from transfer.comparison.compare_arms import ComparedScore, Comparison
from transfer.comparison.paired_intervals import read_outcomes
from transfer.core.errors import UserError, shortened
from transfer.core.pictures import RANKED, RankedLists, evenly_spaced, picture_name
from transfer.records import per_sample
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.page.html import Exhibit, Section
from transfer.report.summary.sentences import row_name, versus
from transfer.report.tables.table import SIGNIFICANT, Column, Row, Table
from transfer.task import PICTURES

RUNS, QUERIES, IMAGES = 12, 6, 12
"""Largest numbers of runs shown, of queries of a run, and of pictures of a detection run."""
EACH_WAY = 10
"""Samples in favour of each variant that a table names."""
NOTES = {
    "reid": "Queries evenly spaced over their list, with the first gallery images: ✓ shows the same identity, ✗ "
    "another. Images of the query's identity under its own camera are excluded, as in the metric; images at equal "
    "distance keep the gallery's order.",
    "detect": "Validation images with the boxes that were found.",
}
MEDIA = {".jpg": "image/jpeg", ".png": "image/png"}


def galleries(run: StoredRun, *, pictures: bool) -> list[Exhibit]:
    """Return ranked lists of a ReID run, of evenly spaced queries.

    Args:
        pictures: whether to show pictures, and to choose among the queries that have one, where there are any.

    Raises:
        UserError: the run's folder has no ranked lists, or damaged ones.
    """
    lists = RankedLists.load(run.folder / RANKED)
    rows = list(range(len(lists.query)))
    drawn = [row for row in rows if (run.folder / PICTURES / picture_name(row)).is_file()] if pictures else []
    shown = drawn or rows
    return [_gallery(run, lists, shown[place], bool(drawn)) for place in evenly_spaced(len(shown), QUERIES)]


def _gallery(run: StoredRun, lists: RankedLists, row: int, drawn: bool) -> Exhibit:
    """Return a query and the first images of its ranked list."""

    def named(kind: str, place: int) -> str:
        names, identities, cameras = (getattr(lists, kind + part) for part in ("", "_identity", "_camera"))
        camera = f", camera {cameras[place]}" if cameras[place] >= 0 else ""
        return f"{names[place]} (identity {identities[place]}{camera})"

    ranks = enumerate(zip(lists.places[row], lists.right[row], lists.distances[row]), 1)
    ranked = [
        (f"{rank}: {named('gallery', place)}, distance {distance:.3g}", bool(right))
        for rank, (place, right, distance) in ranks
        if place >= 0
    ]
    address = _data_url(run.folder / PICTURES / picture_name(row)) if drawn else ""
    return Exhibit(about=named("query", row), run_id=run.record.run_id, ranked=ranked, address=address)


def run_pictures(run: StoredRun) -> list[Exhibit]:
    """Return the pictures in the folder of a detection run."""
    files = sorted(path for path in (run.folder / PICTURES).glob("*") if path.suffix in MEDIA)
    return [Exhibit(about=path.stem, run_id=run.record.run_id, address=_data_url(path)) for path in files[:IMAGES]]


def _data_url(path: Path) -> str:
    return f"data:{MEDIA[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def picture_sections(runs: Sequence[StoredRun], *, pictures: bool) -> Iterator[Section]:
    """Yield sections with galleries of ReID runs and pictures of detection runs, one seed of each configuration."""
    for task, needed, title, count in (("reid", RANKED, "Ranked galleries", 12), ("detect", PICTURES, "Detections", 8)):
        chosen: dict[str, StoredRun] = {}
        for run in sorted(runs, key=lambda run: (not (run.folder / needed).exists(), run.record.seed)):
            if run.record.task == task and run.record.scores:
                chosen.setdefault(run.record.config_digest, run)
        complete = [run for run in chosen.values() if (run.folder / needed).exists()]
        shown, damaged = list[Exhibit](), list[str]()
        for run in complete[:RUNS] if pictures or task == "reid" else ():
            try:
                shown += galleries(run, pictures=pictures) if task == "reid" else run_pictures(run)
            except UserError:
                damaged.append(run.record.run_id)
        lines = [NOTES[task]]
        lines += [f"{len(complete)} of {len(chosen)} configurations have {needed}; at most {RUNS} are shown."]
        lines += [f"The file {needed} cannot be read: {shortened(damaged)}."] if damaged else []
        if not any(exhibit.address for exhibit in shown):
            lines.append(f"For pictures, rerun a run's command with --save-pictures {count}, and this with --pictures.")
        if chosen:
            yield Section(title=title, note="\n".join(lines), exhibits=shown)


def differing_samples(row: ComparedScore) -> list[Row]:
    """Return the samples with the largest differences of a score as rows, the best for the first variant first.

    Columns: `sample`; `a`, `b`: its value in each variant, a mean over the runs that it counts in, in percent or in the
    score's own unit; `difference`. Samples without a difference are left out, and so are those that count in the runs
    of one variant alone. There is no row where samples do not add up to the score, or outcomes cannot be read.
    """
    try:
        a, b = (_means(runs, row.score) for runs in row.matched.variants)
    except (UserError, per_sample.UnusableOutcomes):
        return []
    differences = {name: row.scale * (a[name] - b[name]) for name in a.keys() & b.keys()}
    ordered = sorted((name for name in differences if differences[name]), key=lambda name: (-differences[name], name))
    return [
        {"sample": name, "a": row.scale * a[name], "b": row.scale * b[name], "difference": differences[name]}
        for name in (ordered if len(ordered) <= 2 * EACH_WAY else [*ordered[:EACH_WAY], *ordered[-EACH_WAY:]])
    ]


def _means(runs: Sequence[StoredRun], score: str) -> dict[str, float]:
    """Return the mean over runs of each sample's value, by the sample's name; empty if samples have none."""
    values: dict[str, list[float]] = {}
    for run in runs:
        if not run.record.scored:
            continue
        outcomes = read_outcomes(run)
        run_values = per_sample.sample_values(run.record, score, outcomes)
        if run_values is None:
            return {}
        for name, value in zip(outcomes["sample"].tolist(), run_values.tolist(), strict=True):
            if value == value:  # a query that does not count has nan
                values.setdefault(str(name), []).append(float(value))
    return {name: sum(of_sample) / len(of_sample) for name, of_sample in values.items()}


def sample_sections(comparison: Comparison, runs: StoredRuns) -> Iterator[Section]:
    """Yield the samples with the largest differences in the primary scores of two variants.

    Args:
        comparison: of two variants.
        runs: among which they were compared.
    """
    rows, columns = list[Row](), list[Column]()
    for row in comparison.rows:
        if row.primary and (samples := differing_samples(row)):
            rows += [{"score": row_name(row), **cells} for cells in samples]
            digits = None if row.percent else SIGNIFICANT
            columns = [Column(name, digits=1, significant_digits=digits) for name in ("a", "b", "difference")]
    if rows:
        title = f"Samples with the largest differences: {versus(comparison, runs)}"
        yield Section(title=title, table=Table.from_rows(rows, columns))
