"""What must come to the same, however it is said, stored or executed: relations between two commands."""

import contextlib
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from backbones.engine.step import Stepper
from backbones.settings import CONFIGS, read_yaml, write_yaml
from tests.interactions.bench import Bench, differing, outcomes_of
from tests.interactions.commands import PLAIN, Command, Ran
from tests.interactions.covering import Row
from tests.interactions.options import WORKS
from transfer.records.store import OPTIONS, RECORD

Problems = list[str]
NOT_IN_LAYERS = ("trainable", "validate_at", "other_k", "shots")
"""Flags that take several values."""


@dataclass(frozen=True)
class Equality:
    """A relation: of which rows it can be asked, and what is wrong where it does not hold."""

    name: str
    applies: Callable[[Row], bool]
    check: Callable[[Bench, Ran, Row], Problems]


def _equal(one: Ran, two: Ran, what: str, besides: tuple[str, ...] = ()) -> Problems:
    """Nothing where both came to the same, to the bit."""
    if one.status != two.status:
        return [f"{what}: exit status {one.status} and {two.status} ({two.stderr.strip()[-200:]}): {two.line}"]
    parts = differing(one.runs[0], two.runs[0], besides)
    return [f"{what}: other {', '.join(parts)}: {two.line}"] if parts else []


def _same_identity(one: Ran, two: Ran, what: str) -> Problems:
    if one.record.run_key == two.record.run_key:
        return []
    return [f"{what}: another identity: {two.line}"]


def again(bench: Bench, ran: Ran, row: Row) -> Problems:
    """The same command elsewhere."""
    two = bench.run(ran.command)
    return _equal(ran, two, "the same command again") + _same_identity(ran, two, "the same command again")


def executed(bench: Bench, ran: Ran, row: Row) -> Problems:
    """Loader processes, and a state that is saved after every step."""
    words = ["--workers", "1", "--checkpoint-seconds", "0", "--tracker", "tensorboard", "--skip-unreadable"]
    two = bench.run(ran.command.with_words(*words))
    return _equal(ran, two, " ".join(words)) + _same_identity(ran, two, " ".join(words))


def spelt(bench: Bench, ran: Ran, row: Row) -> Problems:
    """Flags in another order, with `=`, and some of them in a YAML layer: the run is reused."""
    chance = random.Random(str(sorted(row.items())))
    task, flags = ran.command.words[0], grouped(ran.command.words[1:])
    smoke = {"size", *read_yaml(CONFIGS / "smoke" / f"{task}.yaml")}  # it lies over the layers of the user's
    chance.shuffle(flags)
    layer, said = {}, []
    for flag in flags:
        name = flag[0][2:].replace("-", "_")
        if len(flag) == 2 and name not in (*smoke, *NOT_IN_LAYERS) and chance.random() < 0.5:
            layer[name] = flag[1]
        else:
            said += [f"{flag[0]}={flag[1]}"] if len(flag) == 2 else list(flag)
    file = bench.root / f"layer{bench.commands}.yaml"
    file.write_text(write_yaml(layer))
    return _reused(bench, ran, [task, *said, "--config", str(file)])


def repeated(bench: Bench, ran: Ran, row: Row) -> Problems:
    """The run's own options.yaml: the run is reused."""
    file = str(ran.runs[0] / OPTIONS)
    return _reused(bench, ran, [ran.command.words[0], "--config", file] if ran.command.program == "run" else [file])


def _reused(bench: Bench, ran: Ran, words: list[str]) -> Problems:
    before = (ran.runs[0] / RECORD).stat().st_mtime_ns
    two = bench.run(Command(ran.command.program, tuple(words)), ran.out)
    if two.status != ran.status:
        return [f"exit status {two.status} in other words ({two.stderr.strip()[-300:]}): {two.line}"]
    if len(two.runs) != 1 or (two.runs[0] / RECORD).stat().st_mtime_ns != before:
        return [f"another run in other words: {two.line}"]
    return []


def grouped(words: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The words of a command, each flag with its values."""
    groups: list[tuple[str, ...]] = []
    for word in words:
        if word.startswith("--"):
            groups.append((word,))
        else:
            groups[-1] = (*groups[-1], word)
    return groups


@contextlib.contextmanager
def stopped_after(step: int) -> Iterator[None]:
    """Within it, a signal reaches every training in its step of this number."""
    real = Stepper.step

    def stopping(self: Stepper, number: int, *given: Any, **named: Any) -> Any:
        if number == step:
            self.context.stop_signal = signal.SIGTERM
        return real(self, number, *given, **named)

    Stepper.step = stopping  # type: ignore[method-assign]
    try:
        yield
    finally:
        Stepper.step = real  # type: ignore[method-assign]


def resumed(bench: Bench, ran: Ran, row: Row) -> Problems:
    """Stopped by a signal in some step, and taken up."""
    last = ran.record.outcome["step"]
    step = random.Random(str(sorted(row.items()))).randint(1, max(last, 1))
    with stopped_after(step):
        first = bench.run(ran.command)
    if first.status != 143:
        return [f"stopped in step {step} of {last}: exit status {first.status}: {first.line}"]
    two = bench.run(ran.command, first.out)
    return _equal(ran, two, f"stopped after step {step} of {last} and resumed")


def reordered(bench: Bench, ran: Ran, row: Row) -> Problems:
    """Files that were written in another order, at another time, elsewhere."""
    kind = WORKS[row["work"]].images
    given = bench.places.data(kind, "packed" if row["data"] == "packed" else "folders")
    settings = read_yaml(given)
    place = bench.root / f"reordered{bench.commands}"
    files = sorted(path for path in Path(settings["root"]).rglob("*") if path.is_file())
    for path in reversed(files):
        target = place / "files" / path.relative_to(settings["root"])
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (place / given.name).write_text(write_yaml(settings | {"root": str(place / "files")}))
    words = [str(place / given.name) if word == str(given) else word for word in ran.command.words]
    two = bench.run(Command(ran.command.program, tuple(words), ran.command.ranks))
    return _equal(ran, two, "files in another order") + _same_identity(ran, two, "files in another order")


def in_company(bench: Bench, ran: Ran, row: Row) -> Problems:
    """The last of several seeds of one command."""
    two = bench.run(ran.command.with_words("--seeds", "3", "0"))
    if len(two.runs) != 2:
        return [f"--seeds 3 0: {len(two.runs)} records ({two.stderr.strip()[-200:]}): {two.line}"]
    (folder,) = [path for path in two.runs if path.name == ran.runs[0].name] or [None]
    if folder is None:
        return [f"--seeds 3 0: another identity: {two.line}"]
    parts = differing(ran.runs[0], folder)
    return [f"--seeds 3 0: seed 0 has other {', '.join(parts)}: {two.line}"] if parts else []


def whole(bench: Bench, ran: Ran, row: Row) -> Problems:
    """A subset that is the whole."""
    two = bench.run(ran.command.with_words("--subset", "1000"))
    return _equal(ran, two, "--subset 1000")


def packed(bench: Bench, ran: Ran, row: Row) -> Problems:
    """The same images in the same order as rows of Parquet files; only their names are others."""
    two = bench.of_row({**row, "data": "packed"})
    return _equal(ran, two, "Parquet files", ("sample",))


def scored_again(bench: Bench, ran: Ran, row: Row) -> Problems:
    """The weights that a training has left, scored by the task for it: as they were at its end."""
    folder = ran.runs[0]
    if not ran.record.scores:
        return []
    task, options = ("knn" if row["work"] == "dino" else "classify"), ran.record.options
    words = [task, *PLAIN, "--backbone", str(folder / "export"), "--dataset", options["dataset"][0]]
    for name in ("size", "resize", "eval_batch", "eval_precision", "subset"):
        if options[name] is not None:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    if options["eval_precision"] == "run":
        words[words.index("run")] = options["precision"]
    if task == "knn":
        words += ["--k", str(options["knn_k"]), "--temperature", str(options["knn_temperature"]), "--other-k"]
    if options.get("augment") == "bigvision":
        words += ["--view", "area"]
    two = bench.run(Command("run", tuple(words)))
    if two.status != 0:
        return [f"scored again: exit status {two.status} ({two.stderr.strip()[-300:]}): {two.line}"]
    first, second = outcomes_of(folder), outcomes_of(two.runs[0])
    apart = [name for name in first if not np.array_equal(first[name], second[name])]
    return [f"scored again: other {', '.join(apart)}: {two.line}"] if apart else []


def beside_other_features(bench: Bench, ran: Ran, row: Row) -> Problems:
    """With a store that holds the features of another view, precision and backbone."""
    out = bench.root / f"shared{bench.commands}"
    others = ("--eval-precision bf16", "--resize 48", "--mean 0.4 0.4 0.4", "--weights random --seeds 4")
    for words in others:
        if bench.run(ran.command.with_words(*words.split()), out).status != 0:
            return [f"{words}: {ran.line}"]
    two = bench.run(ran.command, out)
    (folder,) = [path for path in two.runs if path.name == ran.runs[0].name]
    parts = differing(ran.runs[0], folder)
    return [f"a store with other features: other {', '.join(parts)}: {two.line}"] if parts else []


def _always(row: Row) -> bool:
    return True


def _trains(row: Row) -> bool:
    return WORKS[row["work"]].trains


EQUALITIES = (
    Equality(
        "scored again",
        lambda row: row["work"] in ("finetune", "deit", "volo", "bigvision_i21k", "dino") and row["ranks"] == "1",
        scored_again,
    ),
    Equality("beside other features", lambda row: row["work"] == "fewshot", beside_other_features),
    Equality("again", _always, again),
    Equality("executed", _always, executed),
    Equality("spelt", lambda row: row["ranks"] == "1", spelt),
    Equality("repeated", lambda row: row["ranks"] == "1", repeated),
    Equality("resumed", lambda row: _trains(row) and row["ranks"] == "1", resumed),
    Equality("reordered", _always, reordered),
    Equality("in company", lambda row: WORKS[row["work"]].program == "run", in_company),
    Equality(
        "whole", lambda row: row["data"] in ("folders", "packed") and WORKS[row["work"]].images == "labelled", whole
    ),
    Equality("packed", lambda row: row["data"] in ("folders",) and WORKS[row["work"]].images == "labelled", packed),
)
