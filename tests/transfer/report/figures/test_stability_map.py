"""The map of what broke down: every cell where its axes say, with its ending or its score."""

from tests.transfer.report.figures.plots import cells, words
from tests.transfer.report.page.pages import stability_rows
from transfer.report.figures.training import ENDINGS, heat_map


def test_every_cell_of_a_map_is_where_its_axes_say() -> None:
    plot = heat_map(stability_rows())
    found = cells(plot)
    assert set(found) == {f"{panel}-{column}-{row}" for panel in (0, 1) for column in range(3) for row in range(2)}
    text = words(plot)
    assert {"stem patchify", "stem conv", "lr", "warmup epochs", "0.0001", "0.001", "0.01", "0", "5"} <= {*text}
    for ending in ("diverged", "nonfinite", "at_chance", "collapsed", "score_at_chance"):
        assert ENDINGS[ending][2] in text
    assert "score in percent (chance level 9)" in text
    # patchify: rates go right, warm-ups go up
    places = ("0-0-1", "0-1-0", "0-1-1", "0-2-0", "0-2-1")
    fills = dict(zip(places, ("diverged", "nonfinite", "score_at_chance", "at_chance", "collapsed")))
    assert {place: found[place] for place in places} == {place: ENDINGS[fills[place]][:2] for place in places}
    assert all(not hatch for place, (_, hatch) in found.items() if place not in fills)


def test_scores_have_one_scale_over_all_panels_and_mixed_cells_say_so() -> None:
    plot = heat_map(stability_rows())
    found, text = cells(plot), words(plot)
    assert found["0-0-0"] == found["1-0-0"], "equal scores, equal colors"
    assert len({found[f"1-{column}-{row}"] for column in range(3) for row in range(2)}) == 6
    assert text.count("1/3 failed") == 1
    assert text.count("50.0") == 1
