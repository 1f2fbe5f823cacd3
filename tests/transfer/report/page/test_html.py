import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

from matplotlib.figure import Figure

from tests.runs import ended
from tests.transfer.report.page.pages import HOSTILE, make_run, table_of
from transfer.records.run_set import StoredRuns
from transfer.report.figures.svg import Plot
from transfer.report.page.html import FIRST_ROWS, Section, marks_of, page, run_facts
from transfer.report.tables.table import Note


class Parsed(HTMLParser):
    """Elements with their attributes, and the text of each `td`."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall("<td[^>]*>(.*?)</td>", text)]
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def block(text: str) -> Any:
    """The records of a page."""
    found = re.search(r'<script type="application/json" id="records">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def facts_of(content: Any, run: str) -> dict[tuple[str, str], str]:
    """What the page shows of a run, read as its script reads it."""
    place = content["runs"].index(run)
    values = [((group, name), of[place] if len(of) > 1 else of[0]) for group, name, of in content["facts"]]
    return {name: value for name, value in values if value is not None}


def test_numbers_are_shown_short_and_sorted_whole() -> None:
    table = table_of(mAP=[12.3456, None, 50.0], lr=[1e-4, 0.05, 1.0], seed=[0, 1, 12], epochs=[20.0, 3.0, None])
    found = Parsed(page("t", [Section(title="s", table=table)], StoredRuns.of([])))
    assert found.cells[0::4] == ["12.35", "", "50.00"]
    assert found.cells[1::4] == ["0.0001", "0.05", "1"]
    assert found.cells[2::4] == ["0", "1", "12"]
    assert found.cells[3::4] == ["20", "3", ""]
    values = [cell.get("data-v", shown) for cell, shown in zip(found.all("td"), found.cells)]
    assert [float(value) for value in values[0::4] if value] == [12.3456, 50.0]
    assert [head["class"] for head in found.all("th")] == ["n"] * 4


def test_runs_stand_last_as_links_to_their_records_and_marks_in_the_first_cell() -> None:
    runs = [make_run(0, smoke=True), make_run(1, environment={"dirty": True}), make_run(2)]
    ids = [run.record.run_id for run in runs]
    table = table_of(mAP=[1.5, 2.5, 3.5, 4.5, 5.5], run=[*((one,) for one in ids), tuple(ids[::2]), ("elsewhere",)])
    found = Parsed(page("t", [Section(title="s", table=table)], StoredRuns.of(runs)))
    hashes = [run.rpartition("-")[2] for run in ids]
    assert found.cells[0::2] == ["smoke1.50", "dirty2.50", "3.50", "smoke4.50", "5.50"]
    assert found.cells[1::2] == [*hashes, f"{hashes[0]} {hashes[2]}", "elsewhere"]
    assert [row.get("class") for row in found.all("tr")] == [None, "smoke", "dirty", None, "smoke", None]
    links = [link["href"] for link in found.all("a") if str(link["href"]).startswith("#run=")]
    assert links == [f"#run={ids[place]}" for place in (0, 1, 2, 0, 2)]
    assert [cell.get("data-v") for cell in found.all("td")][1::2] == [*ids, " ".join(ids[::2]), "elsewhere"]


def test_what_is_behind_the_first_rows_waits_in_a_template() -> None:
    text = page("t", [Section(title="a", table=table_of(number=range(1000)))], StoredRuns.of([]))
    assert [part.count("<td") for part in text.split("<template>")] == [FIRST_ROWS, 1000 - FIRST_ROWS]


def test_every_fact_of_a_record_can_be_found_and_paths_cannot() -> None:
    pretraining = make_run(9, task="pretrain-dino", export="sha256:abc", scores={})
    run = make_run(2, options={"lr": 0.2, "out": "/home/me", "size": [64, 32]}, notes=["a note", "another"])
    child = make_run(5, weights_id="sha256:abc", backbone={"name": "x", "parts": {"stem": "conv"}})
    text = page("t", [], StoredRuns.of([run, child, pretraining]))
    assert "/home/me" not in text
    facts = facts_of(block(text), run.record.run_id)
    assert (facts["options", "lr"], facts["options", "size"]) == ("0.2", "[64, 32]")
    assert (facts["scores", "mAP"], facts["scores", "rank1"]) == ("0.5", "0.75")
    assert (facts["identity", "seed"], facts["outcome", "notes"]) == ("2", "a note\nanother")
    facts = facts_of(block(text), child.record.run_id)
    assert (facts["origin", "pretraining"], facts["backbone", "parts stem"]) == (pretraining.record.run_id, "conv")
    assert ("options", "size") not in facts


def test_marks_say_what_a_reader_must_know() -> None:
    run = make_run(smoke=True, subset=8, outcome=ended("diverged", 3), environment={"dirty": True})
    assert marks_of(run.record) == ["smoke", "dirty", "subset 8", "diverged"]
    assert marks_of(make_run(environment={"dirty": None}).record) == []
    toy = make_run(origin={"smoke": True, "dirty": False, "subset": 8})
    assert marks_of(toy.record) == ["pretraining smoke", "pretraining subset 8"]
    assert facts_of(run_facts([toy]), toy.record.run_id)["origin", "pretraining smoke"] == "true"


def test_hostile_text_stays_text() -> None:
    """Every hostile text in every place that takes text."""
    runs, sections = [], []
    for number, words in enumerate(HOSTILE):
        backbone, outcome = {"name": words, words: words}, ended("diverged", 1, words)
        given = {"options": {words: words}, "notes": [words], "dataset": {"name": words}}
        runs.append(make_run(number, run_id=words, backbone=backbone, outcome=outcome, **given))
        table = table_of(**{words: [words, "other"]}, run=[(words,), ("x",)], runs=[(words,), ()])
        table.notes.append(Note(words))
        sections.append(Section(title=words, table=table, note=words, plot=Plot("<svg></svg>", words, Figure())))
    text = page(HOSTILE[0], sections, StoredRuns.of(runs))
    text.encode()
    found = Parsed(text)
    assert [attributes.get("type") for attributes in found.all("script")] == ["application/json", None]
    assert {tag for tag, _ in found.tags}.isdisjoint({"img", "b", "textarea"})
    assert text.count("<p><code>&lt;/style&gt;") == 1, "text between backticks is code"
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert all(str(link["href"]).startswith(("#", "data:text/csv")) for link in found.all("a"))
    content = block(text)
    assert content["runs"] == list(HOSTILE)
    for run in runs:
        assert facts_of(content, run.record.run_id)["outcome", "reason"] == run.record.run_id


def test_the_policy_allows_this_script_alone_and_nothing_from_elsewhere() -> None:
    text = page("t", [], StoredRuns.of([]))
    policy = next(str(meta["content"]) for meta in Parsed(text).all("meta") if "http-equiv" in meta)
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text)
    assert "@import" not in text
