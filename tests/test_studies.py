"""A study in the documentation is rebuilt from its records: they verify, and its text and all its data are the same."""

from pathlib import Path

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
