"""`python -m transfer.verify RUN...`: whether runs are as they were written, and their scores what their outcomes give.

Each run is held against itself: the record's own digest, the sha256 of its files, its identity, its scores (computed
anew from `outcomes.npz`, to the bit), its pictures, and its weights, where they are here. `--recompute` runs the whole
evaluation again, in float64 and by another statement of each metric. Nothing is trained, and nothing written.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from backbones.errors import UserError, WrongWords
from backbones.settings import Positional, parse
from transfer.cli import guarded
from transfer.recomputing import Search
from transfer.report import store_in
from transfer.results import RECORD, Record, Run, Store, merged
from transfer.verifying import check_files, check_identity, check_pictures, check_scores, check_weights


@dataclass(kw_only=True)
class VerifyOptions:
    """Which runs to verify."""

    runs: Positional[tuple[Path, ...]]
    """Folders of a run each, folders of runs or of sweeps, or files that `python -m transfer.report --bundle` wrote."""
    weights: Path | None = None
    """Folder to look for the weights in, by default where the runs found them."""
    recompute: bool = False
    """Compute every score anew in float64 on the CPU from the weights, features or detections that are here, by plain
    and slow statements of the metrics (tasks/reference), and hold it against the record."""
    subset: int | None = None
    """With --recompute: this many queries or images of each run, evenly spaced; by default all."""
    data: Path | None = None
    """With --recompute: folder with the data sets, by default where the runs found them."""

    def __post_init__(self) -> None:
        if self.subset is not None and self.subset < 1:
            raise WrongWords(f"--subset {self.subset}: must be 1 or more")
        if not self.recompute and (self.subset is not None or self.data is not None):
            raise WrongWords("--subset and --data belong to --recompute")


@dataclass
class Verdict:
    """What was found in one run."""

    folder: Path
    name: str
    """What it is called in messages: the folder, or a bundle and the run within."""
    wrong: list[str] = field(default_factory=list)
    """What is not as it was written."""
    notes: list[str] = field(default_factory=list)
    """What could not be looked at, and what is different on this machine."""
    record: Record | None = None
    anew: list[str] = field(default_factory=list)
    """Scores in the record and computed anew, as lines of a table."""
    not_anew: str = ""
    """Why scores that were to be computed anew could not be."""

    @property
    def right(self) -> bool:
        """Whether nothing is wrong, and the record is of a version that says what it can be held against."""
        return bool(not self.wrong and self.record and self.record.files and self.record.identity_content)

    def __str__(self) -> str:
        said = "WRONG" if self.wrong else "right" if self.right else "not checkable"
        lines = [f"{said}  {self.name}"]
        lines += [*self.wrong, self.not_anew] if self.not_anew else self.wrong
        return "\n       ".join([*lines, *self.anew, *(f"({note})" for note in self.notes)])


def main(argv: list[str]) -> int:
    """Prints a verdict on each run; 1 when anything is wrong."""
    return guarded(_main, argv)


def _main(argv: list[str]) -> int:
    options = parse(VerifyOptions, argv, prog="python -m transfer.verify")
    if not options.runs:
        raise WrongWords("name a run's folder, a folder of runs, or a bundle; --help says more")
    verdicts = []
    with ExitStack() as opened:
        for folder, name in _folders(options.runs, opened):
            verdicts.append(verify(folder, options.weights, name))
            if options.recompute:
                recompute(verdicts[-1], Search(options.weights, options.data, options.subset))
            print(verdicts[-1])
    runs = [Run(verdict.folder, verdict.record) for verdict in verdicts if verdict.record]
    disputes = merged(runs)[1]
    for dispute in disputes:
        print(f"WRONG  {dispute}")
    wrong, right = (sum(map(bool, held)) for held in zip(*((one.wrong, one.right) for one in verdicts)))
    left = len(verdicts) - wrong - right
    print(f"{right} of {len(verdicts)} runs are right" + (f", {left} not checkable" if left else ""))
    missing = [verdict for verdict in verdicts if verdict.not_anew]
    if missing:
        print(f"{len(missing)} of {len(verdicts)} runs were not computed anew")
    return int(bool(wrong or disputes or missing))


def verify(folder: Path, weights: Path | None = None, name: str = "") -> Verdict:
    """Looks at everything that can be looked at in a run's folder.

    Args:
        weights: folder in which the weights are looked for, below which they may lie; None: where the run found them.
        name: of the run in messages, by default its folder.
    """
    verdict = Verdict(folder, name or str(folder))
    try:
        record = verdict.record = Record.read(folder / RECORD, edited=True)
    except UserError as error:
        verdict.wrong.append(str(error).replace(str(folder), verdict.name))
        return verdict
    try:
        Record.read(folder / RECORD)
    except UserError:
        verdict.wrong.append(f"{RECORD}: edited after it was written")
    try:
        found = [check_files(folder, record), check_identity(folder, record), check_scores(folder, record)]
        found += [check_pictures(folder), check_weights(folder, record, weights)]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        found = [([f"{RECORD}: holds what no run writes ({error!r})"], [])]
    for wrong, notes in found:
        verdict.wrong += wrong
        verdict.notes += notes
    differing = differences_here(record)
    verdict.notes += [f"other than here: {'; '.join(differing)}"] if differing else []
    return verdict


def recompute(verdict: Verdict, search: Search) -> None:
    """Adds to a verdict what comes of computing the run's scores anew."""
    from transfer.recomputing import recompute as computed

    if verdict.record is None:
        return
    try:
        found = computed(verdict.folder, verdict.record, search)
    except (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError, RuntimeError) as error:
        verdict.not_anew = f"not computed anew: the run's files are not as runs leave them ({error!r})"
        return
    verdict.wrong += found.wrong
    verdict.anew, verdict.not_anew = found.lines, found.missing.replace(str(verdict.folder), verdict.name)


def differences_here(record: Record) -> list[str]:
    """What differs between the environment that a run was made in and this one, as `name THERE there, HERE here`."""
    there, here = record.environment, _here()
    flat_there, flat_here = (
        {key: value for key, value in given.items() if key != "versions"} | given.get("versions", {})
        for given in (there, here)
    )
    # what a precision resolves to depends on the machine where it was left to it alone
    said = [name for name in ("precision", "eval_precision") if record.options.get(name) != "auto"]
    ignored = ("started", "workers", "threads_why", "tf32", *said)
    names = [name for name in flat_there if name not in ignored]
    return [
        f"{name} {flat_there[name]} there, {flat_here.get(name)} here"
        for name in names
        if flat_there[name] != flat_here.get(name)
    ]


@lru_cache
def _here() -> dict[str, Any]:
    from backbones.engine.context import Context, choose_device
    from backbones.engine.dist import ALONE
    from backbones.engine.precision import choose_precision
    from transfer.environment import environment

    device = choose_device("auto", ALONE)
    automatic = choose_precision("auto", device)
    return environment(Context(device, automatic, automatic))


def _folders(paths: tuple[Path, ...], opened: ExitStack) -> Iterator[tuple[Path, str]]:
    """The folders of runs that the words of the command mean, in order, and what to call them."""
    from transfer.bundles import unpacked

    for path in paths:
        given = path.parent if path.name == RECORD else path
        folder = opened.enter_context(unpacked(given)) if given.is_file() else given
        if (folder / RECORD).exists():
            yield folder, str(folder)
            continue
        folder = folder if given.is_file() else store_in(folder).root
        found = sorted(record.parent for record in folder.glob(f"*/{RECORD}"))
        if not found:
            raise UserError(f"{path}: neither a run with a {RECORD}, nor a folder with such runs, nor a bundle")
        yield from ((run, f"{given}/{run.name}" if given.is_file() else str(run)) for run in found)
        for left in Store(folder).unfinished():
            print(
                f"no record: {left.folder}: {left.state}{f' ({left.reason})' if left.reason else ''}", file=sys.stderr
            )


def command() -> None:
    """Entry point of the console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
