"""Two backbones, or the four of a 2 x 2, compared on the same samples. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from backbones.errors import UsageError, UserError, shortened
from transfer.comparison.bootstrap import AP_DRAWS, DRAWS, NotPaired
from transfer.comparison.estimates import Bootstrap, Estimates, Units, estimates, few_notes, means_alone, seed_notes
from transfer.comparison.pairing import ArmSelection, Exports, MatchedRuns, count_of, has_value, match, select_apart
from transfer.records.evidence import Evidence
from transfer.records.fields import check_fields, order, value_of
from transfer.records.grouping import dataset_label, machines_of_tasks, value_label
from transfer.records.store import Run
from transfer.report.tables.comparison_rows import comparison_table
from transfer.report.tables.render import RUN
from transfer.statistics.intervals import LEVEL, adjusted, breakdown_rate
from transfer.statistics.verdicts import Breakdowns, Kind, Verdict, broken_down, verdict_of

if TYPE_CHECKING:
    import pandas as pd

NO_INTERVAL = "no interval"
PERCENT = 100.0


@dataclass(frozen=True)
class Comparison:
    """What was compared, as values."""

    rows: list[dict[str, Any]]
    """With a `Verdict`; where the score can be resampled with `estimate` and `adjusted p`; means are in percent"""
    notes: list[str]
    how: Bootstrap

    def table(self) -> "pd.DataFrame":
        """As it is shown."""
        return comparison_table(self.rows, self.how, self.notes)


def compare(runs: Sequence[Run], a: str, b: str, **how: Any) -> "pd.DataFrame":
    """The table of `compared`, see there.

    `se of seeds` and `se of samples` are the two parts of the difference's standard error; one seed says nothing of the
    first. Runs that broke down have no score; how many they are stands in the row, with the interval of their rate.
    """
    return compared(runs, a, b, **how).table()


def compared(
    runs: Sequence[Run],
    a: str,
    b: str,
    *,
    draws: int = DRAWS,
    ap_draws: int = AP_DRAWS,
    correction: str = "holm",
    level: float = LEVEL,
    scores: Sequence[str] = (),
    margin: float | None = None,
    known: Sequence[Run] | None = None,
) -> Comparison:
    """a less b for each task, data set, protocol and score; the notes say what is behind the rows.

    Runs are paired by the samples' names, and by seeds as far as both sides have the same ones.

    Args:
        runs: all that may be compared.
        a, b: see `transfer.comparison.pairing.select`.
        draws: of the bootstrap. ap_draws: of COCO's scores.
        correction: of the p values over the table, "holm", "bh" or "none": primary scores are one family, other scores
            another.
        scores: names; by default all that can be resampled, of COCO's those over all sizes.
        margin: in points of scores in percent; smaller differences do not matter. Without it nothing is equivalent.
        known: all runs at hand, among which those are looked for that weights come from; by default `runs`.

    Raises:
        UsageError: a selector means nothing, or both mean one run.
        UserError: nothing can be compared. Where outcomes are missing, damaged or of other samples, a row has the means
            alone, and a note says why.
    """
    how = Bootstrap(draws, ap_draws, correction, level, tuple(scores), margin)
    evidence = Evidence.of([run.record for run in (runs if known is None else known)])
    exports = evidence.exports
    sides = select_apart((a, b), runs, exports)
    matches, notes = match(sides, exports)
    head = [f"{letter}: {side.text} ({count_of(side.runs)})" for letter, side in zip("ab", sides)]
    rows: list[dict[str, Any]] = []
    for one in matches:
        head += _differing(one, "sides")
        own = _compared(one, how, evidence)
        rows += own
        notes += one.notes + seed_notes(one, evidence, interval=any("estimate" in row for row in own))
    if not rows:
        raise UserError(f"nothing of '{a}' and '{b}' can be compared: {'; '.join(notes) or 'no task in common'}")
    return Comparison(_judged(rows, how), head + notes, how)


def interaction(runs: Sequence[Run], f: str, g: str, **how: Any) -> "pd.DataFrame":
    """The table of `crossed`, see there."""
    return crossed(runs, f, g, **how).table()


def crossed(
    runs: Sequence[Run],
    f: str,
    g: str,
    *,
    draws: int = DRAWS,
    ap_draws: int = AP_DRAWS,
    correction: str = "holm",
    level: float = LEVEL,
    scores: Sequence[str] = (),
    margin: float | None = None,
    known: Sequence[Run] | None = None,
) -> Comparison:
    """The 2 x 2 of two fields for each task, data set and score: simple effects and interaction.

    The interaction is the effect of f at g's first value less that at its second.

    Args:
        f, g: a field with two values among the runs, as stem, or field=value/value. Otherwise as `compared`.

    Raises:
        UsageError: there is no such field, or it has not two values.
        UserError: in no task all four corners have a score.
    """
    how = Bootstrap(draws, ap_draws, correction, level, tuple(scores), margin)
    evidence = Evidence.of([run.record for run in (runs if known is None else known)])
    exports = evidence.exports
    (name_f, values_f), (name_g, values_g) = (_two_values(text, runs, exports) for text in (f, g))
    fields = (name_f, name_g)
    sides = [_corner(runs, fields, (one, other), exports) for one in values_f for other in values_g]
    if empty := [side.text for side in sides if not side.runs]:
        raise UserError(f"no run with {'; none with '.join(empty)}")
    effects = {
        f"{name_f}: {values_f[0]} less {values_f[1]}, {name_g} {values_g[0]}": (1, 0, -1, 0),
        f"{name_f}: {values_f[0]} less {values_f[1]}, {name_g} {values_g[1]}": (0, 1, 0, -1),
        f"{name_g}: {values_g[0]} less {values_g[1]}, {name_f} {values_f[0]}": (1, -1, 0, 0),
        f"{name_g}: {values_g[0]} less {values_g[1]}, {name_f} {values_f[1]}": (0, 0, 1, -1),
        f"interaction of {name_f} and {name_g}": (1, -1, -1, 1),
    }
    matches, notes = match(sides, exports)
    rows: list[dict[str, Any]] = []
    for one in matches:
        broken = [side.text for side, own in zip(sides, one.sides) if all(run.record.training_failed for run in own)]
        if broken:
            notes.append(f"{one.label}: no interaction, since all runs broke down with {'; with '.join(broken)}")
            continue
        own = _crossed(one, [side.text for side in sides], effects, how, evidence)
        rows += own
        notes += (
            _differing(one, "corners")
            + one.notes
            + seed_notes(one, evidence, interval=any("estimate" in row for row in own))
        )
    if not rows:
        missing = "; ".join(notes) or "no task has all four corners under one protocol"
        raise UserError(f"no interaction of {name_f} and {name_g}: {missing}")
    return Comparison(_judged(rows, how), notes, how)


def _differing(one: MatchedRuns, what: str) -> list[str]:
    return [f"{one.label}: the {what} differ in {', '.join(one.differ)}"] if one.differ else []


def _corner(runs: Sequence[Run], fields: tuple[str, str], values: tuple[str, str], exports: Exports) -> ArmSelection:
    pairs = list(zip(fields, values, strict=True))
    own = [run for run in runs if all(has_value(run.record, name, value, exports) for name, value in pairs)]
    return ArmSelection(", ".join(f"{name} {value}" for name, value in pairs), own, fields)


def _judged(rows: list[dict[str, Any]], how: Bootstrap) -> list[dict[str, Any]]:
    """The rows with p values adjusted over them, and verdicts."""
    for family in (True, False):
        own = [row for row in rows if "estimate" in row and row["primary"] == family]
        ps = adjusted([row["estimate"].p for row in own], how.correction)
        for row, p in zip(own, ps, strict=True):
            row["adjusted p"] = p
            row["verdict"] = verdict_of(
                row["estimate"],
                p=p,
                higher=row["higher"],
                effect="effect" in row,
                tests=len(own) if how.correction != "none" else 1,
                margin=how.margin / PERCENT if how.margin and row["scale"] == PERCENT else None,
                advise=row["scale"] == PERCENT,
                breakdowns=row["breakdowns"],
                counted=row["counted"],
            )
    return rows


def _two_values(text: str, runs: Sequence[Run], exports: Exports) -> tuple[str, list[str]]:
    name, _, given = text.partition("=")
    check_fields([name], [run.record for run in runs], exports)
    values = {value_of(run.record, name, exports) for run in runs}
    there = [value_label(value) for value in sorted(values, key=order)]
    wanted = _in_two(given, name, runs, exports) if given else there
    if len(wanted) != 2 or len({*wanted}) != 2:
        raise UsageError(f"{name} has the values {shortened(there, 10)}; an interaction takes two: {name}=ONE/OTHER")
    return name, wanted


def _in_two(given: str, name: str, runs: Sequence[Run], exports: Exports) -> list[str]:
    """ONE/OTHER as two values that runs have; a value may hold slashes, as a path does."""
    words = given.split("/")
    pairs = [["/".join(words[:place]), "/".join(words[place:])] for place in range(1, len(words))]
    held = [pair for pair in pairs if all(any(has_value(r.record, name, v, exports) for r in runs) for v in pair)]
    return held[0] if held else pairs[0] if len(pairs) == 1 else words


def _compared(one: MatchedRuns, how: Bootstrap, evidence: Evidence) -> list[dict[str, Any]]:
    """A row for each score; one without numbers where a side has none."""
    head = _head(one, evidence.exports)
    units = [Units.of(runs, evidence) for runs in one.sides]
    broken = _broken(units, "ab")
    rates = {f"broke down {one.side}": breakdown_rate(one.broken, one.of) for one in broken}
    if not all(own.runs for own in units):
        verdict = broken_down(*(not own.runs for own in units))
        return [{**head, "score": one.first.primary, "verdict": verdict, **rates}]
    rows = []
    for name, found in _estimates(one, units, {"": (1, -1)}, how).items():
        scale = one.first.scale(name)
        row = {**head, "score": name, "a": scale * found.means[0], "b": scale * found.means[1]}
        rows.append(row | _found(found, "") | _marks(one, name) | rates | {"breakdowns": broken})
        one.notes += few_notes(one, name, found)
    return rows


def _broken(units: Sequence[Units], sides: Sequence[str]) -> tuple[Breakdowns, ...]:
    return tuple(Breakdowns(side, *own.arm.breakdowns) for side, own in zip(sides, units, strict=True))


def _estimates(
    one: MatchedRuns, units: Sequence[Units], effects: Mapping[str, Sequence[int]], how: Bootstrap
) -> dict[str, Estimates]:
    """Means and contrasts; means alone, and a note, where outcomes cannot be used."""
    alone = {name: Estimates(means, {}, {}) for name, means in means_alone(units, how).items()}
    found: dict[str, Estimates] = {}
    try:
        found = estimates(units, effects, how)
        if lacking := [name for name in alone if name not in found]:
            one.notes.append(f"{one.label}: no interval, since {', '.join(lacking)} is not one that samples add up to")
    except NotPaired as error:
        one.notes.append(f"{one.label}: no interval of {error.score}, since {error}")
        others = tuple(name for name in alone if name != error.score)
        found = _estimates(one, units, effects, replace(how, scores=others)) if others else {}
    except UserError as error:
        one.notes.append(f"{one.label}: no interval, since {error}")
    return alone | found


def _found(found: Estimates, label: str) -> dict[str, Any]:
    if label not in found.contrasts:
        return {"verdict": Verdict(Kind.NOT_COMPARABLE, (NO_INTERVAL,))}
    return {"estimate": found.contrasts[label], "counted": found.with_breakdowns.get(label)}


def _crossed(
    one: MatchedRuns, corners: Sequence[str], effects: Mapping[str, Sequence[int]], how: Bootstrap, evidence: Evidence
) -> list[dict[str, Any]]:
    head, rows = _head(one, evidence.exports), []
    units = [Units.of(runs, evidence) for runs in one.sides]
    broken = _broken(units, corners)
    for name, found in _estimates(one, units, effects, how).items():
        for label, coefficients in effects.items():
            means = [f"{one.first.scale(name) * mean:.2f}" for mean, c in zip(found.means, coefficients) if c]
            own = tuple(one for one, c in zip(broken, coefficients, strict=True) if c)
            row = {**head, "score": name, "effect": label, "means": ", ".join(means), "breakdowns": own}
            rate = breakdown_rate(sum(each.broken for each in own), sum(each.of for each in own))
            rows.append(row | _found(found, label) | _marks(one, name) | {"broke down": rate})
        one.notes += few_notes(one, name, found)
    return rows


def _head(one: MatchedRuns, exports: Exports) -> dict[str, Any]:
    records = [run.record for runs in one.sides for run in runs]
    made_on = sorted(machines_of_tasks(records)[one.first.task])
    head = {"task": one.first.task, "dataset": dataset_label(records, exports, made_on)}
    head |= {RUN: " ".join(record.run_id for record in records)}
    return head | ({"setting": one.setting} if one.setting else {})


def _marks(one: MatchedRuns, name: str) -> dict[str, Any]:
    """What the table needs of a row and does not show."""
    metric = next((run.record.metrics.get(name) for runs in one.sides for run in runs if run.record.scores), None) or {}
    primary = name == one.first.primary
    higher = metric.get("direction", "higher") == "higher"
    return {"higher": higher, "primary": primary, "scale": one.first.scale(name)}
