"""Brings about faults and counts what was held:

python -m tests.faults [KIND ...] [--seconds N] [--seed N]     for so long in all, shared by the kinds
python -m tests.faults KIND --seed N --only K                  the K-th trial alone, as a failure's line names it

Kinds: bytes (a file is changed, then read), disk (it is full, read-only, gone, or fails), hostile (files and names made
to do harm), kill (a command is interrupted, then given again), numbers (features and data that no score can be made
from), records (a value of a finished record is changed and sealed again, then shown in all forms), replaced (what a
command reads becomes another), soak (a sweep is killed), together (several processes on one thing). `--record` appends
the counts to held.csv, which the documentation quotes.
"""

import csv
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from backbones.errors import UsageError
from backbones.settings import Positional, parse

from tests.faults.damaged.files import DamagedFiles
from tests.faults.damaged.records import DamagedRecords
from tests.faults.disk.failing_disk import FailingDisk
from tests.faults.hostile import HostileFiles
from tests.faults.killed_runs import KilledRuns
from tests.faults.killed_sweeps import KilledSweeps
from tests.faults.odd_numbers import OddNumbers
from tests.faults.replaced import Replaced
from tests.faults.together import Together
from tests.faults.trial import Kind, NotHeldError, NotReachedError, Tally

KINDS = {
    "bytes": DamagedFiles,
    "disk": FailingDisk,
    "hostile": HostileFiles,
    "kill": KilledRuns,
    "numbers": OddNumbers,
    "records": DamagedRecords,
    "replaced": Replaced,
    "soak": KilledSweeps,
    "together": Together,
}
SHARES = {"disk": 2.5, "hostile": 0.5, "kill": 2.0, "numbers": 0.5, "replaced": 1.5, "soak": 0.75}
"""The weights of kinds other than 1 in sharing the time: a trial takes milliseconds in one, a minute in another."""
TABLE = Path(__file__).resolve().parent / "held.csv"


@dataclass(kw_only=True)
class FaultOptions:
    """Bring about faults, and count those that did no harm."""

    kinds: Positional[tuple[str, ...]] = ()
    """Kinds of faults; by default all."""
    seconds: float = 60.0
    """The time for all kinds together, without their preparation. Each has one trial at least."""
    seed: int = 0
    """The seed that all trials are drawn from."""
    only: int | None = None
    """The number of a single trial to repeat."""
    record: bool = False
    """Whether the counts are appended to held.csv."""

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in KINDS:
                raise UsageError(f"there is no kind '{kind}' (kinds: {', '.join(KINDS)})")
        if self.only is not None and len(self.kinds) != 1:
            raise UsageError("--only repeats a trial of one kind; name it")


def tallied(name: str, options: FaultOptions, seconds: float) -> Tally:
    """Bring about the faults of one kind for so long, and count them; failures are printed at once."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix=f"faults-{name}-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        kind: Kind = KINDS[name](made)
        for number in _numbers(options.only, time.monotonic() + seconds):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            try:
                how = kind.trial(random.Random(f"{options.seed} {name} {number}"), folder)
                tally.held[how] = tally.held.get(how, 0) + 1
            except NotReachedError:
                tally.not_reached += 1
            except Exception as error:  # of the campaign itself, too: the other faults are tried all the same
                if not isinstance(error, NotHeldError):
                    traceback.print_exc()
                tally.failed.append(str(error))
                print(f"FAILED  {error}\n        python -m tests.faults {name} --seed {options.seed} --only {number}")
    return tally


def _numbers(only: int | None, end: float) -> Iterator[int]:
    if only is not None:
        yield only
        return
    for number in count():
        yield number
        if time.monotonic() > end:
            return


def main(argv: list[str]) -> int:
    """Print how many faults of each kind were tried, held and failed; return 1 when one failed."""
    options = parse(FaultOptions, argv, prog="python -m tests.faults")
    names = options.kinds or tuple(KINDS)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs in the background
    with tempfile.TemporaryDirectory(prefix="faults-cache-") as cache:
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = cache  # nothing of this stays in the user's
        whole = sum(SHARES.get(name, 1.0) for name in names)
        tallies = {name: tallied(name, options, options.seconds * SHARES.get(name, 1.0) / whole) for name in names}
    for name, tally in tallies.items():
        held = tally.tried - len(tally.failed)
        ends = [f"{how} {number}" for how, number in sorted(tally.held.items())]
        ends += [f"not reached {tally.not_reached}"] if tally.not_reached else []
        print(f"{name}: {tally.tried} tried, {held} held, {len(tally.failed)} failed ({', '.join(ends)})")
    if options.record:
        _append(options, tallies)
    return int(any(tally.failed for tally in tallies.values()))


def _append(options: FaultOptions, tallies: dict[str, Tally]) -> None:
    new = not TABLE.exists()
    about = [options.seed, options.seconds, this_machine(), datetime.now(UTC).date().isoformat(), this_commit()]
    with TABLE.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(["kind", "tried", "held", "failed", "seed", "seconds", "machine", "date", "commit"])
        for name, tally in tallies.items():
            writer.writerow([name, tally.tried, tally.tried - len(tally.failed), len(tally.failed), *about])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        sys.exit(f"error: {error}")
