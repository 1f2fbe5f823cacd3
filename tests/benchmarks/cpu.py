"""The ratios of docs/measured.md that are a CPU's, measured again, beside those of its tables.

    python -m tests.benchmarks cpu [--minutes 60] [--dino CHECKOUT] [--images FOLDER] [--out docs/measured.csv]

The commands run in the order of the tables, the most valuable first, as `python -m tests.benchmarks gpu` runs its own:
rows are appended as each ends, and what stands there for this machine, version of torch and version of the code is not
measured again. Then each ratio stands beside the table's. Exit status 1 if one fell below it by more than noise, was
not printed, or a command failed. On other processors than those of the tables there is nothing to fall below.

Needs, for all ratios, a checkout of facebookresearch/dino, COCO's layout in a folder, and torchreid.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.benchmarks.gpu import MEASURED, ROOT, machine_of, measure_all, rows_of
from tests.benchmarks.options import read

HEAD = re.compile(r"^\| command \| ratio \| unit \| (.+) \|$")
NOISE = 0.05
"""Ratios of equal code differ by less."""


@dataclass(frozen=True)
class Ratio:
    """A row of the tables: its command, the name of the figure, `x` or `fold`, and the value on this processor."""

    command: str
    name: str
    unit: str
    known: float | None

    def state(self, now: float | None) -> str:
        """What is said of the ratio beside the table's."""
        if now is None:
            return "not measured"
        if self.known is None:
            return "new"
        change = (now / self.known if self.unit == "x" else self.known / now) - 1
        return "FELL" if change < -NOISE else "rose" if change > NOISE else "holds"


def ratios(document: str, machine: str) -> list[Ratio]:
    """The rows of the tables of ratios in a document, with the values in the column of a processor."""
    found, processors, command = list[Ratio](), list[str](), ""
    for line in document.splitlines():
        if head := HEAD.match(line):
            processors = head[1].split(" | ")
        elif not line.startswith("|"):
            processors = []
        elif processors and not line.startswith("|---"):
            words, name, unit, *values = (cell.strip() for cell in line.strip("|").split("|"))
            command = words.strip("`").removeprefix("python -m ") or command
            known = [value for value, where in zip(values, processors, strict=True) if value and where in machine]
            found.append(Ratio(command, name, unit, float(known[0]) if known else None))
    return found


def main(argv: Sequence[str]) -> int:
    """Measure what is missing, and print the ratios beside the tables'."""
    given = read(argv, __doc__, minutes=60.0, dino="", images="", out=str(MEASURED))
    machine, out = machine_of(torch.device("cpu")), Path(given.out)
    table = ratios((ROOT / "docs" / "measured.md").read_text(encoding="utf-8"), machine["machine"])
    folders = {"CHECKOUT": given.dino, "FOLDER": given.images}
    commands, lacking = [*dict.fromkeys(one.command for one in table)], {name for name in folders if not folders[name]}
    for command in (one for one in commands if lacking & {*one.split()}):
        print(f"{command}: not started, the folder is not given")
    ready = [one for one in commands if not lacking & {*one.split()}]
    failed = measure_all(ready, machine, out, given.minutes, folders)
    rows = [row for row in rows_of(out) if machine.items() <= row.items()]
    now = {(row["command"], row["figure"]): float(row["value"]) for row in rows if row["unit"] in ("x", "fold")}
    ran, states = {row["command"] for row in rows}, set[str]()
    for one in table:
        value = now.get((one.command, one.name))
        state = "NOT PRINTED" if value is None and one.command in ran else one.state(value)
        states.add(state)
        name, *_ = one.command.removeprefix("tests.benchmarks ").split()
        known, measured = ("" if number is None else f"{number:.2f}" for number in (one.known, value))
        print(f"{name:15} {one.name:48} {known:>6} {measured:>6} {one.unit:4} {state}")
    return int(failed > 0 or not states.isdisjoint(("FELL", "NOT PRINTED")))
