"""The scripts beside the studies: one rebuilds their numbers without the suite, one writes their data."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.transfer.data.layouts import write_folders
from transfer.data.classification import open_classification
from transfer.data.spec import resolve_dataset

STUDIES = ROOT / "docs" / "studies"
TABLE = STUDIES / "cifar" / "comparisons.csv"


def rebuilt(table: Path, study: str = "cifar") -> tuple[int, list[str]]:
    claims = ROOT / "configs" / "claims" / f"{study}.yaml"
    command = [sys.executable, STUDIES / "rebuild.py", STUDIES / f"{study}_runs", claims, table]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(("study", "least"), [("cifar", 20), ("components", 6)])
def test_a_study_is_rebuilt_without_the_suite(study: str, least: int) -> None:
    status, lines = rebuilt(STUDIES / study / "comparisons.csv", study)
    assert status == 0, [line for line in lines if line.startswith("DIFFERS")]
    assert sum("[nan" not in line for line in lines) >= least


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


def test_the_data_is_written_from_the_images(tmp_path: Path) -> None:
    images = write_folders(tmp_path / "images", train=20, val=5, val_name="test")
    subprocess.run([sys.executable, STUDIES / "data.py", images, tmp_path], check=True)
    data = open_classification(resolve_dataset("cifar10_heldout"), tmp_path)
    assert [len(split) for split in (data.train, data.val, data.held_out)] == [54, 15, 6]
    written = {(data.classes[label], data.val.encoded(row)) for row, label in enumerate(data.val.labels)}
    assert written == {(path.parent.name, path.read_bytes()) for path in images.glob("test/*/*")}
