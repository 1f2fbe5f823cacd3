"""What a step of one run's model costs beside one of another's, and where a folder of runs or a sweep keeps that.

Imports no torch; `transfer.measure.steps` measures.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transfer.comparison.pairing import MatchedRuns
from transfer.core.errors import UserError
from transfer.core.files import write_atomic
from transfer.records.record import Record

KEPT = "costs.json"
"""File of a sweep or a folder of runs with what was measured for its report."""
UNMEASURED = "; measure time: --measure-cost"
"""What stands in the place of a cost ratio that nobody has measured."""
RATIOS = ("training", "forward")


@dataclass(frozen=True)
class Ratio:
    """Time of an image in the first variant over that in the second: median and quartiles over rounds A B B A."""

    median: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        """Return "1.04 (quartiles 1.03 to 1.06)"."""
        return f"{self.median:.2f} (quartiles {self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class CostRatio:
    """Cost of the model of one run beside that of another.

    Attributes:
        forward: of a forward pass.
        training: of a training step; None where a run trains nothing.
        batch: images in a step.
        clock: what was measured, such as "CPU time of one thread".
        device: name of the processor or GPU.
    """

    forward: Ratio
    training: Ratio | None
    batch: int
    clock: str
    device: str


@dataclass
class CostRatios:
    """Measured cost ratios, each pair of models once; a pair is measured again once `costs.json` is deleted.

    Attributes:
        measure: measures the first of two runs beside the second; None: only what is known is shown.
        known: cost ratio by pair of models, or the reason why there is none.
    """

    measure: Callable[[Record, Record], CostRatio] | None = None
    known: dict[str, CostRatio | str] = field(default_factory=dict)

    def read(self, folder: Path) -> None:
        """Take up what was measured for the report of the runs or the sweep in a folder."""
        content = json.loads((folder / KEPT).read_bytes()) if (folder / KEPT).is_file() else {}
        for key, values in content.items():
            ratios = {name: values[name] and Ratio(**values[name]) for name in RATIOS}
            self.known[key] = CostRatio(**values | ratios)

    def write(self, folder: Path) -> None:
        """Keep what was measured, for further reports of the runs or the sweep in a folder."""
        content = {key: asdict(ratio) for key, ratio in self.known.items() if isinstance(ratio, CostRatio)}
        if content:
            write_atomic(folder / KEPT, json.dumps(content, indent=1).encode())

    def of(self, a: Record, b: Record) -> CostRatio | str | None:
        """Return the cost of one run's model beside another's, `UNMEASURED`, or why it cannot be measured.

        None: both have the same model.
        """
        first, second = _model(a), _model(b)
        key = json.dumps([first, second], sort_keys=True)
        if key not in self.known and self.measure and first != second:
            try:
                self.known[key] = self.measure(a, b)
            except UserError as error:
                self.known[key] = str(error).splitlines()[0]
        return self.known.get(key, UNMEASURED if first != second else None)

    def of_matches(self, matches: Iterable[MatchedRuns]) -> list[tuple[str, CostRatio | str]]:
        """Return (tasks and datasets, cost ratio or why there is none), equal pairs of models once."""
        by_pair: dict[int, tuple[list[str], CostRatio | str]] = {}
        for matched in matches:
            ratio = self.of(*(runs[0].record for runs in matched.variants))
            if ratio is not None:
                by_pair.setdefault(id(ratio), ([], ratio))[0].append(matched.label)
        return [(", ".join(labels), ratio) for labels, ratio in by_pair.values()]


def recorded_image_size(record: Record) -> tuple[int, int]:
    """Return (H, W) in pixels of the images of a run; 224 where the task has no option `size`."""
    size = record.options.get("size") or 224
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def step_images(record: Record) -> int:
    """Return the images that a process sends through the model at once: a micro-batch, or what is scored at once."""
    options = record.options
    identities = options.get("num_identities", 0) * options.get("num_instances", 0)  # of ReID's sampler
    batch = options.get("batch_size") or identities
    if record.environment.get("precision") is None or not batch:
        return int(options.get("eval_batch_size") or 1)
    processes = record.environment.get("world_size") or 1
    return max(1, int(batch) // (processes * (options.get("grad_accum_steps") or 1)))


def _model(record: Record) -> list[Any]:
    """Return what the cost of a run's step depends on, as plain values."""
    parts = {name: value for name, value in record.backbone.items() if name not in ("name", "weights", "load")}
    precisions = [record.environment.get(name) for name in ("precision", "eval_precision")]
    around = record.run_key_content.get("options") if record.task == "detect" else None
    return [parts, *recorded_image_size(record), step_images(record), *precisions, around]
