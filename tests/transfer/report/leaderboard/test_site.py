"""A leaderboard of twelve bundles: what is shown, refused, merged and ranked, and what a browser shows of it."""

import csv
import hashlib
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones.settings import read_yaml
from tests.transfer.report.leaderboard.groups import reid_run, twelve_bundles
from tests.transfer.report.page.browser import Browser, find_browser
from transfer.records.store import Run
from transfer.report.__main__ import main
from transfer.report.leaderboard import site as leaderboard_site
from transfer.share.bundle import bundle


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Run]]]:
    folder = tmp_path_factory.mktemp("leaderboard") / "bundles"
    return folder, dict(twelve_bundles(folder))


@pytest.fixture(scope="module")
def site(sent: tuple[Path, dict[str, list[Run]]]) -> Path:
    folder = sent[0].parent / "site"
    assert main(["--leaderboard", str(sent[0]), "--output", str(folder)]) == 0
    return folder


def rows(site: Path, rate: str) -> list[dict[str, str]]:
    with (site / f"reid-on-toy-market-lr-{rate}.csv").open() as file:
        return list(csv.DictReader(file))


def row_of(site: Path, arm: str) -> dict[str, str]:
    return next(row for row in rows(site, "0-05") if row["arm"] == arm)


def words(path: Path) -> str:
    """The text of a page."""
    body = path.read_text().partition("<main")[2].partition("</main>")[0]
    return re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]*>", " ", body)))


def test_protocols_are_never_in_one_table(site: Path) -> None:
    assert len(list(site.glob("*.csv"))) == 2
    (other,) = rows(site, "0-1")
    assert other["source"] == "other-rate.zip"
    assert "other-rate.zip" not in {row["source"] for row in rows(site, "0-05")}


def test_each_mean_is_that_of_the_records(site: Path, sent: tuple[Path, dict[str, list[Run]]]) -> None:
    by_stem: dict[str, list[float]] = {}
    for name, runs in sent[1].items():
        for run in runs if name != "other-rate.zip" else ():
            if run.record.scores:
                by_stem.setdefault(run.record.backbone["stem"], []).append(100 * run.record.scores["mAP"])
    shown = {row["stem"]: row for row in rows(site, "0-05")}
    for stem, scores in by_stem.items():
        assert float(shown[stem]["mAP"]) == pytest.approx(np.mean(scores), abs=1e-9)
        assert int(float(shown[stem]["seeds"])) == len(scores)
        low, high = map(float, re.findall(r"[\d.]+", shown[stem]["interval"]))
        assert low < np.mean(scores) < high or np.mean(scores) > 99


def test_ranks_stand_where_intervals_support_them_alone(site: Path) -> None:
    found = rows(site, "0-05")
    assert [row["arm"] for row in found] == sorted(
        (row["arm"] for row in found), key=lambda arm: -float(row_of(site, arm)["mAP"] or -1)
    )
    ranks = {row["arm"]: row["rank"] for row in found}
    assert ranks.pop("tiny_conv") == "1.0"
    assert ranks.pop("tiny_sconv") == "2.0"
    assert ranks.pop("tiny_patchify") == "7.0"
    assert set(ranks.values()) == {""}
    for arm in ("tiny_gelu", "tiny_norm", "tiny_pool", "tiny_deep"):  # of one model, but for the noise
        assert row_of(site, arm)["ties"] == "not told apart from 3 of 7 others"
    assert row_of(site, "tiny_thin")["ties"] == "no score"
    assert "tiny_conv is first: told apart from all 7 others." in words(site / "index.html")


def test_ties_with_the_first_are_said(tmp_path: Path) -> None:
    for stem in ("conv", "sconv"):
        bundle(
            [reid_run(tmp_path / stem, stem=stem, signal=1.0, seed=seed) for seed in (0, 1)], tmp_path / f"{stem}.zip"
        )
    out = tmp_path / "site"
    assert (
        main(["--leaderboard", *(str(tmp_path / f"{name}.zip") for name in ("conv", "sconv")), "--output", str(out)])
        == 0
    )
    (table,) = out.glob("*.csv")
    with table.open() as file:
        first, second = csv.DictReader(file)
    assert "rank" not in first
    assert second["ties"] == "not told apart from the first"
    assert "No row is first: " in words(out / "index.html")


def test_seeds_of_several_groups_are_one_row_with_all_sources(site: Path) -> None:
    row = row_of(site, "tiny_patchify")
    assert row["source"] == "last.zip, more-seeds.zip"
    assert float(row["seeds"]) == 7


def test_a_duplicate_is_counted_once(site: Path) -> None:
    row = row_of(site, "tiny_conv")
    assert row["source"] == "best.zip, twin.zip"
    assert len(set(row["run"].split())) == 5 == float(row["seeds"])


def test_a_forged_bundle_is_refused_with_both_numbers(site: Path, sent: tuple[Path, dict[str, list[Run]]]) -> None:
    text = words(site / "index.html")
    for run in sent[1]["last.zip"]:
        assert f"mAP: 0.999 in the record, {run.record.scores['mAP']} from outcomes.npz" in text
    assert "5 runs or bundles refused" in text
    assert all("forged.zip" not in row["source"] and float(row["mAP"] or 0) < 99.8 for row in rows(site, "0-05"))


def test_how_far_runs_were_verified_is_said(site: Path) -> None:
    assert {row["verified"] for row in rows(site, "0-05")} == {"recomputed"}
    assert "39 recomputed" in words(site / "index.html")


def test_a_row_has_a_page_with_its_record_and_a_command_that_its_maker_did_not_write(site: Path) -> None:
    (path,) = (site / "rows").glob("tiny_sconv-*.html")
    text = words(path)
    runs = row_of(site, "tiny_sconv")["run"].split()
    for run in runs:
        assert f"python -m transfer.run reid --config {run}.yaml" in text
        options = read_yaml(site / "rows" / f"{run}.yaml")
        assert options["lr"] == 0.05
        assert "data" not in options
        assert f'href="{run}.yaml"' in path.read_text()
    assert "rm -rf" not in path.read_text()
    assert all("rm -rf" not in file.read_text() for file in (site / "rows").iterdir())
    records = json.loads(path.read_text().partition('id="records">')[2].partition("</script>")[0])
    assert sorted(records["runs"]) == sorted(runs)
    assert f"tiny_sconv: mAP {float(row_of(site, 'tiny_sconv')['mAP']):.2f}" in text
    assert "Rank 2 of 8." in text


def test_no_path_of_this_machine_stands_on_the_site(site: Path) -> None:
    for path in site.rglob("*"):
        if path.is_file():
            assert str(site.parent) not in path.read_text()
            assert "/home/me" not in path.read_text()


def test_a_bundle_is_added_by_copying_it_and_one_that_is_gone_leaves_nothing(
    sent: tuple[Path, dict[str, list[Run]]], tmp_path: Path
) -> None:
    folder, out = tmp_path / "bundles", tmp_path / "site"
    folder.mkdir()
    (folder / "a.zip").write_bytes((sent[0] / "best.zip").read_bytes())
    command = ["--leaderboard", str(folder), "--output", str(out)]
    assert main(command) == 0
    before = {path.name: path.read_bytes() for path in (out / "rows").iterdir()}
    (folder / "b.zip").write_bytes((sent[0] / "second.zip").read_bytes())
    assert main(command) == 0
    assert {path.name for path in (out / "rows").iterdir()} > before.keys()
    (folder / "b.zip").unlink()
    assert main(command) == 0
    assert {path.name: path.read_bytes() for path in (out / "rows").iterdir()} == before


def test_the_same_bundles_make_the_same_site(
    site: Path, sent: tuple[Path, dict[str, list[Run]]], tmp_path: Path
) -> None:
    assert (
        main(["--leaderboard", *map(str, sorted(sent[0].iterdir(), reverse=True)), "--output", str(tmp_path / "a")])
        == 0
    )
    made = {path.relative_to(site): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    again = tmp_path / "a"
    assert {path.relative_to(again): path.read_bytes() for path in again.rglob("*") if path.is_file()} == made


def test_a_repetition_with_another_score_is_noted_and_not_shown(tmp_path: Path) -> None:
    ours = reid_run(tmp_path / "ours", stem="conv", signal=1.5)
    bundle([ours], tmp_path / "ours.zip")
    theirs = reid_run(
        tmp_path / "theirs", stem="conv", signal=1.4, environment={"precision": "bf16", "started": "2026-02-01"}
    )
    bundle([theirs], tmp_path / "theirs.zip")
    assert theirs.record.run_key == ours.record.run_key
    out = tmp_path / "site"
    assert main(["--leaderboard", str(tmp_path / "theirs.zip"), str(tmp_path / "ours.zip"), "--output", str(out)]) == 0
    (page,) = (out / "rows").glob("*.html")
    assert f"repeated in theirs.zip with mAP {100 * theirs.record.scores['mAP']:.2f}" in words(page)
    assert f"mAP {100 * ours.record.scores['mAP']:.2f}" in words(page)


def test_folders_of_runs_and_damaged_bundles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reid_run(tmp_path / "lab" / "runs", stem="conv", signal=1.5)
    (tmp_path / "torn.zip").write_bytes(b"PK\3\4 and no more")
    out = tmp_path / "site"
    assert main(["--leaderboard", str(tmp_path / "lab"), str(tmp_path / "torn.zip"), "--output", str(out)]) == 0
    assert "refused: torn.zip : torn.zip: not a readable bundle" in capsys.readouterr().err
    text = words(out / "index.html")
    assert "1 run or bundle refused" in text
    assert "the whole bundle" in text
    assert "lab" in text
    assert str(tmp_path) not in text


def test_smoke_and_dirty_runs_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = {"precision": "bf16", "started": "2026-01-01", "dirty": True}
    reid_run(tmp_path / "lab", stem="conv", signal=1.5, environment=changed)
    reid_run(tmp_path / "lab", stem="sconv", signal=1.5)
    command = ["--leaderboard", str(tmp_path / "lab"), "--output", str(tmp_path / "site")]
    assert main(command) == 0
    assert "1 run of --dirty left out; --dirty shows them" in capsys.readouterr().err
    assert "Left out: 1 of dirty." in words(tmp_path / "site" / "index.html")
    assert main([*command, "--dirty"]) == 0
    assert "2 runs" in capsys.readouterr().out


def test_a_site_that_was_cut_short_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reid_run(tmp_path / "lab", stem="conv", signal=1.5)
    command = ["--leaderboard", str(tmp_path / "lab"), "--output", str(tmp_path / "site")]

    def interrupted(path: Path) -> None:
        if len([*(tmp_path / "site").iterdir()]) > 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(leaderboard_site, "remove_left", interrupted)
        assert main(command) == 130
    assert len([*(tmp_path / "site").iterdir()]) == 2
    assert main(command) == 0
    assert len([*(tmp_path / "site").iterdir()]) > 2


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--leaderboard", "none.zip", "--output", "site"], "there is no such bundle or folder"),
        (["--leaderboard", "empty", "--output", "site"], "holds neither runs nor bundles"),
        (["--leaderboard", "empty"], "name the folder of the site with --output"),
        (["mine", "--leaderboard", "empty", "--output", "site"], "name it after --leaderboard"),
        (["--leaderboard", "lab", "--output", "empty", "--compare", "a", "b"], "none of --bundle"),
        (["--leaderboard", "lab", "--output", "lab"], "holds something else than a leaderboard"),
    ],
)
def test_wrong_commands(
    argv: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    reid_run(tmp_path / "lab", stem="conv", signal=1.5)
    assert main(argv) in (1, 2)
    assert told in capsys.readouterr().err


def test_hostile_names_are_text(tmp_path: Path) -> None:
    name = "<script>document.title='in'</script>\u202e=1+1"
    run = reid_run(tmp_path / "lab", stem="conv", signal=1.5)
    digest = hashlib.sha256(name.encode()).hexdigest()
    reid_run(tmp_path / "lab", stem=name, signal=1.5, run_id=f"reid-{digest[:8]}")
    assert run.folder.exists()
    assert main(["--leaderboard", str(tmp_path / "lab"), "--output", str(tmp_path / "site")]) == 0
    for path in (tmp_path / "site").rglob("*.html"):
        assert "<script>document.title" not in path.read_text()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no chromium on PATH (apt-get install chromium)")
    driven = Browser(program, tmp_path_factory.mktemp("profile"))
    yield driven
    driven.close()


TABLE = "document.querySelector('[data-name=reid-on-toy-market-lr-0-05] table')"
ARMS = f"[...{TABLE}.querySelectorAll('tbody tr')].map(row => row.querySelector('a').textContent)"


def test_what_is_searched_and_sorted_stands_in_the_address(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html")
    everything = browser.js(ARMS)
    assert len(everything) == 8
    browser.js(f"{TABLE}.closest('.scroll').previousElementSibling.querySelector('input').focus()")
    browser.type("not told apart ")
    place = browser.js(f"[...{TABLE}.querySelectorAll('th')].findIndex(head => head.textContent === 'mAP')")
    browser.click(f"[data-name=reid-on-toy-market-lr-0-05] th:nth-child({place + 1}) button")
    shown = browser.js(ARMS)
    assert set(shown) == {"tiny_gelu", "tiny_norm", "tiny_pool", "tiny_deep"}
    browser.js("document.querySelector('tbody a[href^=\"#run=\"]').click()")
    browser.until("document.querySelector('dialog').open")
    browser.key("Escape")
    browser.until("location.hash.includes('find=') && location.hash.includes('sort=')")
    address: Any = browser.js("location.hash")
    assert "sort=mAP+ascending" in address
    browser.reload()
    assert browser.js("location.hash") == address
    assert browser.js(ARMS) == shown
    assert browser.js("document.querySelector('th[aria-sort=ascending]').textContent") == "mAP"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_pages_fit_the_screen_and_links_lead_to_rows_and_back(
    browser: Browser, site: Path, width: int, dark: bool
) -> None:
    browser.open(site / "index.html")
    browser.screenshot(width, 900, dark)
    assert browser.js("document.documentElement.scrollWidth") <= width
    target = browser.js("document.querySelector('tbody a[href^=rows]').href")
    browser.open(Path(target.removeprefix("file://")))
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js("document.querySelector('h1').textContent") == "tiny_conv on the leaderboard"
    missing = '[...document.querySelectorAll(\'a[href$=".html"], a[href$=".yaml"]\')].map(link => link.href)'
    for link in browser.js(missing):
        assert Path(link.removeprefix("file://")).is_file(), link
    assert not browser.seen("Runtime.exceptionThrown")
