"""The journey of docs/guide/afternoon.md, as the page has it.

The page's files, and the task that it takes from another page, are written to an empty folder, and its commands run in
order, with the smaller numbers of `SMALLER`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks, files_in

pytestmark = pytest.mark.nightly
PAGE = "docs/guide/afternoon.md"
SMALLER = {
    "--epochs 10": "--epochs 1", "epochs=10": "epochs=1",
    "--seeds 0 1 2": "--seeds 0 1", "seeds=[0, 1, 2]": "seeds=[0, 1]",
    **{f"transfer.report {name} runs": f"transfer.report {name} runs --dirty" for name in ("table", "compare", "page")},
}  # fmt: skip
SEEDS = (0, 1)
VARIANTS = ("patchify + softmax", "LapStem + softmax", "LapStem + relu2")


def shell(script: str, folder: Path) -> str:
    """Run a script of the page with this Python, in a process of its own, and return what it prints to stdout."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def smaller(text: str) -> str:
    """Replace the page's numbers by those of the test."""
    for large, small in SMALLER.items():
        text = text.replace(large, small)
    return text


@pytest.fixture(scope="module")
def journey(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder after the journey, and what each block of commands printed."""
    folder = tmp_path_factory.mktemp("afternoon")
    task = {"my_task.py": files_in("docs/adding-a-part.md")["my_task.py"]}
    for name, text in (files_in(PAGE) | task).items():
        (folder / name).write_text(smaller(text))
    return folder, {script: shell(smaller(script), folder) for script in blocks(PAGE, "sh")}


def test_tables_and_page_name_the_variants(journey: tuple[Path, dict[str, str]]) -> None:
    folder, printed = journey
    (pivot,) = [text for script, text in printed.items() if script.rstrip().endswith("--pivot")]
    for table in (pivot, (folder / "table.tex").read_text()):
        assert [title for title in VARIANTS if title not in table] == []
    page = (folder / "report.html").read_text()
    assert [part for part in ("patchify", "LapStem", "relu2") if part not in page] == []


def test_python_finds_the_runs_of_the_commands(journey: tuple[Path, dict[str, str]]) -> None:
    folder, printed = journey
    ids = {path.parent.name for path in (folder / "runs").glob("*/record.json")}
    assert len(ids) == (3 + 3 * 3) * len(SEEDS)  # the page's Python, the last of its commands, has added none
    (text,) = [text for script, text in printed.items() if "study.py" in script]
    assert {word for word in text.split() if word.startswith("nearest_mean-new-lap-")} <= ids
    assert text.count("nearest_mean-new-lap-") == len(SEEDS)
