"""Which runs are compared: groups in which all arms are under equal conditions, and why others are in none.

Imports neither torch nor pandas.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transfer.comparison.exclusions import Exclusion, MixedArm, NoCounterpart, ProtocolsDiffer, UnusedRuns
from transfer.comparison.selection import Exports, Selection
from transfer.records.fields import value_of
from transfer.records.labels import content_label
from transfer.records.protocol import (
    PRETRAINING,
    backbone_of,
    differences,
    digest_of,
    in_pretraining,
    pretraining,
    protocol,
)
from transfer.records.store import Record, Run


@dataclass
class MatchedRuns:
    """Runs of each arm under one protocol, and equal in all of the backbone and its pretraining that can be equal.

    Attributes:
        arms: the runs of each arm.
        setting: the fields that tell it from other matches of its task and data set, with their values.
        differing: the fields in which the arms differ, those that chose them first.
        unshared: for each arm the fields, with their values, that the arms never share though nobody chose by them.
    """

    arms: list[list[Run]]
    setting: str = ""
    differing: list[str] = field(default_factory=list)
    unshared: list[dict[str, Any]] = field(default_factory=list)

    @property
    def first(self) -> Record:
        """Any of the records: the protocol is the same in all."""
        return self.arms[0][0].record

    @property
    def records(self) -> list[Record]:
        """The records of all arms."""
        return [run.record for runs in self.arms for run in runs]

    @property
    def label(self) -> str:
        """Task, data set and setting, as notes name them."""
        text = place_of(self.first)
        return f"{text} ({self.setting})" if self.setting else text


@dataclass(frozen=True)
class Matching:
    """The groups of runs that are compared, in order of task and data set, and what is not."""

    matches: list[MatchedRuns]
    exclusions: list[Exclusion]


def place_of(record: Record) -> str:
    """Return the task and the data set of a record: "reid on market1501"."""
    return f"{record.task} on {record.dataset.get('name')}"


def match(arms: Sequence[Selection], exports: Exports) -> Matching:
    """Return the groups of runs that can be compared, and why the others cannot.

    The protocol must be equal but for the fields that chose the arms. So must be every field of the backbone and of
    its pretraining that the arms can have in common. A field that they never share, as one that a part brings with it,
    is kept in `MatchedRuns.unshared` instead.
    """
    chosen = {name for arm in arms for name in arm.fields}
    protocols: dict[str, list[list[Run]]] = {}
    for place, arm in enumerate(arms):
        for run in arm.runs:
            key = digest_of(protocol(run.record, chosen))
            protocols.setdefault(key, [[] for _ in arms])[place].append(run)
    matches: list[MatchedRuns] = []
    exclusions: list[Exclusion] = [*_unmatched(len(arms), protocols, chosen)]
    for group in protocols.values():
        if all(group):
            matching = _settings(group, arms, chosen, exports)
            matches += matching.matches
            exclusions += matching.exclusions
    exclusions += _unused(arms, matches, exports)
    matches.sort(key=lambda matched: (matched.first.task, str(matched.first.dataset.get("name")), matched.setting))
    return Matching(matches, exclusions)


def _unused(arms: Sequence[Selection], matches: Sequence[MatchedRuns], exports: Exports) -> Iterator[Exclusion]:
    """Yield what is in no match, so that no run is dropped without a word."""
    used = {run.folder for matched in matches for runs in matched.arms for run in runs}
    for arm in arms:
        unused: dict[str, list[Run]] = {}
        for run in arm.runs:
            if run.folder not in used:
                unused.setdefault(place_of(run.record), []).append(run)
        for place, runs in unused.items():
            yield UnusedRuns(place, arm.text, len(runs), sum(run.record.training_failed for run in runs))
            for other in arms:
                trainings = 0 if other is arm else _lost(other, runs, exports)
                if trainings:
                    yield NoCounterpart(place, other.text, trainings)


def _lost(arm: Selection, runs: Sequence[Run], exports: Exports) -> int:
    """Return how many trainings of an arm broke down before they could be a counterpart; 0 where any run is there."""
    before = {parent.task for run in runs if (parent := pretraining(run.record, exports))}
    there = [run.record for run in arm.runs if run.record.task in (runs[0].record.task, *before)]
    return len(there) if all(record.training_failed and record.task in before for record in there) else 0


def _unmatched(
    arms: int, protocols: Mapping[str, list[list[Run]]], chosen: Collection[str]
) -> Iterator[ProtocolsDiffer]:
    """Yield what several arms have, but never under one protocol."""
    places: dict[str, list[list[list[Run]]]] = {}
    for group in protocols.values():
        first = next(runs[0] for runs in group if runs).record
        places.setdefault(place_of(first), []).append(group)
    for place, groups in places.items():
        present = [any(group[arm] for group in groups) for arm in range(arms)]
        if any(all(group) for group in groups) or sum(present) < 2:
            continue
        records = [runs[0].record for group in groups for runs in group if runs]
        yield ProtocolsDiffer(place, tuple(differences([protocol(record, chosen) for record in records])))


def _settings(group: list[list[Run]], arms: Sequence[Selection], chosen: Collection[str], exports: Exports) -> Matching:
    """Return the matches among the runs [arms][runs] of one protocol."""
    facts = [[_facts(run.record, chosen, exports) for run in runs] for runs in group]
    names = list(dict.fromkeys(name for of_arm in facts for fact in of_arm for name in fact))
    values = {name: [{repr(fact.get(name)) for fact in of_arm} for of_arm in facts] for name in names}
    shared = [name for name in names if set.intersection(*values[name])]
    apart = [name for name in names if name not in shared]
    groups: dict[str, list[list[Run]]] = {}
    contents: dict[str, dict[str, Any]] = {}
    for place, (runs, of_arm) in enumerate(zip(group, facts, strict=True)):
        for run, fact in zip(runs, of_arm, strict=True):
            common = {name: fact.get(name) for name in shared}
            key = digest_of(common)
            contents[key] = common
            groups.setdefault(key, [[] for _ in arms])[place].append(run)
    complete = {key: MatchedRuns(runs) for key, runs in groups.items() if all(runs)}
    telling = _telling([contents[key] for key in complete])
    matching = Matching([], [])
    for key, matched in complete.items():
        matched.setting = content_label(contents[key] | _as_named(matched.first, telling), telling)
        mixed = _describe(matched, arms, apart, chosen, exports)
        if mixed is None:
            matching.matches.append(matched)
        else:
            matching.exclusions.append(mixed)
    return matching


def _telling(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields that tell settings apart; of pretraining by different methods the methods, where these are enough."""
    names = list(differences(contents))
    method = f"{PRETRAINING}task"
    short = [name for name in names if name == method or not name.startswith(PRETRAINING)]
    enough = method in short and len({content_label(content, short) for content in contents}) == len(contents)
    return short if enough else names


def _facts(record: Record, chosen: Collection[str], exports: Exports) -> dict[str, Any]:
    """Return what a backbone and its pretraining are, besides weights and seed."""
    backbone = backbone_of(record, chosen)
    hidden = {*chosen, "name", "load", *(() if backbone.get("length") == "train" else ("train_size",))}
    parts = {name: value for name, value in backbone.items() if name not in hidden}
    return parts | _of_weights(record, chosen, exports)


def _of_weights(record: Record, chosen: Collection[str], exports: Exports) -> dict[str, Any]:
    """Where weights come from: of trainings that are known their protocols, of others what the record says of them."""
    parent = pretraining(record, exports)
    if parent is None:
        return {"weights": record.origin.get("training") or record.weights_id}
    hidden = set(in_pretraining(chosen, record.backbone))
    behind = protocol(parent, hidden) | _of_weights(parent, hidden, exports)
    return {"weights": "trained"} | {f"{PRETRAINING}{name}": value for name, value in behind.items()}


def _describe(
    matched: MatchedRuns, arms: Sequence[Selection], apart: Sequence[str], chosen: Collection[str], exports: Exports
) -> MixedArm | None:
    """Write into a match in what its arms differ; return why an arm is a mixture, which is not compared.

    Args:
        apart: the fields that the arms never share.
    """
    contents = []
    # beside weights of another kind it goes without saying where these come from
    apart = [name for name in apart if not (name.startswith(PRETRAINING) and "weights" in apart)]
    for arm, runs in zip(arms, matched.arms, strict=True):
        facts = [{name: _facts(run.record, chosen, exports).get(name) for name in apart} for run in runs]
        if mixed := list(differences(facts)):
            return MixedArm(matched.label, arm.text, tuple(mixed))
        contents.append(facts[0] | _as_named(runs[0].record, apart))
    unlike = [name for name in sorted(chosen) if len(_values(matched, name, exports)) > 1]
    matched.differing = [*unlike, *(name for name in apart if name not in unlike)]
    matched.unshared = contents if apart else []
    return None


def _values(matched: MatchedRuns, name: str, exports: Exports) -> set[str]:
    return {repr(value_of(record, name, exports)) for record in matched.records}


def _as_named(record: Record, names: Sequence[str]) -> dict[str, Any]:
    """The fields of the backbone as the record has them, where that is shorter than what they are compared by."""
    return {name: record.backbone[name] for name in names if name in record.backbone and name != "weights"}
