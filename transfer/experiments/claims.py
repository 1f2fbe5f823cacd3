"""Reads claims to be tested from a YAML file, such as those in `configs/claims/`. Imports neither torch nor pandas.

`docs/guide/claims.md` describes the keys and how each kind of row is judged.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain, product
from math import inf
from pathlib import Path
from typing import Any

from transfer.core.errors import UsageError, errors_together, kept, reject
from transfer.core.options import as_items, as_list, check_keys, mapping
from transfer.core.settings import config_path, read_yaml
from transfer.statistics.verdicts import VERDICTS

DIFFERENCE, EQUIVALENCE, INTERACTION = "difference", "equivalence", "interaction"
FAILURES, HALF_SCORE, CORRELATION, COUNT = "failure share", "half-score rate", "rank correlation", "count"
ORDER, EQUAL, SIGN = ("a > b", "a < b"), ("a = b", "a >= b", "a <= b"), ("> 0", "< 0")
RULES = {
    DIFFERENCE: (ORDER, ("metric", "margin")),
    EQUIVALENCE: (EQUAL, ("metric", "margin")),
    INTERACTION: (SIGN, ("metric", "margin")),
    FAILURES: ((*ORDER, *EQUAL), ("metric", "margin")),
    HALF_SCORE: ((*ORDER, *EQUAL), ("metric", "over", "margin")),
    CORRELATION: (SIGN, ("metric", "against")),
    COUNT: ((*ORDER, "a = b"), ("metric",)),
}
"""What a claim of each kind can expect, and the keys that its row needs besides those of all."""
UNDERTRAINED = "undertrained"
"""What stands in the place of a verdict on training that gained too little."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row: a claim, the runs that test it, and what counts as support; `docs/guide/claims.md` explains each key."""

    id: str
    """Name of the row; required."""
    claim: str
    """The claim as a sentence; required."""
    where: str
    """Where the paper states it; required."""
    printed: str = ""
    """What the paper prints there."""
    authors: str = ""
    """What its authors would call support."""
    own: bool = False
    """Whether the paper does not state it: a row of a table of its own, without part in the paper's count."""
    kind: str = ""
    """Kind of the claim, see below."""
    expect: str = ""
    """Expected effect, see below."""
    runs: str = ""
    """Selector that all runs of the row meet."""
    a: tuple[str, ...] = ()
    """Selectors of one side, as for `--compare`; of a list, each `a` is compared with each `b`."""
    b: tuple[str, ...] = ()
    """Selectors of the other side."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Instead of `a` and `b`: the comparisons one by one, `[[A, B], [A, B]]`."""
    metric: str = ""
    """What is compared, see below."""
    against: str = ""
    """Second metric of a rank correlation."""
    margin: float | None = None
    """Smallest relevant difference: in points for scores in percent, else in the metric's unit; of half-score
    rates in doublings."""
    choose: str = ""
    """Field, such as `lr`, whose value is chosen for each variant by the highest mean of `chosen_by`."""
    chosen_by: str = ""
    """Validation metric of `choose`, other than `metric`."""
    over: str = ""
    """Field with the rates of a half-score rate, or over which runs of a failure share are counted together."""
    grid: tuple[Any, ...] = ()
    """Values of `choose` or `over` that count; each variant must have all."""
    untrained: Mapping[str, str] = field(default_factory=dict)
    """By side, the selector of the same network untrained (`--epochs 0`, or a task from `weights=random`); `runs`
    does not apply."""
    floor: Mapping[str, Any] = field(default_factory=dict)
    """Score that both sides must exceed, such as `{value: 11.2, what: "raw pixels"}`."""
    seeds: int = 1
    """Planned seeds per side."""
    needs: int = 1
    """Fewest seeds per side for a verdict."""
    detectable: float | None = None
    """Smallest difference that the row can show, as registered."""
    hours: float | None = None
    """Predicted hours."""
    commands: tuple[str, ...] = ()
    """Commands that repeat the row."""
    limits: str = ""
    """What differs from the paper."""
    reading: Mapping[str, str] = field(default_factory=dict)
    """Sentences for the document, by verdict."""
    changed: tuple[Mapping[str, str], ...] = ()
    """Later changes: a list of `date`, `what`, and the verdict `before`."""
    not_run: Mapping[str, Any] = field(default_factory=dict)
    """Instead of `kind` and the rest: `{why: ..., gpu_hours: 12, command: ...}`."""

    @property
    def comparisons(self) -> list[tuple[str, str]]:
        """The selectors of each two variants that are compared, without the conditions of all runs."""
        if self.kind == CORRELATION:
            return [("; ".join(self.a), "")]
        return [(a, b) for a, b in self.pairs or product(self.a, self.b)]

    @property
    def varied(self) -> str:
        """The field in which the runs of a variant differ besides the seed, such as lr; empty without one."""
        return self.choose or self.over

    def selector(self, variant: str) -> str:
        """Return the selector of a variant with the conditions of all runs in front."""
        return ",".join(filter(None, (self.runs, variant)))


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The claims of a file."""

    title: str
    about: str
    claims: tuple[Claim, ...]
    methods: str = ""
    limits: str = ""
    source: Path = Path()


CLAIM_KEYS, NEEDED_KEYS = tuple(item.name for item in fields(Claim)), ("id", "claim", "where")
CHOSEN = ("kind", "expect")
"""Keys that have a choice of texts."""


def read_claims(name: str) -> Claims:
    """Return the claims of a shipped file by its name, or of a user's YAML file.

    Raises:
        UsageError: lists every unknown or missing key and every value that cannot be, with file, row and fix.
    """
    path = config_path("claims", "claims file", name)
    content = read_yaml(path)
    check_keys(
        content, ("title", "about", "methods", "limits", "claims"), str(path), needed=("title", "about", "claims")
    )
    claims: dict[str, Claim] = {}
    with errors_together():
        for number, row in enumerate(as_items(content["claims"], f"{path}: claims"), 1):
            with kept():
                claim = _claim(mapping(row, f"{path}: row {number}"), f"{path}: row {number}")
                if claim.id in claims:
                    raise UsageError(f"{path}: row {number}: the id {claim.id!r} is duplicated; rename one")
                claims[claim.id] = claim
    return Claims(**content | {"claims": tuple(claims.values()), "source": path})


def _claim(row: dict[str, Any], where: str) -> Claim:
    where += f" ({row['id']})" if "id" in row else ""
    check_keys(row, CLAIM_KEYS, where, needed=NEEDED_KEYS)
    lists = {key: tuple(as_list(row.get(key))) for key in ("a", "b", "pairs", "grid", "commands", "changed")}
    claim = Claim(**row | lists)
    _check_inner(claim.reading, f"{where}: reading", (), (*VERDICTS, UNDERTRAINED))
    for change in claim.changed:
        _check_inner(change, f"{where}: changed", ("date", "what"), ("before",))
    if claim.floor != {}:
        _check_inner(claim.floor, f"{where}: floor", ("value", "what"))
    if claim.not_run:
        _check_inner(claim.not_run, f"{where}: not_run", ("why", "gpu_hours", "command"))
    with errors_together():
        for text in _faults(claim):
            reject(f"{where}: {text}")
    return claim


def _check_inner(value: Any, where: str, needed: tuple[str, ...], others: tuple[str, ...] = ()) -> None:
    check_keys(mapping(value, where), (*needed, *others), where, needed=needed)


def _faults(claim: Claim) -> Iterator[str]:
    """Yield everything that is wrong with the values of a row."""
    for item in fields(claim):
        key, value = item.name, getattr(claim, item.name)
        if item.type is bool and not isinstance(value, bool):
            yield f"`{key}` must be true or false, not {value!r}"
        elif item.type is int and (type(value) is not int or value < 1):
            yield f"`{key}` must be a whole number from 1 on, not {value!r}"
        elif item.type == float | None and not (value is None or (type(value) in (int, float) and 0 <= value < inf)):
            yield f"`{key}` must be a number from 0 on, not {value!r}"
        elif item.type in (str, tuple[str, ...]) and key not in CHOSEN:
            for text in as_list(value):
                if not isinstance(text, str) or (key in NEEDED_KEYS and not text.strip()):
                    yield f"`{key}` must be text, not {text!r}"
    if not isinstance(value := claim.floor.get("value", 0), int | float):
        yield f"`value` of `floor` must be a number, not {value!r}"
    if claim.not_run:
        return
    if claim.kind not in RULES:
        yield f"`kind` must be one of {', '.join(RULES)}, not {claim.kind!r}"
        return
    expected, needed = RULES[claim.kind]
    if claim.expect not in expected:
        yield f"`expect` must be one of {', '.join(expected)}, not {claim.expect!r}"
    together = ("choose", "chosen_by") if claim.choose or claim.chosen_by else ()
    if missing := [key for key in (*needed, *together) if getattr(claim, key) in (None, "", ())]:
        yield f"a row of kind {claim.kind!r} with these keys needs `{missing[0]}`"
    if bool(claim.pairs) == bool(claim.a and (claim.b or claim.kind == CORRELATION)):
        yield "give `pairs`, or `a` and `b`"
    if bad := [pair for pair in claim.pairs if not (isinstance(pair, list) and [*map(type, pair)] == [str, str])]:
        yield f"each of `pairs` must be a list of two selectors, not {bad[0]!r}"
    elif claim.untrained and (unlike := claim.untrained.keys() ^ {*chain.from_iterable(claim.comparisons)}):
        yield f"`untrained` must have each side of the comparisons and no other key; see {min(unlike)!r}"
    if (claim.untrained or claim.floor) and (claim.choose or claim.kind not in (DIFFERENCE, EQUIVALENCE)):
        yield "`untrained` and `floor` belong to a difference or equivalence without `choose`"
    if claim.choose and (claim.over or claim.chosen_by == claim.metric):
        yield "`chosen_by` must be a validation metric, not `metric` itself; and a row has no `over` beside `choose`"
