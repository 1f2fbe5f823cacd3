"""The page begins with the summary; its sections follow a reader's questions; nothing of it overlaps or is cut."""

import re
import warnings
from html import unescape
from itertools import combinations, product
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tests.transfer.report.page.pages import in_browser, write_history
from tests.transfer.report.tables.test_comparison import both, compared, made
from transfer.records.run_set import StoredRuns
from transfer.records.store import StoredRun
from transfer.report.figures.svg import in_columns
from transfer.report.page.html import page
from transfer.report.sections import ReportRequest, sections
from transfer.report.summary.sentences import answer

COST = {"gflops": 4.0, "images_per_second": 100.0, "params": 5e6, "device_hours": 0.5}


def runs(root: Path) -> list[StoredRun]:
    """Three seeds of two stems, the conv stem also at a rate at which it breaks down."""
    return [*both(root, cost=COST), made(root, "conv", seed=0, lr=0.3, broke=True)]


def test_the_answer_is_first_and_tables_are_folded(tmp_path: Path) -> None:
    shown = StoredRuns.of(runs(tmp_path))
    parts = sections(shown, ReportRequest(everything=True))
    titles = ["Summary", "Scores by variant", "Scores by variant (2)", "conv vs. patchify"]
    assert [part.title for part in parts if not part.folded] == titles, "equal costs have no plot"
    titles = ["conv vs. patchify: all metrics", "Samples with the largest differences: conv vs. patchify"]
    assert [part.title for part in parts if part.folded][:2] == titles
    text = page("t", parts, shown)
    said = unescape(re.sub("</?b>", "", re.sub("</?code>", "`", text))).replace("\u00a0", " ")
    for line in answer(compared(shown.runs, "stem=conv", "stem=patchify"), shown):
        assert re.search(f"<(p|li)[^>]*>{re.escape(line.removeprefix('- '))}</", said)
    assert re.search(r"<li>[^<]*<code>toy_market</code>: [^ ]+ vs. [^ ]+, [^ ]+</li>", text), "numbers are not broken"
    named = sections(shown, ReportRequest(everything=True, compare=("stem=patchify", "stem=conv")))
    assert [part.title for part in named if " vs. " in part.title and not part.folded] == ["patchify vs. conv"]


STEMS = ["patchify", "conv", "LapStem", "AnOverlappingStemOfThreeConvolutionsWithNormalization"]
TASKS = {"knn": "colorectal_histology", "linear": "cifar100", "finetune": "cub200"}


def many(root: Path, seeds: int = 1, tasks: int = 3, stems: int = 4) -> StoredRuns:
    """Runs of stems, two of them custom, and three attentions on tasks; those of conv with relu failed."""
    found = []
    for task, dataset in list(TASKS.items())[:tasks]:
        for number, (stem, attention) in enumerate(product(STEMS[:stems], ("softmax", "relu", "my.py:Gated"))):
            files = {"attention": "cd" * 32} if "." in attention else {}
            files |= {"stem": "ab" * 32} if stem[0].isupper() else {}
            backbone = {"name": "vit_small", "stem": f"/a b/my.py:{stem}" if "stem" in files else stem, "files": files}
            about = {"task": task, "dataset": {"name": dataset, "digest": dataset, "counts": {}}, "cost": COST}
            about["backbone"] = backbone | {"attention": attention, "patch": 16}
            failed = (stem, attention) == ("conv", "relu")
            for seed in range(seeds):
                found.append(made(root, stem, attention, seed, 0.3 + 0.05 * number, broke=failed, **about))
                write_history(found[-1].folder, [3.0, 2.0, 1.0])
    return StoredRuns.of(found)


def test_variants_are_named_without_hash_or_path_and_each_comparison_has_a_heading(tmp_path: Path) -> None:
    parts = sections(many(tmp_path, tasks=1, seeds=2), ReportRequest(everything=True))
    shown = [part.title for part in parts if not part.folded]
    variants = ("patchify + relu", "patchify + Gated", "conv + softmax", "conv + Gated")
    assert shown[2:6] == [f"{variant} vs. patchify + softmax" for variant in variants]
    assert ": conv + relu failed (1 score of 1 task on 1 dataset).\n" in parts[0].note
    assert parts[0].note.count("Cost: 4 vs. 4 GFLOP per image") == 1
    plots = "".join(part.plot.svg for part in parts if part.plot)
    assert "patchify + softmax seed 0" in plots
    assert "vit_small" not in plots, "what all variants share is in no legend"
    text = page("t", parts, StoredRuns.of([])).partition("<main")[2].partition("</main>")[0]
    assert text.count("Each square is the paired difference") == 1
    assert not re.search("sha256|(ab){4}|(cd){4}|/a b/", re.sub("<[^>]*>", " ", text))


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts of a drawing whose boxes overlap by more than a pixel, and texts that leave it, with ""."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
            hidden |= {tick.label1 for tick in ticks if not low <= tick.get_loc() <= high}
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in texts if text not in hidden]
    page = figure.bbox.padded(1)
    found = [(name, "") for name, box in boxes if not (page.contains(*box.min) and page.contains(*box.max))]
    for (one, first), (two, second) in combinations(boxes, 2):
        part = Bbox.intersection(first, second)
        if part is not None and min(part.width, part.height) > 1:
            found.append((one, two))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("given", [{}, {"seeds": 2, "tasks": 1}, {"tasks": 1, "stems": 1}])
@pytest.mark.parametrize("columns", [0, 1])
def test_labels_do_not_overlap_and_nothing_warns(tmp_path: Path, given: dict[str, int], columns: int) -> None:
    with warnings.catch_warnings(), in_columns(columns):
        warnings.simplefilter("error")
        parts = sections(many(tmp_path, **given), ReportRequest(everything=True))
        plots = [part for part in parts if part.plot is not None]
        for part in plots:
            assert len(part.file_name) < 50
            assert overlapping(part.plot.figure) == [], part.title
    assert len(plots) >= 2


@pytest.mark.nightly
@pytest.mark.parametrize("width", [390, 1400])
def test_nothing_is_cut_and_every_label_is_readable(tmp_path: Path, width: int) -> None:
    runs = many(tmp_path)
    script = """const all = (selector) => [...document.querySelectorAll(selector)];
        all('details').forEach((part) => (part.open = true));
        await new Promise((done) => setTimeout(done, 300));
        const tables = all('.scroll').filter((room) => room.scrollWidth > room.clientWidth + 1);
        return {
            width: document.scrollingElement.scrollWidth,
            cut: all('body *').filter((one) => {
                const box = one.getBoundingClientRect();
                const isOut = box.left < -0.5 || box.right > innerWidth + 0.5;
                return box.width && isOut && !one.closest('.scroll table, .plot svg, .skip');
            }).map((one) => one.outerHTML.slice(0, 80)),
            unsaid: tables.filter((room) => !room.previousElementSibling.matches('.sideways')
                || !room.previousElementSibling.clientHeight
                || room.querySelector('td').clientWidth > room.clientWidth / 2).map((room) => room.outerHTML),
            fits: all('.means').map((one) => one.scrollWidth <= one.parentNode.clientWidth),
            sizes: all('figure.plot svg text').filter((one) => one.getBoundingClientRect().width)
                .map((one) => [one.getScreenCTM(), parseFloat(getComputedStyle(one).fontSize)])
                .map(([scale, size]) => size * Math.hypot(scale.a, scale.b)),
        };"""
    found = in_browser(tmp_path, page("t", sections(runs, ReportRequest(everything=True)), runs), script, width=width)
    assert found["width"] <= width
    assert found["cut"] == []
    assert found["unsaid"] == [], "a table wider than the page says so, and its first column leaves room for others"
    assert found["fits"] == [True], "all three scores of the pivot are seen"
    assert min(found["sizes"]) >= 9


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_no_fault(tmp_path: Path, width: int, scheme: str) -> None:
    """The rules of axe-core on a page with every part unfolded: names, roles, contrast, landmarks, keyboard."""
    package = pytest.importorskip("axe_core_python", reason="pip install axe-core-python")
    made_runs = StoredRuns.of(runs(tmp_path))
    text = page("t", sections(made_runs, ReportRequest(everything=True)), made_runs)
    axe = (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    script = """document.querySelectorAll('details').forEach((part) => (part.open = true));
        const found = await axe.run();
        const faults = found.violations.map((one) => `${one.impact} ${one.id}: ${one.nodes[0].html}`);
        return [faults, found.passes.length, document.documentElement.scrollWidth];"""
    text = text.replace("</body>", f"<script>{axe}</script></body>")
    faults, passes, wide = in_browser(tmp_path, text, script, width=width, scheme=scheme)
    assert faults == []
    assert passes > 15, "it has looked at the page"
    assert wide <= width
