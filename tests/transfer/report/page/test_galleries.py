from pathlib import Path

import pytest
from PIL import Image

from tests.transfer.report.page.pages import make_run, ranked_run
from transfer.core.errors import UserError
from transfer.core.pictures import RANKED
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.page.galleries import drawn, galleries, picture_sections
from transfer.report.page.html import page


def test_places_are_marked_against_the_labels(tmp_path: Path) -> None:
    found = galleries(ranked_run(tmp_path / "run"), pictures=False)
    # identities of the gallery are 0 1 2 3 0 1, the queries' 1 2 3
    assert [[right for _, right in gallery.ranked] for gallery in found] == [
        [True, False, True, False],
        [False, True, False],
        [False, False, True],
    ]
    assert found[0].about == "query/a.png (identity 1, camera 1) · AP 75.0 %"
    assert found[1].about == "query/b.png (identity 2, camera 1)", "a query without a match has no AP"
    assert found[0].ranked[2][0] == "3: gallery/5.png (identity 1, camera 2), distance 0.5"
    assert all(not gallery.address for gallery in found)


def test_drawn_queries_are_shown_where_pictures_are_asked_for(tmp_path: Path) -> None:
    run = ranked_run(tmp_path / "run", draw=2)
    found = galleries(run, pictures=True)
    assert [gallery.about[:11] for gallery in found] == ["query/a.png", "query/c.png"]
    assert all(gallery.address.startswith("data:image/jpeg;base64,/9j/") for gallery in found)
    assert len(galleries(run, pictures=False)) == 3
    (section,) = picture_sections([run], pictures=True)
    text = page("t", [section], RunSet.of([run]))
    assert text.count('src="data:image/jpeg;base64,') == 2
    assert "--save-pictures" not in section.note
    (section,) = picture_sections([run], pictures=False)
    assert "data:image" not in page("t", [section], RunSet.of([run]))
    assert "--save-pictures 12" in section.note


def test_damaged_lists_are_named_and_keep_no_others_out(tmp_path: Path) -> None:
    good, bad = ranked_run(tmp_path / "good"), ranked_run(tmp_path / "bad")
    bad = Run(bad.folder, make_run(0, options={"lr": 9}).record)
    (bad.folder / RANKED).write_bytes(b"")
    with pytest.raises(UserError, match="cannot be read"):
        galleries(bad, pictures=False)
    (section,) = picture_sections([good, bad], pictures=False)
    assert {gallery.run_id for gallery in section.exhibits} == {good.record.run_id}
    assert bad.record.run_id in section.note
    assert str(tmp_path) not in section.note


def test_detection_pictures_are_taken_from_the_runs_folder(tmp_path: Path) -> None:
    run = make_run(0, tmp_path, task="detect")
    assert drawn(run) == []
    (section,) = picture_sections([run], pictures=True)
    assert "--save-pictures 8" in section.note
    (tmp_path / "pictures").mkdir()
    for name in ("b", "a"):
        Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / f"{name}.png")
    (tmp_path / "pictures" / "notes.txt").write_text("no picture")
    assert [picture.about for picture in drawn(run)] == ["a", "b"]
    (section,) = picture_sections([run], pictures=True)
    assert page("t", [section], RunSet.of([run])).count('src="data:image/png;base64,') == 2
    assert next(picture_sections([run], pictures=False)).exhibits == []
