"""A study in the documentation is rebuilt from its records: they verify, and its text and all its data are the same."""

import re
from pathlib import Path

import pandas as pd
import pytest

from transfer.core.files import ROOT
from transfer.report.__main__ import main
from transfer.verify.__main__ import main as verify

STUDIES = sorted((ROOT / "docs" / "studies").glob("*.md"))


@pytest.mark.nightly
@pytest.mark.parametrize("document", STUDIES, ids=[path.stem for path in STUDIES])
def test_a_study_is_what_its_records_and_claims_say(document: Path, tmp_path: Path) -> None:
    runs, rebuilt = document.with_name(f"{document.stem}_runs"), tmp_path / document.name
    assert verify([str(runs)]) == 0
    assert main(["claims", str(runs), document.stem, "--dirty", "--document", str(rebuilt)]) == 0
    assert rebuilt.read_text() == document.read_text()
    for folder, other in ((document.parent, tmp_path), (tmp_path, document.parent)):
        for path in (folder / document.stem).glob("*.csv"):
            assert (other / document.stem / path.name).read_text() == path.read_text(), path.name


@pytest.mark.parametrize("text", ["README.md", "docs/index.md", *(f"docs/studies/{path.name}" for path in STUDIES)])
def test_what_is_said_of_the_study_are_its_numbers(text: str) -> None:
    tables = [pd.read_csv(document.with_suffix("") / "claims.csv") for document in STUDIES]
    rows = pd.concat(tables).dropna(subset="effect").set_index("id")
    study = (ROOT / "docs" / "studies" / "cifar.md").read_text()
    said = (ROOT / text).read_text().partition("## Verdicts")[0]
    found = re.findall(
        r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\][^()\[]*\(?(P[\d.]+\d(?: [a-z]+)?)[,)]", said.replace("\n", " ")
    )
    assert found
    for *shown, row in found:
        wanted = rows.loc[row, ["effect", "effect low", "effect high"]].astype(float)
        wanted = -wanted[::-1] if wanted["effect"] < 0 < float(shown[0]) else wanted  # "behind" in place of a minus
        effect, low, high = map(float, shown)
        digits = len(shown[0].partition(".")[2])
        assert sorted([low, effect, high]) == pytest.approx(sorted(wanted.round(digits))), row
    if text == "README.md":
        (counts,) = re.findall(r"^Of \d+ rows that [^.]*\.", study, re.MULTILINE)
        assert " ".join(counts.split()) in " ".join(said.split())
