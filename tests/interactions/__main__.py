"""`python -m tests.interactions [--seed N] [--minutes M] [--folder F]`: joint features of commands, until time is up.

Every row of a pair covering, each with one relation to another command, then every option's change; then the next
seed. Prints what breaks an invariant with the line that repeats it, and counts; exit status 1 if anything does.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.interactions.approximations import APPROXIMATIONS, BY_TWO
from tests.interactions.bench import Bench, Finding
from tests.interactions.changes import CHANGES, IDLE
from tests.interactions.commands import command_of
from tests.interactions.covering import Row, cover, pairs_of
from tests.interactions.differences import Differences
from tests.interactions.equalities import EQUALITIES
from tests.interactions.invariants import broken
from tests.interactions.options import CONFLICTS, DEAR, FACTORS, USUAL, apart, conflict
from tests.interactions.places import Places

RELATIONS = (*EQUALITIES, *APPROXIMATIONS)


def related(bench: Bench, row: Row, chance: random.Random) -> list[Finding]:
    """What is wrong with the command of a row, and with its relation to one other command."""
    ran = bench.run(command_of(row, bench.places))
    found = [Finding(text, ran.line) for text in broken(ran, anew=True)]
    possible = [one for one in RELATIONS if one.applies(row) and not (one.name in BY_TWO and row["ranks"] == "2")]
    if not found:
        relation = chance.choice(possible)
        found = [Finding(f"{relation.name}: {text}", ran.line) for text in relation.check(bench, ran, row)]
    return found


def refused(bench: Bench) -> Iterator[list[Finding]]:
    """Of every conflict two choices that a command must refuse."""
    for one in CONFLICTS:
        if one.says is None:
            continue
        pairs = [((one.one[0], a), (one.two[0], b)) for a in one.one[1] for b in one.two[1]]
        pair = next((pair for pair in pairs if conflict(*pair) is one and not _others(pair)), None)
        if pair is None:
            continue
        ran = bench.run(command_of(USUAL | dict(pair), bench.places))
        yield [Finding(f"{dict(pair)}: {text}", ran.line) for text in broken(ran, one.says)]


def _others(pair: tuple[tuple[str, str], tuple[str, str]]) -> bool:
    """Whether either choice is in conflict with the usual ones."""
    rest = [choice for choice in USUAL.items() if choice[0] not in dict(pair)]
    return any(apart(choice, other) for choice in pair for other in rest)


def findings(bench: Bench, seed: int, told: "Counts") -> Iterator[list[Finding]]:
    """What each try finds, without end."""
    for number in range(seed, 2**31):
        chance = random.Random(number)
        rows = cover(FACTORS, apart, number, DEAR)
        told.missing = set().union(*map(pairs_of, rows))
        told.pairs, told.seeds = len(told.missing), told.seeds + 1
        for row in rows:
            told.missing -= pairs_of(row)
            yield related(bench, row, chance)
        yield from refused(bench)
        differences = Differences(bench)
        for change in CHANGES:
            yield differences.tried(change)
        for change in IDLE:
            yield differences.idled(change)


class Counts:
    """What has been tried."""

    missing: set[frozenset[tuple[str, str]]]
    pairs = seeds = 0


def main(argv: list[str]) -> int:
    """Runs until the time is up; 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.interactions", description=__doc__.partition("\n")[2])
    parser.add_argument("--seed", type=int, default=0, help="of the rows and of what they are compared with")
    parser.add_argument("--minutes", type=float, default=5.0, help="no try starts after so many")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "interactions", help="of data and runs"
    )
    given = parser.parse_args(argv)
    start, told, broke = time.monotonic(), Counts(), 0
    with Bench(given.folder / f"runs{given.seed}", Places(given.folder / "places")) as bench:
        for found in findings(bench, given.seed, told):
            broke += len(found)
            for finding in found:
                print(finding, flush=True)
            if time.monotonic() - start > 60 * given.minutes:
                break
        minutes = (time.monotonic() - start) / 60
        print(
            f"{bench.commands} commands in {minutes:.1f} minutes; seed {given.seed + told.seeds - 1}: "
            f"{told.pairs - len(told.missing)} of {told.pairs} pairs; {broke} findings"
        )
    return 1 if broke else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
