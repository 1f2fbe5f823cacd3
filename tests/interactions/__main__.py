"""`python -m tests.interactions [--seed N] [--minutes M]`: options put together, until time is up.

Commands are drawn from the dataclasses of the options: of every task and recipe some options at a time have other
values, until every pair has stood together. Each command must come to a sound record or be refused in one line, and
stands in one relation to another command. Prints what breaks that with the line that repeats it; exit status 1 if
anything does.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.interactions.commands import Bench
from tests.interactions.generator import choices, rows, works
from tests.interactions.invariants import broken
from tests.interactions.places import Places
from tests.interactions.relations import RELATIONS

WIDTH = 3
"""Options that have other values at a time: of more, most commands are refused."""


def tried(bench: Bench, work: str, names: list[str], rng: random.Random, relation: str) -> tuple[list[str], bool]:
    """What is wrong with a command with other values of these options; and whether it came to a record."""
    ran, left = bench.with_options(work, names, rng)
    found = [f"{work} with {', '.join(left)}: {text}\n    {ran.line}" for text in broken(ran)]
    if not found and ran.status in (0, 3):
        found = [f"{relation}: {text}\n    {ran.line}" for text in RELATIONS[relation](bench, ran, rng)]
    return found, ran.status in (0, 3)


def main(argv: list[str]) -> int:
    """Run until the time is up; 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.interactions", description=__doc__.partition("\n")[2])
    parser.add_argument("--seed", type=int, default=0, help="of rows, values and relations")
    parser.add_argument("--minutes", type=float, default=5.0, help="no try starts after so many")
    given = parser.parse_args(argv)
    start, rng = time.monotonic(), random.Random(given.seed)
    counts = {"records": 0, "refusals": 0, "findings": 0}
    with tempfile.TemporaryDirectory(prefix="interactions-") as scratch:
        bench = Bench(Path(scratch) / "runs", Places(Path(scratch) / "places"))
        waiting = {work: rows(sorted(choices(work)), WIDTH, rng) for work in works()}
        while waiting and time.monotonic() - start < 60 * given.minutes:
            work = rng.choice(sorted(waiting))
            if (names := next(waiting[work], None)) is None:
                del waiting[work]
                continue
            found, recorded = tried(bench, work, names, rng, rng.choice(sorted(RELATIONS)))
            counts["records" if recorded else "refusals"] += 1
            counts["findings"] += len(found)
            for text in found:
                print(text, flush=True)
    told = ", ".join(f"{number} {name}" for name, number in counts.items())
    print(f"{bench.commands} commands in {(time.monotonic() - start) / 60:.1f} minutes: {told}")
    return int(counts["findings"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
