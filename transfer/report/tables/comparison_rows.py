"""The rows of a comparison as a table: verdicts in words, notes folded.

Numbers are in percent points, or in the score's own unit. Imports no torch.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transfer.comparison.estimates import Bootstrap
from transfer.report.tables.render import NOTES, RUN, SIGNIFICANT
from transfer.statistics.intervals import Estimate
from transfer.statistics.verdicts import POINT, Kind, Verdict

if TYPE_CHECKING:
    import pandas as pd

PERCENT = 100.0
COLUMNS = (
    *("difference", "low", "high", "se of seeds", "se of samples", "p", "adjusted p"),
    *("verdict", "seeds", "clusters", "draws"),
)


_UNSEEN = ("estimate", "counted", "breakdowns", "higher", "primary", "scale")


def comparison_table(rows: list[dict[str, Any]], how: Bootstrap, notes: Sequence[str]) -> "pd.DataFrame":
    """The rows as they are shown.

    Args:
        rows: with a `Verdict`, the score's `scale`, and whether it is the `primary` one; where there are any with
            `estimate` and `adjusted p`.
    """
    import pandas as pd

    said = []
    for family in (True, False):
        own = [row for row in rows if "estimate" in row and row["primary"] == family]
        said += [f"{len(own)} {'primary' if family else 'other'} scores"] if own else []
    overall = _overall([row for row in rows if row.get("primary", True)])
    rows = [
        row
        | (_numbers(row["estimate"], row["scale"]) if "estimate" in row else {})
        | {"verdict": sentence(row["verdict"], row.get("scale", PERCENT))}
        for row in rows
    ]
    table = pd.DataFrame(rows).drop(columns=list(_UNSEEN), errors="ignore")
    table = table.drop(columns=[name for name in COLUMNS if name in table and table[name].isna().all()])
    last = [name for name in table if str(name).startswith("broke down")]
    middle = [name for name in COLUMNS if name in table]
    first = [name for name in table if name not in middle and name not in last and name != RUN]
    table = table[[*first, *middle, *last, RUN]]
    corrected = f"adjusted p: {how.correction} over the {' and over the '.join(said)}; each interval is its row's own"
    corrected += f"; a smallest detectable difference is at the level {1 - how.level:g} divided by their number"
    adjustment = [corrected] if said and how.correction != "none" else []
    table.attrs[NOTES] = [*_folded([*notes, *adjustment]), *overall]
    fractions = any(row.get("scale", PERCENT) == PERCENT for row in rows)
    table.attrs[SIGNIFICANT] = ["p", "adjusted p", *(() if fractions else ("a", "b", *COLUMNS))]
    return table


def sentence(verdict: Verdict, scale: float = PERCENT) -> str:
    """A verdict in words, its numbers as tables print them."""
    return _of_survivors(_sentence(verdict, scale), verdict, scale)


def _of_survivors(said: str, verdict: Verdict, scale: float) -> str:
    """The same with how many broke down, and how the difference stands where these count as guessing."""
    if not verdict.breakdowns:
        return said
    broken = ", ".join(f"{own.side} {own.broken} of {own.of}" for own in verdict.breakdowns if own.broken)
    said = f"{said}; of survivors alone: broke down {broken}"
    if (counted := verdict.counted) is None:
        return said
    numbers = (f"{scale * one:+.1f}" for one in (counted.estimate, counted.low, counted.high))
    return f"{said}; with these at chance {next(numbers)} [{', '.join(numbers)}]"


def _sentence(verdict: Verdict, scale: float) -> str:
    kind = verdict.kind
    if kind is Kind.NOT_COMPARABLE:
        return "; ".join(verdict.reasons)
    if kind in _BROKEN:
        return f"nothing to compare: {_BROKEN[kind]} broke down"
    margin = "" if verdict.margin is None else _number(verdict.margin, scale)
    if kind is Kind.EQUIVALENT:
        alike = "no difference on any sample; " if verdict.equal else ""
        return f"{alike}equivalent within {margin}" if verdict.margin else "no difference at all"
    if kind is not Kind.CANNOT_TELL:
        return kind.value + (f", by less than {margin}" if verdict.within else "")
    alike = ", though equal on every sample" if verdict.equal else ""
    smallest = verdict.smallest if verdict.smallest is not None else math.inf
    detectable = f"smallest detectable {_number(smallest, scale)}" if smallest < math.inf else "too few to show any"
    return f"{kind.value}{alike}; {detectable}{_advice(verdict, scale)}"


_BROKEN = {Kind.A_BROKE_DOWN: "a", Kind.B_BROKE_DOWN: "b", Kind.BOTH_BROKE_DOWN: "a and b"}


def _number(value: float, scale: float) -> str:
    return format(scale * value, ".1f" if scale == PERCENT else ".2g")


def _advice(verdict: Verdict, scale: float) -> str:
    """On seeds, where more of them would show a point."""
    if not verdict.seeds:
        return ""
    if verdict.seeds < 0:
        return f" (more seeds will not show {_number(POINT, scale)})"
    return f" ({verdict.seeds} more seed{'s' * (verdict.seeds > 1)} each for {_number(POINT, scale)})"


def _overall(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The verdicts on the primary scores in one line; none of a table of effects."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if "effect" not in row:
            verdict: Verdict = row["verdict"]
            short = "; ".join(verdict.reasons) if verdict.kind is Kind.NOT_COMPARABLE else verdict.kind.value
            short += " among survivors" if verdict.breakdowns else ""
            found.setdefault(short, []).append(f"{row['task']} {row['dataset'].partition(' ')[0]}")
    words = [f"{short} in {len(where)} ({', '.join(where)})" for short, where in found.items()]
    total = sum(map(len, found.values()))
    return [f"verdict over {total} primary score{'s' * (total != 1)}: {'; '.join(words)}"] if words else []


def _folded(notes: Sequence[str]) -> list[str]:
    """The notes, what several say alike said once: `reid on a; reid on b: one seed ...`."""
    found: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        where, _, what = note.rpartition(": ")
        found.setdefault(what, []).append(where)
    return ["; ".join(filter(None, where)) + (": " if any(where) else "") + what for what, where in found.items()]


def _numbers(estimate: Estimate, scale: float) -> dict[str, Any]:
    one = set(estimate.seeds) == {1}
    sizes = dict.fromkeys(estimate.seeds)
    seeds = (
        f"{estimate.seeds[0]} in pairs" if estimate.paired else ", ".join(map(str, sizes if one else estimate.seeds))
    )
    return {
        "difference": scale * estimate.estimate,
        "low": scale * estimate.low,
        "high": scale * estimate.high,
        "se of seeds": None if estimate.seed_error is None else scale * estimate.seed_error,
        "se of samples": scale * estimate.cluster_error,
        "p": estimate.p,
        "seeds": seeds,
        "clusters": estimate.clusters,
        "draws": estimate.draws,
    }
