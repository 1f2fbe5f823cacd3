"""The document of a study, the table and page of claims, as their command writes them."""

import csv
import io
import re
from pathlib import Path

import pytest

from tests.transfer.experiments.test_claims import ROW, write
from tests.transfer.report.claims.test_evaluate import RATES, grid
from transfer.report.__main__ import main

Captured = pytest.CaptureFixture[str]

TOP = {"title": "A study", "about": "What is tested & why <b>.", "methods": "Done so.", "limits": "Small."}
WHOLE = ROW | {"b": "stem=patchify"}
PAIRS = [[f"stem=conv,lr={lr}", f"stem=patchify,lr={lr}"] for lr in RATES]
ROWS = [
    WHOLE | {"choose": "lr", "chosen_by": "held_out.top1", "seeds": 3, "hours": 2.0, "detectable": 1.5}
    | {"commands": ["python -m transfer.sweep claims"], "limits": "Made up.", "reading": {"support": "So it is."}}
    | {"changed": [{"date": "2030-01-31", "what": "the margin", "before": "undecided"}]}
    | {"printed": "80 against 50.", "authors": "more."},
    ROW | {"id": "P1 pairs", "a": None, "b": None, "pairs": PAIRS},
    WHOLE | {"id": "P2", "kind": "half-score rate", "over": "lr", "margin": 1},
    ROW | {"id": "P3", "kind": "failure share", "a": "stem=patchify,lr=0.4", "b": "stem=conv,lr=0.4", "margin": 50}
    | {"own": True},
    WHOLE | {"id": "P4", "kind": "rank correlation", "against": "held_out.top1", "expect": "> 0",
     "a": ["stem=conv,lr=0.1", "stem=patchify,lr=0.1"]},
    ROW | {"id": "P5", "a": "stem=none", "hours": 2, "commands": ["python -m transfer.sweep x"]},
    {"id": "P6", "claim": "c", "where": "w", "not_run": {"why": "Too large.", "gpu_hours": 12, "command": "python -m"}},
]  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The folder of runs and the file of claims."""
    folder = tmp_path_factory.mktemp("study")
    levels = {"conv": (0.8, 0.7, 0.7), "patchify": (0.5, 0.4, 0.0)}
    grid(folder / "runs", levels, levels)
    return str(folder / "runs"), str(write(folder, *ROWS, **TOP))


def test_the_document_is_the_same_each_time_with_rules_numbers_commands_and_links(
    study: tuple[str, str], tmp_path: Path
) -> None:
    texts = []
    for name in ("one", "two"):
        assert main(["claims", *study, "--document", str(tmp_path / name / "study.md")]) == 0
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        texts.append({path.relative_to(tmp_path / name).as_posix(): path.read_bytes() for path in files})
    assert texts[0] == texts[1]
    figures = {f"study/{name}.{kind}" for name in ("p1", "p1-pairs", "p2", "p3", "p4") for kind in ("csv", "svg")}
    assert {*texts[0]} == {"study.md", "study/claims.csv", "study/comparisons.csv"} | figures
    text = texts[0]["study.md"].decode()
    assert {*re.findall(r"\]\((study/[^)]+)\)", text)} <= {*texts[0]}
    titles = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    assert {*re.findall(r"\]\(#([^)]+)\)", text)} <= {title.lower().replace(" ", "-") for title in titles}
    assert text.startswith("# A study\n\nWhat is tested & why &lt;b>.\n\nOf 6 rows that state what a paper states, 4")
    assert "Besides, 1 of the suite's own, which decide no claim of a paper." in text
    own = text[text.index("The suite's own rows:") : text.index("Effects are a less b")]
    assert re.findall(r"^\| \[(P\d)\]", own, re.MULTILINE) == ["P3"]
    section = text[text.index("## P1\n") : text.index("## P1 pairs")]
    for said in (
        "Rule: difference of `top1`, a > b expected, relevant from 1 on; `lr`", "Half of the interval: 1.5 predicted.",
        "```sh\npython -m transfer.sweep claims\n```", "The paper: 80 against 50. Support for its authors: more.",
        "Changed after the runs, 2030-01-31: the margin. The verdict was undecided, and is support.", "2 predicted",
        "seeds: 3, at least 1.",
    ):  # fmt: skip
        assert said in section, said
    for said in (
        ": no verdict (2 support, 1 no verdict).", "no verdict: all trainings of 'stem=patchify,lr=0.4' failed",
        "When they were written was not checked: only a version history of that file dates them.",
        "18 runs stand behind the verdicts", "- P1, P1 pairs, P2, P3, P4: `task=knn`", "**Limits.** Small.", "Done so.",
    ):  # fmt: skip
        assert said in text, said
    lines = text[text.index("## Not tested") :].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert ["P5", "a is better (Table 1)", "no run has stem=none", "2", "`python -m transfer.sweep x`"] in cells
    assert ["P6", "c (w)", "Too large.", "12", "`python -m`"] in cells


def test_csv_page_and_terminal_have_every_claim(study: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    for name in ("claims.csv", "claims.html"):
        assert main(["claims", *study, "--output", str(tmp_path / name)]) == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "claims.csv").read_text())))
    by_id = {row["id"]: row for row in rows if row["id"]}
    assert [*by_id] == [row["id"] for own in (False, True) for row in ROWS if row.get("own", False) is own]
    assert (by_id["P1"]["verdict"], by_id["P2"]["verdict"], by_id["P6"]["verdict"]) == ("support", "support", "not run")
    assert float(by_id["P1"]["effect low"]) < float(by_id["P1"]["effect"]) < float(by_id["P1"]["effect high"])
    assert len(by_id["P2"]["run"].split()) == 18
    assert len([row for row in rows if row["table"].startswith("P1 pairs")]) == 3
    assert (tmp_path / "claims.html").read_text().count("<svg") >= 4
    assert main(["claims", *study]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 100
    assert "- P5: no verdict: 'stem=none': no run has stem=none (there is conv, patchify)" in " ".join(said.split())


def test_no_runs_and_wrong_commands_are_said(study: tuple[str, str], tmp_path: Path, capsys: Captured) -> None:
    assert main(["claims", str(tmp_path), study[1]]) == 0
    assert "no verdict: there are no runs" in capsys.readouterr().out
    assert main(["claims", str(tmp_path / "none"), "cifra"]) == 2, "before there are runs"
    assert "unknown claims file 'cifra'" in capsys.readouterr().err
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "record.json").write_text("{")
    assert main(["claims", str(tmp_path), study[1], "--document", str(tmp_path / "study.md")]) == 0
    assert f"A run was not counted: {tmp_path}/torn/record.json" in (tmp_path / "study.md").read_text()
