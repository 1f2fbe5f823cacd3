"""The guide is true of the tree: links and paths exist, rooms are listed, figures have a place."""

import pkgutil
import re
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import BENCHMARKS
from tests.documents import DOCUMENTS, PAGES, ROOT, blocks, prose, read
from tests.tables import written
from transfer import api
from transfer.data.layouts import FORMATS

CODE = ("transfer", "tasks", "backbones", "configs", "tests", "docs")

PUBLIC = {
    *("transfer", "transfer.api", "transfer.testing", "backbones", "backbones.vit", "backbones.attention"),
    *("tasks.ranking", "tasks.probes"),
}
"""Modules that people import."""


def anchor(heading: str) -> str:
    """Return the anchor that GitHub and MkDocs give a heading of plain words."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page."""
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(name)):
        if link.startswith("https://"):
            continue
        target, _, heading = link.partition("#")
        page = (ROOT / name).parent / target if target else ROOT / name
        if not page.exists() or (heading and heading not in anchors(page)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "CHANGELOG.md"])  # it tells of old paths
def test_paths_of_the_tree_exist(name: str) -> None:
    paths = re.findall(rf"`((?:{'|'.join(CODE)})/[\w./*]*)`", prose(name))
    assert not [path for path in paths if not any(ROOT.glob(path.rstrip("/")))]


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "CHANGELOG.md"])
def test_names_in_the_text_exist(name: str) -> None:
    names = re.findall(r"`((?:transfer|tasks|backbones)(?:\.\w+)+)`", prose(name))
    for path in (*names, *re.findall(r"^::: ([\w.]+)$", read(name), re.MULTILINE)):
        pkgutil.resolve_name(path)


def test_every_page_is_in_the_menu() -> None:
    menu = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = [name for name in DOCUMENTS if name.startswith("docs/") and "_runs/" not in name]  # records are left out
    assert sorted(menu) == sorted(name.removeprefix("docs/") for name in pages)


@pytest.mark.parametrize(
    "name", [name for name in DOCUMENTS if name.startswith("docs/") and name != "docs/changelog.md"]
)
def test_a_page_begins_with_a_paragraph(name: str) -> None:
    title, _, rest = read(name).partition("\n")
    first = rest.strip().partition("\n\n")[0]
    assert title.startswith("# ")
    assert re.match(r'[A-Z`"]', first), first  # a paragraph before commands, tables and headings


GUIDE = [name for name in PAGES if name.startswith(("docs/guide/", "docs/concepts/"))]
TEXTS = [name for name in PAGES if not name.startswith("docs/studies/")]


@pytest.mark.parametrize("name", GUIDE)
def test_a_page_has_an_example_before_its_second_section(name: str) -> None:
    assert "\n```" in "\n## ".join(read(name).split("\n## ")[:2])


@pytest.mark.parametrize("name", ["README.md", *TEXTS])
def test_lines_of_text_have_at_most_120_characters(name: str) -> None:
    lines = [line for line in prose(name).splitlines() if not line.startswith(("|", "<!--", "!["))]
    assert [line for line in lines if len(line) > 120] == []


def test_examples_import_public_names_alone() -> None:
    text = "\n".join(block for name in DOCUMENTS for block in blocks(name, "python"))
    modules = re.findall(r"^ *(?:from|import) ((?:transfer|backbones|tasks)\b[\w.]*)", text, re.MULTILINE)
    assert {*modules} <= PUBLIC
    names = {*re.findall(r"\bapi\.(\w+)", text)}
    assert not [name for name in names if not hasattr(api, name)]
    assert not [name for name in api.__all__ if not hasattr(api, name)]


@pytest.mark.parametrize("name", [name for name in PAGES if "<!-- end -->" in read(name)])
def test_tables_are_those_of_the_code(name: str) -> None:
    assert read(name) == written(read(name)), "run `python -m tests.tables`"


def test_every_key_of_a_dataset_has_a_meaning() -> None:
    keys = {key for layout in FORMATS.values() for key in layout.keys} - {"generator"}  # of the bundled sets
    text = read("docs/guide/dataset-yaml.md")
    assert not [key for key in keys if f"`{key}`" not in text]
    assert not [format for format in FORMATS if f"`{format}`" not in text and format != "coco"]


def test_every_benchmark_that_the_guide_cites_is_there() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert {*re.findall(r"-m tests\.benchmarks (\w+)", text)} <= BENCHMARKS.keys()


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1200
