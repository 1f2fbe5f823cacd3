"""Reads claims to be tested from a YAML file, such as those in `configs/claims/`. Imports neither torch nor pandas.

`docs/guide/claims.md` describes the keys and how each kind of row is judged.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from transfer.core.errors import UsageError, errors_together, kept, unknown
from transfer.core.options import as_items, check_keys, mapping
from transfer.core.settings import CONFIGS, config_names, read_yaml
from transfer.statistics.effects import VERDICTS

DIFFERENCE, EQUIVALENCE, INTERACTION = "difference", "equivalence", "interaction"
FAILURES, STABLE, CORRELATION, COUNT = "failure share", "largest stable rate", "rank correlation", "count"
ORDER = ("a > b", "a < b")
EQUAL = ("a = b", "a >= b", "a <= b")
EXPECTED = {
    DIFFERENCE: ORDER,
    EQUIVALENCE: EQUAL,
    INTERACTION: ("> 0", "< 0"),
    FAILURES: ORDER,
    STABLE: (*ORDER, *EQUAL),
    CORRELATION: ("> 0", "< 0"),
    COUNT: (*ORDER, "a = b"),
}
"""What a claim of each kind can expect."""
NEEDED = {
    DIFFERENCE: ("metric", "margin"),
    EQUIVALENCE: ("metric", "margin"),
    INTERACTION: ("a", "b", "metric", "margin"),
    FAILURES: ("margin",),
    STABLE: ("over", "margin"),
    CORRELATION: ("a", "metric", "against"),
    COUNT: ("metric",),
}
"""Keys that a row of each kind needs besides those of all, and `a` and `b`, or `pairs`, where variants are compared."""
CHOOSING = (DIFFERENCE, EQUIVALENCE, INTERACTION)
NOT_RUN_KEYS = ("why", "gpu_hours", "command")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row: a claim, the runs that test it, and what counts as support; `docs/guide/claims.md` explains each key."""

    id: str
    claim: str
    where: str
    kind: str = ""
    expect: str = ""
    runs: str = ""
    a: tuple[str, ...] = ()
    b: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    metric: str = ""
    against: str = ""
    margin: float | None = None
    choose: str = ""
    chosen_by: str = ""
    over: str = ""
    grid: tuple[Any, ...] = ()
    broken_below: float | None = None
    seeds: int = 1
    needs: int = 1
    detectable: float | None = None
    hours: float | None = None
    commands: tuple[str, ...] = ()
    limits: str = ""
    reading: Mapping[str, str] = field(default_factory=dict)
    """Sentences by verdict; those of all verdicts have an empty key."""
    changed: tuple[Mapping[str, str], ...] = ()
    not_run: Mapping[str, Any] = field(default_factory=dict)

    @property
    def arms(self) -> list[tuple[str, str]]:
        """The selectors of each two variants that are compared, with the conditions of all runs."""
        pairs = self.pairs or [(a, b) for a in self.a for b in self.b]
        return [(self.selector(a), self.selector(b)) for a, b in pairs]

    def selector(self, arm: str) -> str:
        """Return the selector of a variant with the conditions of all runs in front."""
        return ",".join(filter(None, (self.runs, arm)))


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The claims of a file."""

    title: str
    about: str
    claims: tuple[Claim, ...]
    limits: str = ""
    source: Path = Path()


KEYS = tuple(one.name for one in fields(Claim))
REQUIRED = tuple(one.name for one in fields(Claim) if one.default is MISSING and one.default_factory is MISSING)


def claim_names() -> list[str]:
    """Return the names of the shipped files of claims."""
    return config_names("claims")


def read_claims(name: str) -> Claims:
    """Return the claims of a shipped file by its name, or of a user's YAML file.

    Raises:
        UsageError: lists every unknown or missing key and every value that cannot be, with file, row and fix.
    """
    if Path(name).suffix not in (".yaml", ".yml") and name not in claim_names():
        raise unknown("file of claims", name, claim_names(), "; or a YAML file")
    path = Path(name) if Path(name).suffix else CONFIGS / "claims" / f"{name}.yaml"
    content, where = read_yaml(path), str(path)
    check_keys(content, ("title", "about", "limits", "claims"), where, needed=("title", "about", "claims"))
    claims: list[Claim] = []
    with errors_together():
        for number, row in enumerate(as_items(content["claims"], f"{where}: claims"), 1):
            with kept():
                claims.append(_claim(mapping(row, f"{where}: row {number}"), f"{where}: row {number}"))
            if claims and claims[-1].id in [one.id for one in claims[:-1]]:
                raise UsageError(f"{where}: row {number}: the id {claims[-1].id!r} is duplicated; rename one")
    texts = {key: str(content.get(key, "")) for key in ("title", "about", "limits")}
    return Claims(**texts, claims=tuple(claims), source=path)


def _claim(row: dict[str, Any], where: str) -> Claim:
    where = f"{where} ({row['id']})" if "id" in row else where
    check_keys(row, KEYS, where, needed=REQUIRED)
    values: dict[str, Any] = dict(row)
    for key in ("a", "b", "commands", "changed", "pairs", "grid"):
        values[key] = tuple(_as_list(row.get(key)))
    values["reading"] = _reading(row.get("reading"), where)
    values["not_run"] = mapping(row.get("not_run", {}), f"{where}: not_run")
    with errors_together():
        for one in values["changed"]:
            with kept():
                check_keys(mapping(one, f"{where}: changed"), ("date", "what"), where, needed=("date", "what"))
                if not re.fullmatch(r"\d{4}-\d\d-\d\d", str(one["date"])):
                    raise UsageError(f"{where}: changed: {one['date']!r} is not a date; write 2030-12-31")
        for key, (kinds, low) in _NUMBERS.items():
            with kept():
                _check_number(values, key, kinds, low, where)
        with kept():
            if values["not_run"]:
                check_keys(values["not_run"], NOT_RUN_KEYS, f"{where}: not_run", needed=NOT_RUN_KEYS)
            else:
                _check_kind(values, where)
    values["pairs"] = tuple(map(tuple, values["pairs"]))
    return Claim(**values)


_NUMBERS: Mapping[str, tuple[tuple[type, ...], float]] = {
    **dict.fromkeys(("margin", "broken_below", "detectable", "hours"), ((int, float), 0)),
    **dict.fromkeys(("seeds", "needs"), ((int,), 1)),
}


def _check_number(row: Mapping[str, Any], key: str, kinds: tuple[type, ...], low: float, where: str) -> None:
    if key in row and (not isinstance(row[key], kinds) or isinstance(row[key], bool) or row[key] < low):
        what = "a whole number" if kinds == (int,) else "a number"
        raise UsageError(f"{where}: `{key}` must be {what} from {low} on, not {row[key]!r}")


def _check_kind(row: Mapping[str, Any], where: str) -> None:
    kind, expect = row.get("kind", ""), row.get("expect")
    if kind not in EXPECTED:
        raise UsageError(f"{where}: `kind` must be one of {', '.join(EXPECTED)}, not {kind!r}")
    if expect not in EXPECTED[kind]:
        raise UsageError(f"{where}: `expect` must be one of {', '.join(EXPECTED[kind])}, not {expect!r}")
    needed = NEEDED[kind] if row["pairs"] or "a" in NEEDED[kind] else ("a", "b", *NEEDED[kind])
    if missing := [key for key in needed if not row.get(key)]:
        raise UsageError(f"{where}: a row of kind {kind!r} needs `{missing[0]}`")
    if row["pairs"] and (row["a"] or row["b"]):
        raise UsageError(f"{where}: use `pairs`, or `a` and `b`")
    if bad := [pair for pair in row["pairs"] if not isinstance(pair, list) or len(pair) != 2]:
        raise UsageError(f"{where}: each of `pairs` must be a list of two selectors, not {bad[0]!r}")
    if bool(row.get("choose")) != bool(row.get("chosen_by")) or (row.get("choose") and kind not in CHOOSING):
        raise UsageError(f"{where}: `choose` and `chosen_by` belong together, in a row of kind {' or '.join(CHOOSING)}")
    if row.get("choose") and row["chosen_by"] == row["metric"]:
        raise UsageError(f"{where}: `chosen_by` must be a validation metric, not the `metric` {row['metric']!r} itself")
    if row.get("broken_below") is not None and not row.get("over"):
        raise UsageError(f"{where}: `broken_below` needs `over`, over whose values the best score is taken, as lr")
    if row["grid"] and not (row.get("choose") or row.get("over")):
        raise UsageError(f"{where}: `grid` needs `choose` or `over`, whose values it lists")
    if row.get("needs", 1) > row.get("seeds", 1):
        raise UsageError(f"{where}: `needs` {row['needs']} seeds, but `seeds` has {row.get('seeds', 1)}; raise `seeds`")


def _reading(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        return {"": str(value)} if value else {}
    check_keys(value, VERDICTS, f"{where}: reading")
    return {key: str(text) for key, text in value.items()}


def _as_list(value: Any) -> Sequence[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
