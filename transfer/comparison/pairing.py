"""Which runs stand against which: selectors of a side, and groups in which all sides are under equal conditions.

Imports neither torch nor pandas.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backbones.errors import UsageError, did_you_mean, shortened
from backbones.user_code import digest, is_user_part
from transfer.records.fields import as_value, check_fields, value_of
from transfer.records.grouping import content_label, value_label
from transfer.records.protocol import (
    PRETRAINING,
    backbone_of,
    by_export,
    differences,
    digest_of,
    in_pretraining,
    pretraining,
    protocol,
)
from transfer.records.store import Record, Run

Exports = Mapping[str, Record]


@dataclass(frozen=True)
class ArmSelection:
    """Some runs, how they were chosen, and the fields that chose them."""

    text: str
    runs: list[Run]
    fields: tuple[str, ...] = ()


@dataclass
class MatchedRuns:
    """Runs of each side under one protocol, and equal in all of the backbone and its pretraining that can be equal."""

    sides: list[list[Run]]
    setting: str = ""
    """The fields that tell it from other matches of its task and data set"""
    differ: list[str] = field(default_factory=list)
    """The fields in which the sides differ, those that chose them first"""
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> Record:
        """Any of the records: the protocol is the same in all."""
        return self.sides[0][0].record

    @property
    def label(self) -> str:
        """Task, data set and setting, for notes and errors."""
        text = f"{self.first.task} on {self.first.dataset.get('name')}"
        return f"{text} ({self.setting})" if self.setting else text


def select(text: str, runs: Sequence[Run], exports: Exports) -> ArmSelection:
    """The runs that a selector means.

    Args:
        text: a run's id or folder, the name of a backbone, or field=value[,field=value], the fields as
            `transfer.records.fields.value_of` knows them.

    Raises:
        UsageError: it means none.
    """
    if own := [run for run in runs if text.rstrip("/") == run.record.run_id or _is_folder(text, run.folder)]:
        return ArmSelection(text, own)
    if "=" in text:
        return _by_fields(text, runs, exports)
    if own := [run for run in runs if run.record.backbone.get("name") == text]:
        return ArmSelection(text, own)
    names = sorted({str(run.record.backbone.get("name")) for run in runs})
    ids = [run.record.run_id for run in runs]
    raise UsageError(
        f"'{text}' is neither a run nor a backbone of these runs{did_you_mean(text, [*names, *ids])} "
        f"(backbones: {shortened(names, 10)}; or choose with field=value, as stem=conv)"
    )


def select_apart(texts: Sequence[str], runs: Sequence[Run], exports: Exports) -> list[ArmSelection]:
    """A side for each selector. Raises UsageError where one means none, or two mean the same run."""
    sides = [select(text, runs, exports) for text in texts]
    for place, side in enumerate(sides):
        for other in sides[:place]:
            ids = {run.record.run_id for run in side.runs}
            if both := [run.record.run_id for run in other.runs if run.record.run_id in ids]:
                raise UsageError(f"'{other.text}' and '{side.text}' both mean {shortened(both, 3)}")
    return sides


def _is_folder(text: str, folder: Path) -> bool:
    return Path(text).is_dir() and Path(text).resolve() == folder.resolve()


def _by_fields(text: str, runs: Sequence[Run], exports: Exports) -> ArmSelection:
    wanted = {}
    for part in re.split(r",(?=[A-Za-z_][\w.]*=)", text):
        name, _, value = part.partition("=")
        wanted[name.strip()] = value.strip()
    check_fields(wanted, [run.record for run in runs], exports)
    left = list(runs)
    for name, value in wanted.items():
        own = [run for run in left if has_value(run.record, name, value, exports)]
        if not own:
            there = sorted({value_label(value_of(run.record, name, exports)) for run in left})
            raise UsageError(
                f"'{text}': no run has {name}={value}{did_you_mean(value, there)} (there is {shortened(there, 10)})"
            )
        left = own
    return ArmSelection(text, left, tuple(wanted))


def has_value(record: Record, name: str, text: str, exports: Exports) -> bool:
    """Whether a field of a record has the value that someone wrote."""
    return is_value(value_of(record, name, exports), as_value(record, name, text, exports))


def is_value(value: Any, text: str) -> bool:
    """Whether a field's value is what someone wrote."""
    if text in (str(value), value_label(value)):
        return True
    if is_user_part(text) and Path(text.rpartition(":")[0]).is_file():
        return f"sha256:{digest(text)}:{text.rpartition(':')[2]}" == value  # a user's part counts by its content
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return float(text) == value
    except ValueError:
        return False


def match(sides: Sequence[ArmSelection], exports: Exports) -> tuple[list[MatchedRuns], list[str]]:
    """Groups of runs that can be compared, in order of task and data set, and notes on what cannot.

    The protocol must be equal but for the fields that chose the sides. So must be every field of the backbone and of
    its pretraining that the sides can have in common. A field that they never share, as one that a part brings with it,
    is noted instead.
    """
    without = {name for side in sides for name in side.fields}
    protocols: dict[str, list[list[Run]]] = {}
    for place, side in enumerate(sides):
        for run in side.runs:
            key = digest_of(protocol(run.record, without))
            protocols.setdefault(key, [[] for _ in sides])[place].append(run)
    matches: list[MatchedRuns] = []
    notes = _unmatched(sides, protocols, without)
    for group in protocols.values():
        if all(group):
            found, more = _settings(group, sides, without, exports)
            matches += found
            notes += more
    notes += _left_over(sides, matches, exports)
    return sorted(matches, key=lambda one: (one.first.task, str(one.first.dataset.get("name")), one.setting)), notes


def _left_over(sides: Sequence[ArmSelection], matches: Sequence[MatchedRuns], exports: Exports) -> list[str]:
    """How many runs are in no match, so that none is dropped without a word."""
    used = {run.folder for one in matches for runs in one.sides for run in runs}
    notes = []
    for side in sides:
        left: dict[str, list[Run]] = {}
        for run in side.runs:
            if run.folder not in used:
                left.setdefault(f"{run.record.task} on {run.record.dataset.get('name')}", []).append(run)
        for place, runs in left.items():
            broken = sum(run.record.training_failed for run in runs)
            said = f", {broken} of which broke down" if broken else ""
            notes.append(f"{place}: {count_of(runs)} of '{side.text}' in no row{said}")
            others = (_lost(other, runs, exports) for other in sides if other is not side)
            notes += [f"{place}: {why}" for why in others if why]
    return notes


def _lost(side: ArmSelection, runs: Sequence[Run], exports: Exports) -> str:
    """Where runs have no counterpart since all that it would have started from broke down."""
    before = {parent.task for run in runs if (parent := pretraining(run.record, exports))}
    own = [run for run in side.runs if run.record.task in (runs[0].record.task, *before)]
    if not own or not all(run.record.training_failed and run.record.task in before for run in own):
        return ""
    return f"'{side.text}' has nothing there, since {len(own)} of {len(own)} trainings before it broke down"


def _unmatched(
    sides: Sequence[ArmSelection], protocols: Mapping[str, list[list[Run]]], without: Collection[str]
) -> list[str]:
    """What is on several sides, but never under one protocol."""
    places: dict[tuple[str, Any], list[list[list[Run]]]] = {}
    for group in protocols.values():
        first = next(runs[0] for runs in group if runs).record
        places.setdefault((first.task, first.dataset.get("name")), []).append(group)
    notes = []
    for (task, dataset), groups in places.items():
        present = [any(group[place] for group in groups) for place in range(len(sides))]
        if any(all(group) for group in groups) or sum(present) < 2:
            continue
        records = [runs[0].record for group in groups for runs in group if runs]
        names = list(differences([protocol(record, without) for record in records]))
        said = ", ".join(names) or "nothing, but a side is missing"
        notes.append(f"{task} on {dataset}: not compared, since the protocols differ in {said}")
    return notes


def _settings(
    group: list[list[Run]], sides: Sequence[ArmSelection], without: Collection[str], exports: Exports
) -> tuple[list[MatchedRuns], list[str]]:
    """The matches of one protocol."""
    facts = [[_facts(run.record, without, exports) for run in runs] for runs in group]
    names = list(dict.fromkeys(name for one in facts for fact in one for name in fact))
    values = {name: [{repr(fact.get(name)) for fact in one} for one in facts] for name in names}
    shared = [name for name in names if set.intersection(*values[name])]
    apart = [name for name in names if name not in shared]
    found: dict[str, list[list[Run]]] = {}
    of_key: dict[str, dict[str, Any]] = {}
    for place, (runs, own) in enumerate(zip(group, facts)):
        for run, fact in zip(runs, own):
            common = {name: fact.get(name) for name in shared}
            key = digest_of(common)
            of_key[key] = common
            found.setdefault(key, [[] for _ in sides])[place].append(run)
    full = {key: MatchedRuns(runs) for key, runs in found.items() if all(runs)}
    telling = _telling([of_key[key] for key in full])
    matches, notes = [], []
    for key, one in full.items():
        one.setting = content_label(of_key[key] | _as_named(one.first, telling), telling)
        mixed = _check(one, sides, apart, without, exports)
        notes += mixed
        matches += [] if mixed else [one]
    return matches, notes


def _telling(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields that tell settings apart; of pretraining by different methods the methods, where these are enough."""
    names = list(differences(contents))
    method = f"{PRETRAINING}task"
    short = [name for name in names if name == method or not name.startswith(PRETRAINING)]
    enough = method in short and len({content_label(content, short) for content in contents}) == len(contents)
    return short if enough else names


def _facts(record: Record, without: Collection[str], exports: Exports) -> dict[str, Any]:
    """What a backbone and its pretraining are, besides weights and seed."""
    backbone = backbone_of(record, without)
    hidden = {*without, "name", "load", *(() if backbone.get("length") == "train" else ("train_size",))}
    found = {name: value for name, value in backbone.items() if name not in hidden}
    return found | _of_weights(record, without, exports)


def _of_weights(record: Record, without: Collection[str], exports: Exports) -> dict[str, Any]:
    """Where weights come from: of trainings that are known their protocols, of others what the record says of them."""
    parent = pretraining(record, exports)
    if parent is None:
        return {"weights": record.origin.get("training") or record.weights_id}
    hidden = set(in_pretraining(without, record.backbone))
    behind = protocol(parent, hidden) | _of_weights(parent, hidden, exports)
    return {"weights": "trained"} | {f"{PRETRAINING}{name}": value for name, value in behind.items()}


def _check(
    one: MatchedRuns, sides: Sequence[ArmSelection], apart: Sequence[str], without: Collection[str], exports: Exports
) -> list[str]:
    """Notes on the fields that the sides never share; returns what makes a side a mixture, which is not compared."""
    contents = []
    # beside weights of another kind it goes without saying where these come from
    apart = [name for name in apart if not (name.startswith(PRETRAINING) and "weights" in apart)]
    for side, runs in zip(sides, one.sides):
        facts = [{name: _facts(run.record, without, exports).get(name) for name in apart} for run in runs]
        if mixed := list(differences(facts)):
            return [
                f"{one.label}: not compared, since the runs of '{side.text}' differ in {', '.join(mixed)}; narrow it"
            ]
        contents.append(facts[0])
    chosen = [name for name in sorted(without) if len({repr(value) for value in _values(one, name, exports)}) > 1]
    one.differ = [*chosen, *(name for name in apart if name not in chosen)]
    if apart:
        named = (content | _as_named(runs[0].record, apart) for content, runs in zip(contents, one.sides))
        said = dict.fromkeys(content_label(content, apart) for content in named)
        one.notes.append(f"{one.label}: besides, the sides have {' against '.join(said)}")
    return []


def _values(one: MatchedRuns, name: str, exports: Exports) -> list[Any]:
    return [value_of(run.record, name, exports) for runs in one.sides for run in runs]


def _as_named(record: Record, names: Sequence[str]) -> dict[str, Any]:
    """The fields of the backbone as the record has them, where that is shorter than what they are compared by."""
    return {name: record.backbone[name] for name in names if name in record.backbone and name != "weights"}


def known_exports(runs: Sequence[Run]) -> Exports:
    """The pretraining runs among these by what they exported."""
    return by_export(run.record for run in runs)


def count_of(runs: Sequence[Run]) -> str:
    """How many runs, in words."""
    return f"{len(runs)} run{'s' * (len(runs) != 1)}"
