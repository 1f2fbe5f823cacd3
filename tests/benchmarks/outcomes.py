"""How often the rule for outcomes is wrong, on histories of short trainings of which it is known whether they live.

python -m tests.benchmarks outcomes            the table, from `outcomes.npz` beside this file, in seconds
A training is one of three methods in one setting (stem, attention, optimizer, warm-up, length, seed) at one of ten
rates. Whether it lives is told by images that it has not seen: the test images of CIFAR-10 (top-1; k-NN for DINO), for
ReID held-out drawings of the training characters. It lives if the share of correct ones is above chance at 99.9 %
(one-sided binomial). It is dead if the share is within chance at 95 % and the loss of its last window not below chance
by three standard errors. What is neither lives if the same training with four times the epochs is above chance. The
constants of the rule were chosen on the settings of even number; those of odd number are reported.

A ViT of 2 blocks, 64 wide, with 16 patches of 8 pixels was trained, on 2,048 images of CIFAR-10 (1,000 to test) and on
1,120 drawings of 70 characters of Omniglot, of which 280 more are held out; an image was augmented three times per
setting, and kept. All longer trainings were run whose score was below 20 % (ReID: 12 %) or whose loss was near chance.
The script that trained them is in the history of this repository, as tests/benchmarks/outcome_trainings.py.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from tests.benchmarks.options import read as read_options
from transfer.engine.outcome import Signs, judge, window_steps
from transfer.statistics.intervals import wilson

LENGTHS = (20, 40, 100, 1300)
DATA = Path(__file__).with_name("outcomes.npz")
CHANCE = {"supervised": (0.109, 1000), "reid": (1 / 70, 280), "dino": (0.109, 1000)}
"""Share of correct images of the best constant prediction, and number of images."""
UNIFORM = math.log(1024)  # DINO's entropy of a uniform teacher
SIGNS = {
    "supervised": Signs(chance=2.29812, accuracy=227 / 2048),
    "reid": Signs(statistic="identity_loss", chance=math.log(70), accuracy=1 / 70),
    "dino": Signs(moving_targets=True, bounds={"teacher_entropy": (0.01 * UNIFORM, 0.99 * UNIFORM)}),
}


@dataclass(frozen=True)
class Training:
    """One of the trainings: its plain values, and its statistics by name, one value a step."""

    values: dict[str, Any]
    columns: dict[str, list[float]]
    steps: int
    """How many it was to make."""

    @property
    def alive(self) -> bool:
        """What is true of it."""
        values = self.values
        if values["status"] == "nonfinite":
            return False
        own = clear(values["method"], values["score"], self.columns)
        if own is None:
            lasted = values["longer_status"] == "completed"
            return bool(lasted and surprise(values["method"], values["longer_score"]) < 0.001)
        return own

    @property
    def verdict(self) -> str:
        """What the rule says of it."""
        if self.values["status"] == "nonfinite":
            return "nonfinite"
        return judge(self.columns, SIGNS[self.values["method"]], len(self.columns["loss"])).status

    @property
    def reported(self) -> bool:
        """Whether it is in the half on which no constant was chosen."""
        return int(self.values["setting"][1:]) % 2 == 1


def surprise(method: str, score: float) -> float:
    """Return how probable so many correct images or more are by chance; 1 without a score."""
    if math.isnan(score):
        return 1.0
    share, images = CHANCE[method]
    return float(binom.sf(round(score * images) - 1, images, share))


def clear(method: str, score: float, columns: Mapping[str, Sequence[float]]) -> bool | None:
    """Return whether a training lives as far as its own score and loss tell; None where they do not."""
    signs, probability = SIGNS[method], surprise(method, score)
    if probability < 0.001 or signs.chance is None:
        return probability < 0.001
    last = columns[signs.statistic][-window_steps(len(columns["loss"])) :]
    at_chance = np.mean(last) > signs.chance - 3 * np.std(last) / math.sqrt(len(last))
    return False if probability > 0.05 and at_chance else None


def read(path: Path = DATA) -> list[Training]:
    """Return the trainings of a file."""
    with np.load(path) as file:
        arrays = dict(file)
    histories = {name: arrays.pop(name) for name in ("statistic", "spread", "accuracy", "other")}
    ends = np.cumsum(arrays["steps"])
    rows = [{name: array[row].item() for name, array in arrays.items()} for row in range(len(ends))]
    planned: dict[str, int] = {}
    for row in rows:
        planned[row["setting"]] = max(row["steps"], planned.get(row["setting"], 0))
    found = []
    for row, end in zip(rows, ends.tolist(), strict=True):
        own = {name: of[end - row["steps"] : end] for name, of in histories.items()}
        found.append(Training(row, _columns(row["method"], own), planned[row["setting"]]))
    return found


def _columns(method: str, stored: dict[str, NDArray[np.float16]]) -> dict[str, list[float]]:
    signs = SIGNS[method]
    statistic, other = (stored[name].astype(float) for name in ("statistic", "other"))
    columns = {signs.statistic: statistic + (signs.chance or UNIFORM), "spread": 10 ** stored["spread"].astype(float)}
    if method == "reid":
        columns["loss"] = columns[signs.statistic] + other
    if method == "dino":
        columns["teacher_entropy"] = other * UNIFORM
    if not np.isnan(stored["accuracy"]).any():
        columns["accuracy"] = stored["accuracy"].astype(float)
    return {name: column.tolist() for name, column in columns.items()}


def errors(trainings: Sequence[Training]) -> Counter[tuple[str, str]]:
    """Return how many trainings there are by truth and call; `not_judged` is a call of its own."""
    calls = ({"completed": "alive", "not_judged": "not judged"}.get(one.verdict, "dead") for one in trainings)
    return Counter(("alive" if one.alive else "dead", call) for one, call in zip(trainings, calls, strict=True))


def table(trainings: Sequence[Training]) -> Iterator[str]:
    """Give the lines of a table in Markdown: the rule on each half of the settings, and by the number of steps."""
    yield "| settings | method | dead called alive | alive called dead | not judged |"
    yield "|---|---|---|---|---|"
    groups = (("supervised", "reid"), ("supervised",), ("reid",), ("dino",))
    for half, methods in itertools.product((False, True), groups):
        part = [one for one in trainings if one.reported == half and one.values["method"] in methods]
        yield f"| {'odd' if half else 'even'} | {', '.join(methods)} | {_cells(errors(part))} |"
    for low, high in itertools.pairwise(LENGTHS):
        part = [one for one in trainings if low <= one.steps < high and one.values["method"] != "dino"]
        yield f"| all of {low} to {high - 1} steps | supervised, reid | {_cells(errors(part))} |"


def _cells(found: Counter[tuple[str, str]]) -> str:
    unjudged = found["dead", "not judged"] + found["alive", "not judged"]
    return f"{_share(found, 'dead', 'alive')} | {_share(found, 'alive', 'dead')} | {unjudged}"


def _share(found: Counter[tuple[str, str]], truth: str, call: str) -> str:
    wrong, of = found[truth, call], sum(count for (is_true, _), count in found.items() if is_true == truth)
    low, high = wilson(wrong, of)
    return f"{wrong} of {of}, {100 * wrong / max(of, 1):.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def main(argv: Sequence[str]) -> int:
    read_options(argv, __doc__)
    print("\n".join(table(read())))
    return 0
