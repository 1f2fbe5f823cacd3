"""Matches the runs of arms: groups in which all arms have equal conditions, and the reasons why runs are in none.

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
        arms: runs of each arm.
        setting: fields, with their values, that distinguish it from other matches of its task and data set.
        differing: names of the fields in which the arms differ, fields of the selectors first.
        unshared: for each arm, values of the fields that no two arms share although no selector names them.
    """

    arms: list[list[Run]]
    setting: str = ""
    differing: list[str] = field(default_factory=list)
    unshared: list[dict[str, Any]] = field(default_factory=list)

    @property
    def first(self) -> Record:
        """First record; all records have the same protocol."""
        return self.arms[0][0].record

    @property
    def records(self) -> list[Record]:
        """Records of all arms."""
        return [run.record for runs in self.arms for run in runs]

    @property
    def label(self) -> str:
        """Task, data set and setting, such as "reid on market1501 (lr 0.1)"."""
        text = task_label(self.first)
        return f"{text} ({self.setting})" if self.setting else text


@dataclass(frozen=True)
class Matching:
    """Groups of runs that are compared, in order of task and data set, and the reasons why other runs are not."""

    matches: list[MatchedRuns]
    exclusions: list[Exclusion]


def task_label(record: Record) -> str:
    """Return the task and the data set of a record: "reid on market1501"."""
    return f"{record.task} on {record.dataset.get('name')}"


def match(arms: Sequence[Selection], exports: Exports) -> Matching:
    """Return the groups of runs that can be compared, and the reasons why other runs cannot.

    The protocol must be equal except for the fields of the selectors. So must every field of the backbone and of its
    pretraining of which the arms have a value in common. A field without a common value, such as one that comes with a
    part, is kept in `MatchedRuns.unshared` instead.
    """
    chosen = {name for arm in arms for name in arm.fields}
    protocols: dict[str, list[list[Run]]] = {}
    for index, arm in enumerate(arms):
        for run in arm.runs:
            key = digest_of(protocol(run.record, chosen))
            protocols.setdefault(key, [[] for _ in arms])[index].append(run)
    matches: list[MatchedRuns] = []
    exclusions: list[Exclusion] = [*_unmatched(len(arms), protocols, chosen)]
    for group in protocols.values():
        if all(group):
            matching = _match_settings(group, arms, chosen, exports)
            matches += matching.matches
            exclusions += matching.exclusions
    exclusions += _unused(arms, matches, exports)
    matches.sort(key=lambda matched: (matched.first.task, str(matched.first.dataset.get("name")), matched.setting))
    return Matching(matches, exclusions)


def _unused(arms: Sequence[Selection], matches: Sequence[MatchedRuns], exports: Exports) -> Iterator[Exclusion]:
    """Yield a reason for every run that is in no match, so that none is dropped silently."""
    used = {run.folder for matched in matches for runs in matched.arms for run in runs}
    for arm in arms:
        unused: dict[str, list[Run]] = {}
        for run in arm.runs:
            if run.folder not in used:
                unused.setdefault(task_label(run.record), []).append(run)
        for label, runs in unused.items():
            yield UnusedRuns(label, arm.text, len(runs), sum(run.record.training_failed for run in runs))
            for other in arms:
                trainings = 0 if other is arm else _failed_trainings(other, runs, exports)
                if trainings:
                    yield NoCounterpart(label, other.text, trainings)


def _failed_trainings(arm: Selection, runs: Sequence[Run], exports: Exports) -> int:
    """Return how many pretrainings of an arm failed, so that it has no counterpart of the runs; 0 if it has any run."""
    pretrainings = {parent.task for run in runs if (parent := pretraining(run.record, exports))}
    records = [run.record for run in arm.runs if run.record.task in (runs[0].record.task, *pretrainings)]
    failed = all(record.training_failed and record.task in pretrainings for record in records)
    return len(records) if failed else 0


def _unmatched(
    arms: int, protocols: Mapping[str, list[list[Run]]], chosen: Collection[str]
) -> Iterator[ProtocolsDiffer]:
    """Yield the tasks and data sets of which several arms have runs, but never under one protocol."""
    by_label: dict[str, list[list[list[Run]]]] = {}
    for group in protocols.values():
        first = next(runs[0] for runs in group if runs).record
        by_label.setdefault(task_label(first), []).append(group)
    for label, groups in by_label.items():
        present = [any(group[arm] for group in groups) for arm in range(arms)]
        if any(all(group) for group in groups) or sum(present) < 2:
            continue
        records = [runs[0].record for group in groups for runs in group if runs]
        yield ProtocolsDiffer(label, tuple(differences([protocol(record, chosen) for record in records])))


def _match_settings(
    group: list[list[Run]], arms: Sequence[Selection], chosen: Collection[str], exports: Exports
) -> Matching:
    """Return the matches among the runs [arms][runs] of one protocol."""
    facts = [[_facts(run.record, chosen, exports) for run in runs] for runs in group]
    names = list(dict.fromkeys(name for arm_facts in facts for fact in arm_facts for name in fact))
    values = {name: [{repr(fact.get(name)) for fact in arm_facts} for arm_facts in facts] for name in names}
    shared = [name for name in names if set.intersection(*values[name])]
    unshared = [name for name in names if name not in shared]
    groups: dict[str, list[list[Run]]] = {}
    contents: dict[str, dict[str, Any]] = {}
    for index, (runs, arm_facts) in enumerate(zip(group, facts, strict=True)):
        for run, fact in zip(runs, arm_facts, strict=True):
            common = {name: fact.get(name) for name in shared}
            key = digest_of(common)
            contents[key] = common
            groups.setdefault(key, [[] for _ in arms])[index].append(run)
    complete = {key: MatchedRuns(runs) for key, runs in groups.items() if all(runs)}
    distinguishing = _distinguishing_fields([contents[key] for key in complete])
    matching = Matching([], [])
    for key, matched in complete.items():
        matched.setting = content_label(contents[key] | _recorded_fields(matched.first, distinguishing), distinguishing)
        mixed = _describe(matched, arms, unshared, chosen, exports)
        if mixed is None:
            matching.matches.append(matched)
        else:
            matching.exclusions.append(mixed)
    return matching


def _distinguishing_fields(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields in which settings differ; of the pretraining only the method if that is enough."""
    names = list(differences(contents))
    method = f"{PRETRAINING}task"
    short = [name for name in names if name == method or not name.startswith(PRETRAINING)]
    enough = method in short and len({content_label(content, short) for content in contents}) == len(contents)
    return short if enough else names


def _facts(record: Record, chosen: Collection[str], exports: Exports) -> dict[str, Any]:
    """Return the fields of a backbone and its pretraining, without weights and seed."""
    backbone = backbone_of(record, chosen)
    hidden = {*chosen, "name", "load", *(() if backbone.get("length") == "train" else ("train_size",))}
    parts = {name: value for name, value in backbone.items() if name not in hidden}
    return parts | _weights_source(record, chosen, exports)


def _weights_source(record: Record, chosen: Collection[str], exports: Exports) -> dict[str, Any]:
    """Return where weights come from: the protocol of their training if its record is at hand, else their origin."""
    parent = pretraining(record, exports)
    if parent is None:
        return {"weights": record.origin.get("training") or record.weights_id}
    hidden = set(in_pretraining(chosen, record.backbone))
    source = protocol(parent, hidden) | _weights_source(parent, hidden, exports)
    return {"weights": "trained"} | {f"{PRETRAINING}{name}": value for name, value in source.items()}


def _describe(
    matched: MatchedRuns, arms: Sequence[Selection], unshared: Sequence[str], chosen: Collection[str], exports: Exports
) -> MixedArm | None:
    """Write the differences between its arms into a match; return the reason if an arm mixes runs that differ.

    Args:
        unshared: names of the fields of which the arms have no value in common.
    """
    contents = []
    # weights of another kind have another pretraining, which need not be listed
    unshared = [name for name in unshared if not (name.startswith(PRETRAINING) and "weights" in unshared)]
    for arm, runs in zip(arms, matched.arms, strict=True):
        facts = [{name: _facts(run.record, chosen, exports).get(name) for name in unshared} for run in runs]
        if mixed := list(differences(facts)):
            return MixedArm(matched.label, arm.text, tuple(mixed))
        contents.append(facts[0] | _recorded_fields(runs[0].record, unshared))
    differing = [name for name in sorted(chosen) if len(_values(matched, name, exports)) > 1]
    matched.differing = [*differing, *(name for name in unshared if name not in differing)]
    matched.unshared = contents if unshared else []
    return None


def _values(matched: MatchedRuns, name: str, exports: Exports) -> set[str]:
    return {repr(value_of(record, name, exports)) for record in matched.records}


def _recorded_fields(record: Record, names: Sequence[str]) -> dict[str, Any]:
    """Return the backbone's fields as the record has them, a shorter form than the one they are compared by."""
    return {name: record.backbone[name] for name in names if name in record.backbone and name != "weights"}
