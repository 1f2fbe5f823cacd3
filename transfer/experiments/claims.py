"""Reads claims to be tested from a YAML file, such as those in `configs/claims/`. Imports neither torch nor pandas.

`docs/guide/claims.md` describes the keys and how each kind of row is judged.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from transfer.core.errors import UsageError, errors_together, kept, reject, unknown
from transfer.core.options import as_items, check_keys, mapping
from transfer.core.settings import CONFIGS, config_names, read_yaml
from transfer.experiments.step import as_list
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
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


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
    row = {key: value for key, value in row.items() if value is not None}  # null unsets a key of an anchor
    check_keys(row, KEYS, where, needed=REQUIRED)
    reading = row.get("reading") or {}
    values: dict[str, Any] = {**row, "reading": reading if isinstance(reading, dict) else {"": str(reading)}}
    values |= {key: tuple(as_list(row.get(key))) for key in ("a", "b", "commands", "changed", "pairs", "grid")}
    with errors_together():
        for text in _faults(values):
            reject(f"{where}: {text}")
    return Claim(**values)


def _faults(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield everything that is wrong with the values of a row."""
    for key in ("margin", "broken_below", "detectable", "hours", "seeds", "needs"):
        value, whole = row.get(key, 1), key in ("seeds", "needs")
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or value < whole:
            yield f"`{key}` must be {'a whole number from 1' if whole else 'a number from 0'} on, not {value!r}"
    for one in row["changed"]:
        if not isinstance(one, dict) or {*one} != {"date", "what"} or not _DATE.fullmatch(str(one["date"])):
            yield f"`changed` must be a list of {{date: 2030-12-31, what: TEXT}}, not of {one!r}"
    if unknown_keys := [key for key in row["reading"] if key not in (*VERDICTS, "")]:
        yield f"`reading` must have {', '.join(VERDICTS)}, or be one text, not {unknown_keys[0]!r}"
    if missing := row.get("not_run"):
        if not isinstance(missing, dict) or {*missing} != {*NOT_RUN_KEYS}:
            yield f"`not_run` must have {', '.join(NOT_RUN_KEYS)}, not {missing!r}"
    elif (kind := row.get("kind", "")) not in EXPECTED:
        yield f"`kind` must be one of {', '.join(EXPECTED)}, not {kind!r}"
    else:
        yield from _faults_of_kind(row, kind)


def _faults_of_kind(row: Mapping[str, Any], kind: str) -> Iterator[str]:
    if row.get("expect") not in EXPECTED[kind]:
        yield f"`expect` must be one of {', '.join(EXPECTED[kind])}, not {row.get('expect')!r}"
    needed = NEEDED[kind] if row["pairs"] or "a" in NEEDED[kind] else ("a", "b", *NEEDED[kind])
    if missing := [key for key in needed if not row.get(key)]:
        yield f"a row of kind {kind!r} needs `{missing[0]}`"
    if row["pairs"] and (row["a"] or row["b"]):
        yield "use `pairs`, or `a` and `b`"
    if bad := [pair for pair in row["pairs"] if not isinstance(pair, list) or len(pair) != 2]:
        yield f"each of `pairs` must be a list of two selectors, not {bad[0]!r}"
    if bool(row.get("choose")) != bool(row.get("chosen_by")) or (row.get("choose") and kind not in CHOOSING):
        yield f"`choose` and `chosen_by` belong together, in a row of kind {' or '.join(CHOOSING)}"
    if row.get("choose") and row.get("chosen_by") == row.get("metric"):
        yield f"`chosen_by` must be a validation metric, not the `metric` {row['metric']!r} itself"
    if row.get("broken_below") is not None and not row.get("over"):
        yield "`broken_below` needs `over`, over whose values the best score is taken, as lr"
    if row["grid"] and not (row.get("choose") or row.get("over")):
        yield "`grid` needs `choose` or `over`, whose values it lists"
    if row.get("needs", 1) > row.get("seeds", 1):
        yield f"`needs` {row['needs']} seeds, but `seeds` has {row.get('seeds', 1)}; raise `seeds`"
