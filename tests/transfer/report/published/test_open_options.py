"""What a published number was made with, where that is a download, or left open by the paper."""

from pathlib import Path
from typing import Any

import pytest

from tests.transfer.report.published.runs import cell_of, full, line_of, run_of
from transfer.experiments.published_rows import read_paper, table_of
from transfer.experiments.step import step_options
from transfer.records.run_set import RunSet
from transfer.report.published.matching import Matcher

VOLO = "VOLO-d1, 3Conv+3BN+3ReLU+1Proj, 1.6e-3, AdamW, warm-up 20"
SAM = "ViT_p, 5e-4, SAM, warm-up 5"
SHARE = "10 % of the labels"
LABELS = {"token_labels": "/data/maps"}


@pytest.mark.parametrize("table", ["2", "5", "classification"])
def test_every_volo_row_expects_token_labels(tmp_path: Path, table: str) -> None:
    paper = "anchors" if table == "classification" else "scaled_relu"
    found = table_of(paper, table)
    rows = [row for row in found.rows if "volo" in row.steps]
    assert len(rows) == {"2": 7, "5": 6, "classification": 1}[table]
    for number, row in enumerate(rows):
        cell = cell_of(table, row.label, "volo", paper)
        for labels, told in ((None, ["no token labels"]), ("/data/maps", [])):
            run = run_of(cell, tmp_path / f"{number}-{bool(labels)}", 800, changed={"token_labels": labels})
            matcher = Matcher(full(found.sweep), read_paper(paper), RunSet.of([run]))
            found_reasons = [reason for match in matcher.matches(row, row.values[0]) for reason in match.reasons]
            assert list(map(str, found_reasons)) == told


OPEN: list[tuple[str, str, str, dict[str, Any], dict[str, Any], str]] = [
    # table, row and step; what is expected there; another value, and what a run of it is told
    ("1", SAM, "deit", {"sam_rho": 0.05}, {"sam_rho": 0.1}, "sam_rho 0.1 (0.05 taken, not stated)"),
    ("2", VOLO, "volo", {}, LABELS | {"sync_bn": True}, "sync_bn yes (no taken, not stated)"),
    ("2", VOLO, "volo", {}, {"token_labels": None}, "no token labels"),
    ("2", VOLO, "volo", {}, {"token_labels": "/elsewhere"}, ""),
    ("7", SHARE, "finetune", {"epochs": 300}, {"epochs": 100}, "epochs 100 (300 taken, not stated)"),
]


@pytest.mark.parametrize(("table", "label", "step", "expected", "other", "told"), OPEN, ids=lambda one: str(one)[:40])
def test_what_another_value_of_an_open_option_is_told(
    tmp_path: Path, table: str, label: str, step: str, expected: Any, other: Any, told: str
) -> None:
    cell = cell_of(table, label, step)
    given = LABELS if step == "volo" else {}
    for number, (changed, said) in enumerate(((given | expected, ""), (other, told))):
        line = line_of([run_of(cell, tmp_path / str(number), 790, changed=changed)], table, label)
        assert line["own"] == "79.0"
        assert line["not comparable because"] == said


@pytest.mark.parametrize("paper", ["scaled_relu", "anchors"])
def test_open_and_needed_options_are_options_of_the_steps(paper: str) -> None:
    about = read_paper(paper)
    steps = {name: step for table in about.tables.values() for name, step in full(table.sweep).steps.items()}
    for step, names in {**about.open, **about.needs}.items():
        assert {*names} <= step_options(steps[step].kind, steps[step].recipe)
