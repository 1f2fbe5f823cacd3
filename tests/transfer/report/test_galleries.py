"""Samples one by one: ranked galleries, detections, and where two variants differ most."""

from pathlib import Path

from PIL import Image

from tests.transfer.report.page.pages import make_run, ranked_run
from tests.transfer.report.tables.test_comparison import compared, made
from transfer.comparison.compare_arms import ComparedScore
from transfer.core.pictures import RANKED
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.galleries import EACH_WAY, differing_samples, galleries, picture_sections, run_pictures
from transfer.report.page.html import page


def test_places_are_marked_against_the_labels(tmp_path: Path) -> None:
    found = galleries(ranked_run(tmp_path / "run"), pictures=False)
    # identities of the gallery are 0 1 2 3 0 1, the queries' 1 2 3
    marks = [[right for _, right in gallery.ranked] for gallery in found]
    assert marks == [[True, False, True, False], [False, True, False], [False, False, True]]
    assert found[0].about == "query/a.png (identity 1, camera 1)"
    assert found[0].ranked[2][0] == "3: gallery/5.png (identity 1, camera 2), distance 0.5"
    assert all(not gallery.address for gallery in found)


def test_drawn_queries_are_shown_where_pictures_are_asked_for(tmp_path: Path) -> None:
    run = ranked_run(tmp_path / "run", draw=2)
    found = galleries(run, pictures=True)
    assert [gallery.about[:11] for gallery in found] == ["query/a.png", "query/c.png"]
    assert all(gallery.address.startswith("data:image/jpeg;base64,/9j/") for gallery in found)
    assert len(galleries(run, pictures=False)) == 3
    for pictures, count in ((True, 2), (False, 0)):
        (section,) = picture_sections([run], pictures=pictures)
        assert page("t", [section], StoredRuns.of([run])).count('src="data:image/jpeg;base64,') == count
        assert ("--save-pictures 12" in section.note) == (not pictures)


def test_damaged_lists_are_named_and_keep_no_others_out(tmp_path: Path) -> None:
    good, bad = ranked_run(tmp_path / "good"), ranked_run(tmp_path / "bad")
    bad = StoredRun(bad.folder, make_run(0, options={"lr": 9}).record)
    (bad.folder / RANKED).write_bytes(b"")
    (section,) = picture_sections([good, bad], pictures=False)
    assert {gallery.run_id for gallery in section.exhibits} == {good.record.run_id}
    assert f"The file ranked.npz cannot be read: {bad.record.run_id}." in section.note


def test_detection_pictures_are_taken_from_the_runs_folder(tmp_path: Path) -> None:
    run = make_run(0, tmp_path, task="detect")
    assert "--save-pictures 8" in next(picture_sections([run], pictures=True)).note
    (tmp_path / "pictures").mkdir()
    for name in ("b", "a"):
        Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / f"{name}.png")
    (tmp_path / "pictures" / "notes.txt").write_text("no picture")
    assert [picture.about for picture in run_pictures(run)] == ["a", "b"]
    for pictures, count in ((True, 2), (False, 0)):
        text = page("t", [*picture_sections([run], pictures=pictures)], StoredRuns.of([run]))
        assert text.count('src="data:image/png;base64,') == count


def primary(runs: list[StoredRun]) -> ComparedScore:
    (row,) = [row for row in compared(runs, "stem=conv", "stem=patchify").rows if row.primary]
    return row


def test_samples_are_sorted_by_who_finds_them_as_far_as_outcomes_can_be_read(tmp_path: Path) -> None:
    """Each variant is right on all images but those named; one image is wrong in one of two seeds."""
    runs = [made(tmp_path, "conv", seed=0, wrong=[1]), made(tmp_path, "conv", seed=1, wrong=[1, 4])]
    runs += [made(tmp_path, "patchify", seed=seed, wrong=[2, 3]) for seed in range(2)]
    assert [[*row.values()] for row in differing_samples(primary(runs))] == [
        ["2.jpg", 100, 0, 100], ["3.jpg", 100, 0, 100], ["4.jpg", 50, 100, -50], ["1.jpg", 0, 100, -100],
    ]  # fmt: skip
    (runs[0].folder / "outcomes.npz").write_bytes(b"no archive")
    assert differing_samples(primary(runs)) == []


def test_of_many_the_extremes_of_both_sides_are_shown(tmp_path: Path) -> None:
    runs = [made(tmp_path, "conv", wrong=list(range(50))), made(tmp_path, "patchify", wrong=list(range(50, 120)))]
    differences = [row["difference"] for row in differing_samples(primary(runs))]
    assert differences == [100.0] * EACH_WAY + [-100.0] * EACH_WAY
