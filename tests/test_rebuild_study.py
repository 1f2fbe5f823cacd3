"""The script that rebuilds the study without the suite finds its numbers, and names those that differ."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT

STUDIES = ROOT / "docs" / "studies"
TABLE = STUDIES / "cifar" / "comparisons.csv"


def rebuilt(table: Path) -> tuple[int, list[str]]:
    claims = ROOT / "configs" / "claims" / "cifar.yaml"
    command = [sys.executable, STUDIES / "rebuild.py", STUDIES / "cifar_runs", claims, table]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_the_study_is_rebuilt_without_the_suite() -> None:
    status, lines = rebuilt(TABLE)
    assert status == 0, [line for line in lines if line.startswith("DIFFERS")]
    assert sum("[nan" not in line for line in lines) >= 20


@pytest.mark.parametrize(("row", "key", "value"), [("P2.4", "effect high", "0.7"), ("P1.5", "verdict", "undecided")])
def test_a_changed_number_or_verdict_is_named(row: str, key: str, value: str, tmp_path: Path) -> None:
    comparisons = list(csv.DictReader(TABLE.read_text().splitlines()))
    next(each for each in comparisons if each["id"] == row)[key] = value
    with (tmp_path / "changed.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, comparisons[0])
        writer.writeheader()
        writer.writerows(comparisons)
    status, lines = rebuilt(tmp_path / "changed.csv")
    assert (status, [line.split()[:2] for line in lines if not line.startswith("same")]) == (1, [["DIFFERS", row]])
