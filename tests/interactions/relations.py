"""What must come to the same, however it is executed, and what to nearly the same: by two ranks, in other batches."""

import random
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np

from tests.interactions.commands import Bench, Ran, outcomes_of, result
from tests.interactions.generator import kinds, program, with_words
from tests.support import stopped_after
from transfer.engine.checkpoint import history
from transfer.records.store import OPTIONS, RECORD

Problems = list[str]
FIRST, LAST = 2e-4, 2e-2
"""Relative difference of a loss in the first step, and in any: rounding grows with the steps."""
FLIPPED = 0.2
"""Share of the samples whose place may differ where features differ by rounding: ties of so few images."""
FOR_A_BATCH = ("mixup", "cutmix")
"""Options of which a rank draws numbers for its own part of a batch."""


def _equal(one: Ran, two: Ran, what: str) -> Problems:
    """Nothing where both came to the same, to the bit."""
    if one.status != two.status or not two.runs:
        return [f"{what}: exit status {one.status} and {two.status} ({two.stderr.strip()[-200:]}): {two.line}"]
    a, b = result(one.runs[0]) | {"key": one.record.run_key}, result(two.runs[0]) | {"key": two.record.run_key}
    return [f"{what}: other {name}: {two.line}" for name in a if a[name] != b[name]]


def executed(bench: Bench, ran: Ran, rng: random.Random) -> Problems:
    """Elsewhere, with a loader process, and a state that is saved after every step."""
    words = ["--workers", "1", "--checkpoint-seconds", "0", "--tracker", "tensorboard", "--drop-corrupt"]
    return _equal(ran, bench.run(with_words(ran.words, words)), " ".join(words))


def repeated(bench: Bench, ran: Ran, rng: random.Random) -> Problems:
    """The run's own options.yaml: the run is reused."""
    file, before = str(ran.runs[0] / OPTIONS), (ran.runs[0] / RECORD).stat().st_mtime_ns
    words = [ran.words[0], "--config", file] if program(ran.words[0]) == "run" else [file]
    two = bench.run(words, ran.out)
    same = two.status == ran.status and len(two.runs) == 1 and (two.runs[0] / RECORD).stat().st_mtime_ns == before
    return [] if same else [f"exit status {two.status}, {len(two.runs)} runs by its own {OPTIONS}: {two.line}"]


def resumed(bench: Bench, ran: Ran, rng: random.Random) -> Problems:
    """Stopped by a signal in some step, and taken up."""
    if not (last := ran.record.outcome["step"]):
        return []
    step = rng.randint(1, last)
    with stopped_after(step):
        first = bench.run(ran.words)
    if first.status != 143:
        return [f"stopped in step {step} of {last}: exit status {first.status}: {first.line}"]
    return _equal(ran, bench.run(ran.words, first.out), f"stopped after step {step} of {last} and resumed")


def by_two_ranks(bench: Bench, ran: Ran, rng: random.Random) -> Problems:
    """Two ranks, batch norm synchronised, nothing drawn for a batch; not where each perturbs by its own gradient."""
    options = ran.record.options
    per_rank = options.get("sam", "none") != "none" and not options["sam_sync"]
    halved = {options.get("precision", "fp32"), options["eval_precision"]} != {"fp32"}
    if ran.status or per_rank or halved or ran.words[0] == "detect":
        return []
    names = {field.name for field in fields(kinds(ran.words[0])[0])}
    more = [word for name in FOR_A_BATCH if name in names for word in (f"--{name.replace('_', '-')}", "0")]
    more += ["--sync-bn"] if "sync_bn" in names and options.get("epochs") else []
    words = with_words(ran.words, more)
    one = bench.run(words)
    try:
        return _near(one, bench.by_two_ranks(words), "two ranks") if one.status == 0 else []
    except AssertionError as error:  # one of them failed
        return [f"two ranks: {error}"]


def in_other_batches(bench: Bench, ran: Ran, rng: random.Random) -> Problems:
    """Features of so many images at a time."""
    if ran.status or ran.record.environment["eval_precision"] != "fp32":
        return []
    more = ["--eval-batch-size", rng.choice(("1", "3", "5"))]
    return _near(ran, bench.run(with_words(ran.words, more)), " ".join(more))


def _near(one: Ran, two: Ran, what: str) -> Problems:
    if two.status != one.status:
        return [f"{what}: exit status {one.status} and {two.status} ({two.stderr.strip()[-300:]}): {two.line}"]
    return [f"{what}: {text}: {two.line}" for text in (*_steps(one.runs[0], two.runs[0]), *_outcomes(one, two))]


def _steps(one: Path, two: Path) -> Iterator[str]:
    lines = [history(folder, "loss") for folder in (one, two)]
    a, b = (np.array([[line["loss"], line["grad_norm"]] for line in part]) for part in lines)
    if a.shape != b.shape:
        yield "another number of steps"
    elif len(a):
        bound = np.where(np.arange(len(a)) == 0, FIRST, LAST)[:, None]
        apart = (abs(a - b) > bound * abs(a) + 1e-6).any(axis=1)
        if apart.any():
            yield f"losses and gradients {a[apart][0]} and {b[apart][0]} in step {apart.argmax() + 1}"


def _outcomes(one: Ran, two: Ran) -> Iterator[str]:
    a, b = outcomes_of(one.runs[0]), outcomes_of(two.runs[0])
    if {name: values.shape for name, values in a.items()} != {name: values.shape for name, values in b.items()}:
        yield "outcomes of other names or shapes"
        return
    for name, values in a.items():
        if values.dtype.kind == "f":
            apart = ~np.isclose(values, b[name], rtol=1e-3, atol=1e-4, equal_nan=True)
        else:
            apart = np.asarray(values != b[name])
        if apart.size and apart.mean() > (0 if name in ("sample", "cluster") else FLIPPED):
            yield f"{name}: {apart.mean():.0%} apart"


RELATIONS: dict[str, Callable[[Bench, Ran, random.Random], Problems]] = {
    "executed": executed,
    "repeated": repeated,
    "resumed": resumed,
    "by two ranks": by_two_ranks,
    "in other batches": in_other_batches,
}
"""Each with a command that came to a record: what is wrong; nothing where it does not apply."""
