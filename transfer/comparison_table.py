"""The rows of a comparison as a table: p values adjusted over it, verdicts in words, notes folded.

Numbers are in percent points, or in the score's own unit. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transfer.estimating import Bootstrap
from transfer.statistics import Estimate, adjusted
from transfer.tables import NOTES, RUN, SIGNIFICANT

if TYPE_CHECKING:
    import pandas as pd

PERCENT = 100.0
COLUMNS = (
    *("difference", "low", "high", "se of seeds", "se of samples", "p", "adjusted p"),
    *("verdict", "seeds", "clusters", "draws"),
)


def comparison_table(rows: list[dict[str, Any]], how: Bootstrap, notes: Sequence[str]) -> "pd.DataFrame":
    """The rows with p values adjusted over the table, and verdicts.

    Args:
        rows: with `estimate` where there is one, and what is not shown: `higher` (is better), `primary`, `scale`.
    """
    import pandas as pd

    said = []
    for family in (True, False):
        own = [row for row in rows if "estimate" in row and row["primary"] == family]
        said += [f"{len(own)} {'primary' if family else 'other'} scores"] if own else []
        ps = adjusted([row["estimate"].p for row in own], how.correction)
        for row, p in zip(own, ps):
            row |= _numbers(row["estimate"], row["scale"]) | {"adjusted p": p}
            tests = len(own) if how.correction != "none" else 1
            row["verdict"] = verdict(row["estimate"], p=p, higher=row["higher"], tests=tests, scale=row["scale"])
            if "effect" in row and row["verdict"].endswith("better"):  # of effects there is no a and b
                row["verdict"] = "above 0" if row["estimate"].estimate > 0 else "below 0"
    overall = _overall([row for row in rows if row.get("primary", True)])
    table = pd.DataFrame(rows).drop(columns=["estimate", "higher", "primary", "scale"], errors="ignore")
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


def _overall(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The verdicts on the primary scores in one line; none of a table of effects."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if "effect" not in row:
            short = str(row["verdict"]).partition(";")[0].partition(":")[0]
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


def verdict(
    estimate: Estimate, *, p: float | None = None, higher: bool = True, tests: int = 1, scale: float = PERCENT
) -> str:
    """What a difference a - b says in words; numbers are multiplied by `scale`, which makes fractions percent points.

    Args:
        p: the adjusted p value; by default the estimate's own.
        higher: whether a higher score is better.
        tests: see `Estimate.smallest_difference`.
    """
    if not estimate.error and not estimate.estimate:
        return "no difference at all"
    if (estimate.p if p is None else p) < 1 - estimate.level:
        return "a better" if (estimate.estimate > 0) == higher else "b better"
    smallest = format(scale * estimate.smallest_difference(tests=tests), ".1f" if scale == PERCENT else ".2g")
    return f"no difference shown; smallest detectable {smallest}"
