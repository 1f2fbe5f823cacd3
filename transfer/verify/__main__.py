"""`python -m transfer.verify RUN...`: whether runs are as they were written, and their scores what their outcomes give.

Each run is held against itself: the record's own digest, the sha256 of its files, its identity, its scores (computed
anew from `outcomes.npz`, to the bit), its pictures, and its weights, where they are here. `--recompute` runs the whole
evaluation again, in float64 and by another statement of each metric. Nothing is trained, and nothing written.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from backbones.errors import UsageError, UserError
from backbones.settings import Positional, parse
from transfer.cli.command import exit_on_user_error
from transfer.records.store import RECORD, Run, Store, merged, store_in
from transfer.verify.recompute import Search
from transfer.verify.verification import Verdict, verify


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
            raise UsageError(f"--subset {self.subset}: must be 1 or more")
        if not self.recompute and (self.subset is not None or self.data is not None):
            raise UsageError("--subset and --data belong to --recompute")


def main(argv: list[str]) -> int:
    """Prints a verdict on each run; 1 when anything is wrong."""
    return exit_on_user_error(_main, argv)


def _main(argv: list[str]) -> int:
    options = parse(VerifyOptions, argv, prog="python -m transfer.verify")
    if not options.runs:
        raise UsageError("name a run's folder, a folder of runs, or a bundle; --help says more")
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


def recompute(verdict: Verdict, search: Search) -> None:
    """Adds to a verdict what comes of computing the run's scores anew."""
    from transfer.verify.recompute import recompute as computed

    if verdict.record is None:
        return
    try:
        found = computed(verdict.folder, verdict.record, search)
    except (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError, RuntimeError) as error:
        verdict.not_anew = f"not computed anew: the run's files are not as runs leave them ({error!r})"
        return
    verdict.wrong += found.wrong
    verdict.anew, verdict.not_anew = found.lines, found.missing.replace(str(verdict.folder), verdict.name)


def _folders(paths: tuple[Path, ...], opened: ExitStack) -> Iterator[tuple[Path, str]]:
    """The folders of runs that the words of the command mean, in order, and what to call them."""
    from transfer.records.bundle_file import unpacked

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
    """Run the console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
