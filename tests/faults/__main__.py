"""Brings about faults and counts what was held:

python -m tests.faults [KIND ...] [--seconds N] [--seed N]     for so long in all, shared by the kinds
python -m tests.faults KIND --seed N --only K                  the K-th trial alone, as a failure's line names it

Kinds: bytes (a file is cut or changed, then read), kill (a command is killed or stopped at a random moment, then given
again).
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from itertools import count
from pathlib import Path

from tests.faults.damaged import DamagedFiles
from tests.faults.killed import Killed
from tests.faults.trial import NotHeldError

KINDS: dict[str, type[DamagedFiles] | type[Killed]] = {"bytes": DamagedFiles, "kill": Killed}
SHARES = {"bytes": 1.0, "kill": 3.0}
"""How the kinds share the time: a trial takes milliseconds in one, a minute in another."""


def tried(name: str, options: argparse.Namespace, seconds: float) -> int:
    """Bring about the faults of one kind for so long; print failures at once, then the counts; return the failures."""
    held, failed, end = Counter[str](), 0, 0.0
    with tempfile.TemporaryDirectory(prefix=f"faults-{name}-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        kind = KINDS[name](made)
        end = time.monotonic() + seconds
        for number in count() if options.only is None else [options.only]:
            folder = Path(scratch) / str(number)
            folder.mkdir()
            try:
                held[kind.trial(random.Random(f"{options.seed} {name} {number}"), folder)] += 1
            except Exception as error:  # of the campaign itself, too: the other faults are tried all the same
                if not isinstance(error, NotHeldError):
                    traceback.print_exc()
                failed += 1
                print(f"FAILED  {error}\n        python -m tests.faults {name} --seed {options.seed} --only {number}")
            if time.monotonic() > end:
                break
    ends = ", ".join(f"{how} {number}" for how, number in sorted(held.items()))
    print(f"{name}: {held.total() + failed} tried, {failed} failed ({ends})", flush=True)
    return failed


def main(argv: list[str]) -> int:
    """Print how many faults of each kind were tried and failed; return 1 when one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(KINDS)}; by default all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all kinds; each has one trial at least")
    parser.add_argument("--seed", type=int, default=0, help="that all trials are drawn from")
    parser.add_argument("--only", type=int, help="the number of a single trial, of one kind, to repeat")
    options = parser.parse_args(argv)
    if not KINDS.keys() >= {*options.kinds} or (options.only is not None and len(options.kinds) != 1):
        parser.error(f"name kinds of {', '.join(KINDS)}; one of them for --only")
    names = options.kinds or tuple(KINDS)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs in the background
    whole = sum(SHARES[name] for name in names)
    with tempfile.TemporaryDirectory(prefix="faults-cache-") as cache:
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = cache  # nothing of this stays in the user's
        return int(sum(tried(name, options, options.seconds * SHARES[name] / whole) for name in names) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
