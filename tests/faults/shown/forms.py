"""Every form in which the runs of a folder are shown or passed on, called within this process."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import transfer
from transfer.records.store import RECORD, Record, Store
from transfer.report.__main__ import main as report
from transfer.report.render.run_table import run_table
from transfer.verify.__main__ import main as verify


@dataclass(frozen=True)
class Shown:
    """A folder of runs, of which one is odd."""

    runs: Path
    run: Path
    """The folder of the odd one."""
    out: Path
    """An empty folder for what is written."""
    program: str
    words: tuple[str, ...]
    """The command that made the odd run, without its folders."""


Form = Callable[[Shown], int]


def _report(*words: str, output: str = "") -> Form:
    def form(shown: Shown) -> int:
        written = ["--output", str(shown.out / output)] if output else []
        return report([str(shown.runs), "--smoke", "--dirty", *words, *written])

    return form


def _named(option: str, output: str = "") -> Form:
    """Return the form that is asked for one run by its folder's name."""
    return lambda shown: _report(option, shown.run.name, output=output)(shown)


def _figures(shown: Shown) -> int:
    return _report("--figures", str(shown.out / "figures"))(shown)


def _bundle(shown: Shown) -> int:
    """Pack the runs, and import them into an empty folder and into one that has them."""
    status = _report("--bundle", str(shown.out / "runs.zip"))(shown)
    if status == 0:
        again = shutil.copytree(shown.runs, shown.out / "again")
        for folder in (shown.out / "imported", again):
            status = max(status, report([str(folder), "--import", str(shown.out / "runs.zip")]))
    return status


def _leaderboard(shown: Shown) -> int:
    words = ["--leaderboard", str(shown.runs), "--output", str(shown.out / "site"), "--smoke", "--dirty"]
    return report([*words, "--bootstrap-samples", "100"])


def _verify(shown: Shown) -> int:
    return verify([str(shown.runs)])


def _recompute(shown: Shown) -> int:
    return verify([str(shown.run), "--recompute", "--subset", "3"])


def _run_table(shown: Shown) -> int:
    """The table that a command prints of its runs."""
    print(run_table([run.record for run in Store(shown.runs).runs()[0]] or [Record.read(shown.run / RECORD)]))
    return 0


def _command_again(shown: Shown) -> int:
    """The command that made the run, which finds its record."""
    weights = ["--weights-to", str(shown.out / "weights")] if shown.program == "transfer.pretrain" else []
    words = [*shown.words, "--out", str(shown.runs), "--features", str(shown.out / "features"), *weights]
    return int(import_module(shown.program).main(words))


def _start_from(shown: Shown) -> int:
    """A command that starts from the run's weights."""
    words = ["knn", "--backbone", "tiny", "--smoke", "--weights", str(shown.run), "--dry-run"]
    return int(import_module("transfer.run").main([*words, "--out", str(shown.out / "runs")]))


def _python(shown: Shown) -> int:
    """What users of Python see."""
    runs = transfer.load(shown.runs)
    runs.to_frame()
    print(repr(runs), runs.to_markdown(), runs.to_latex(each=True))
    for run in runs:
        print(repr(run))
    transfer.compare(runs, "backbone", "tiny", "other", bootstrap_samples=100)
    return 0


_COMPARE = ("--compare", "tiny", "other", "--bootstrap-samples", "100")
FORMS: dict[str, Form] = {
    "screen": _report(),
    "screen of each": _report("--each"),
    "Markdown": _report(output="t.md"),
    "CSV": _report(output="t.csv"),
    "CSV of each": _report("--each", output="t.csv"),
    "CSV on the screen": _report("--format", "csv"),
    "CSV on the screen of each": _report("--each", "--format", "csv"),
    "lines of JSON": _report("--each", output="t.jsonl"),
    "Parquet": _report("--each", output="t.parquet"),
    "LaTeX": _report(output="t.tex"),
    "page": _report(output="t.html"),
    "page with pictures": _report("--pictures", *_COMPARE, output="t.html"),
    "comparison": _report(*_COMPARE),
    "comparison in LaTeX": _report(*_COMPARE, "--margin", "1", output="t.tex"),
    "comparison of seeds": _report("--compare", "seed=0", "seed=1", "--bootstrap-samples", "100"),
    "interaction": _report("--interaction", "stem", "seed", "--bootstrap-samples", "100"),
    "map": _report("--map", "seed", "stem", "--by", "backbone"),
    "map of options": _report("--map", "lr", "warmup_epochs"),
    "cost": _report("--cost"),
    "layers": _report("--layers"),
    "published table": _report("--paper", "scaled_relu", "--table", "4"),
    "published figure": _report("--paper", "scaled_relu", "--figure", "1", output="t.md"),
    "figures": _figures,
    "card": _named("--card", output="card.md"),
    "folder for the hub": _named("--hub", output="hub"),
    "bundle": _bundle,
    "leaderboard": _leaderboard,
    "verification": _verify,
    "recomputation": _recompute,
    "table of a command": _run_table,
    "the command again": _command_again,
    "a start from its weights": _start_from,
    "Python": _python,
}
"""Name of a form -> what shows it and returns an exit status."""
