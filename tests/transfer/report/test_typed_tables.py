"""What every table of a report has in common: typed values, and numbers that survive their CSV."""

import io
from pathlib import Path

import pandas as pd
import pytest

from tests.transfer.records.recorded import broken, made, trained
from tests.transfer.report.tables import test_comparison as knn
from tests.transfer.report.tables.test_scores import probes
from tests.transfer.report.tables.test_tokens import tokens
from transfer.records.run_set import RunSet
from transfer.records.store import Run
from transfer.report.page.sections import ReportRequest, sections
from transfer.report.render.text import csv, markdown
from transfer.report.tables.table import Table, is_missing, is_number

# Columns of texts in which a published number stands as it is printed, or a run's own beside it.
PRINTED = {"published", "own", "difference", "row"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    """Every table that a report can make, by its title."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        knn.made(folder, stem, attention, seed=seed)
        for stem in ("conv", "patchify")
        for attention in ("softmax", "relu")
        for seed in (0, 1)
    ]
    parents = [trained(f"sha256:{seed}", seed=seed) for seed in (0, 1)]
    records = [made(lr=lr, seed=seed, scores={"mAP": 0.5}) for lr in (0.01, 0.1) for seed in (0, 1)]
    records += [made(weights_id="sha256:0", lr=0.01, seed=seed, scores={"mAP": 0.6}) for seed in (0, 1)]
    records += [broken(lr=1.0, seed=seed) for seed in (0, 1)] + [made(lr=2.0, scores={"mAP": 0.4})]
    records += [*probes(0.2, 0.4), tokens(0.1, pearson=0.2), *parents]
    runs += [Run(Path(record.run_id), record) for record in records]
    compared = (("task=knn,stem=conv", "task=knn,stem=patchify"),)
    whole = RunSet.of(runs)
    trainings = whole.where(lambda record: record.task == "reid")
    wanted = [
        (whole, ReportRequest(compare=compared, draws=100, everything=True)),
        (whole.of_task("knn"), ReportRequest(interaction=("stem", "attention"), draws=100)),
        (trainings, ReportRequest(map=("lr", "warmup_epochs"))),
        (whole, ReportRequest(each=True)),
        (whole, ReportRequest(paper=("scaled_relu", "1"))),
        (whole, ReportRequest(paper=("scaled_relu", "figure1"))),
    ]
    return {
        f"{number}: {section.title}": section.table
        for number, (shown, request) in enumerate(wanted)
        for section in sections(shown, request)
        if section.table is not None
    }


def test_all_kinds_of_tables_are_here(tables: dict[str, Table]) -> None:
    titles = " ".join(tables)
    for title in ("against", "Interaction", "largest stable", "mean over data sets", "cost", "by layer", "scaled_relu"):
        assert title in titles


def test_cells_hold_typed_values(tables: dict[str, Table]) -> None:
    for title, table in tables.items():
        assert isinstance(table, Table)
        for row in table.rows:
            assert list(row) == table.names, title
        for name in table.names:
            texts = [value for value in table[name] if isinstance(value, str) and value and name not in PRINTED]
            assert not [text for text in texts if _is_number_text(text)], (title, name)


def _is_number_text(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_numbers_come_back_from_csv(tables: dict[str, Table]) -> None:
    for title, table in tables.items():
        back = pd.read_csv(io.StringIO(csv(table)))
        assert list(back) == table.names
        for name in table.names:
            numbers = [value for value in table[name] if not is_missing(value)]
            if numbers and all(map(is_number, numbers)):
                assert back[name].dropna().tolist() == pytest.approx(numbers, rel=1e-15), (title, name)
        assert len(markdown(table).partition("\n\n")[0].splitlines()) == len(table) + 2
