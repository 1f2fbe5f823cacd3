"""Matches the runs of variants: groups of equal conditions, and the reasons why runs are in none.

Imports neither torch nor pandas.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from typing import Any

from transfer.comparison.selection import Selection
from transfer.core.errors import count
from transfer.core.grouped import grouped_by, values_by_key, without_repeats
from transfer.records import fields
from transfer.records.protocol import NO_EFFECT, OF_DATA, PRETRAINING, Exports, displayed_fields
from transfer.records.record import Record, digest_of
from transfer.records.store import StoredRun


@dataclass(frozen=True)
class Exclusion:
    """Runs that are in no row.

    Attributes:
        label: task and dataset of the runs, such as "reid on market1501"; with a setting where one is meant.
        text: the reason, one sentence without a full stop.
    """

    label: str
    text: str


@dataclass
class MatchedRuns:
    """Runs of each variant under one protocol, and equal in all of the backbone and its pretraining that can be equal.

    Attributes:
        variants: runs of each variant.
        setting: fields, with their values, that distinguish it from other matches of its task and dataset.
        differing: names of the fields in which the variants differ, fields of the selectors first.
        unshared: for each variant, values of the fields that no two variants share although no selector names them.
    """

    variants: list[list[StoredRun]]
    setting: dict[str, Any] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)
    unshared: list[dict[str, Any]] = field(default_factory=list)

    @property
    def first(self) -> Record:
        """First record; all records have the same protocol."""
        return self.variants[0][0].record

    @property
    def records(self) -> list[Record]:
        """Records of all variants."""
        return [run.record for run in chain.from_iterable(self.variants)]

    @property
    def label(self) -> str:
        """Task, dataset and setting, such as "reid on market1501 (lr 0.1)"; no two matches have the same."""
        return self.with_setting(task_label(self.first))

    def with_setting(self, text: str) -> str:
        """Return a text with the setting behind it, if there is one."""
        return f"{text} ({fields.content_label(self.setting)})" if self.setting else text


@dataclass(frozen=True)
class Matching:
    """Groups of runs that are compared, in order of task and dataset, and the reasons why other runs are not."""

    matches: list[MatchedRuns]
    exclusions: list[Exclusion]


def task_label(record: Record) -> str:
    """Return the task and the dataset of a record: "reid on market1501"."""
    return f"{record.task} on {record.dataset.get('name')}"


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A run of a variant.

    Attributes:
        run: the run.
        content: fields of its protocol, its backbone and its pretraining, without those chosen; one that does not act
            has the value `NO_EFFECT`, which agrees with any other.
        parts: those of the backbone and its pretraining, which variants need not share.
    """

    run: StoredRun
    content: Mapping[str, Any]
    parts: Collection[str]

    @classmethod
    def of(cls, run: StoredRun, chosen: Collection[str], exports: Exports) -> "_Candidate":
        """Return a run with its fields."""
        protocol = {name: value for name, value in displayed_fields(run.record).items() if name not in chosen}
        facts = fields.parts_of(run.record, chosen, exports)
        return cls(run, facts | protocol, facts.keys() - protocol.keys())

    def acting(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the fields that act, None for one that the run does not have."""
        return {name: value for name in names if (value := self.content.get(name)) != NO_EFFECT}

    def shown(self, name: str) -> Any:
        """Return the value of a field for readers, which for a file is shorter than the form that it is compared by."""
        return fields.short_value(self.run.record, name, self.content.get(name))


_Candidates = Sequence[Sequence[_Candidate]]
"""Candidates of each variant."""
_Group = tuple[dict[str, Any], list[list[_Candidate]]]
"""Values of the fields that act in a group of candidates, and its candidates of each variant."""


def match_runs(variants: Sequence[Selection], exports: Exports) -> Matching:
    """Return the groups of runs that can be compared, and the reasons why other runs cannot.

    The protocol must be equal except for the fields of the selectors, and so must every field of the backbone and of
    its pretraining of which the variants have a value in common. A field without a common value, such as one that comes
    with a part, is kept in `MatchedRuns.unshared`. A field that has no effect in one variant does not separate it
    from another: the radius of SAM beside a run without SAM, the number of processes beside one without batch norm.
    """
    records = [run.record for variant in variants for run in variant.runs]
    chosen = fields.with_contents(chain.from_iterable(variant.fields for variant in variants), records, exports)
    by_label: dict[str, list[list[_Candidate]]] = {}
    for index, variant in enumerate(variants):
        for run in variant.runs:
            candidate = _Candidate.of(run, chosen, exports)
            label = f"{candidate.content.get('task')} on {candidate.content.get('dataset')}"
            by_label.setdefault(label, [[] for _ in variants])[index].append(candidate)
    matching = Matching([], [])
    for label in sorted(by_label):
        candidates = by_label[label]
        names, unshared = _differing_names(candidates)
        groups = _agreeing_groups(candidates, names)
        if not groups and all(candidates):
            matching.exclusions.append(_nearest_runs(candidates, names))
        else:
            matching.exclusions.extend(_exclusions_of_unused(variants, candidates, groups, names))
        setting_names = _setting_fields([content for content, _ in groups])
        groups.sort(key=lambda group: [fields.order(group[0].get(name)) for name in setting_names])
        for content, group in groups:
            matched = MatchedRuns([[candidate.run for candidate in arm] for arm in group])
            for name in filter(content.__contains__, setting_names):
                examples = (one for one in chain.from_iterable(group) if one.content.get(name) == content[name])
                matched.setting[name] = next(examples).shown(name)
            if exclusion := _describe_differences(matched, group, variants, unshared, exports):
                matching.exclusions.append(exclusion)
            else:
                matching.matches.append(matched)
    return matching


def _exclusions_of_unused(
    variants: Sequence[Selection], candidates: _Candidates, groups: Sequence[_Group], names: Sequence[str]
) -> Iterator[Exclusion]:
    """Yield a reason for every run that is in no group, so that none is dropped silently."""
    used = {candidate for _, arms in groups for candidate in chain.from_iterable(arms)}
    examples = [_examples(arm, names) for arm in candidates]
    for place, variant in enumerate(variants):
        unused = [candidate for candidate in candidates[place] if candidate not in used]
        reasons = [_farthest(candidate, place, examples, names) for candidate in unused]
        clashes = ((reason, (candidate, clash)) for candidate, (reason, clash) in zip(unused, reasons, strict=True))
        for (label, other), alike in values_by_key(clashes).items():
            failed = sum(candidate.run.record.training_failed for candidate, _ in alike)
            failed_clause = f", {failed} of which failed" if failed else ""
            shown = ((name, candidate.shown(name)) for candidate, clash in alike for name in clash)
            values = {name: without_repeats(of_name) for name, of_name in values_by_key(shown).items()}
            unshared = fields.values_label(values) or "values with all variants"
            why = f"the nearest runs of '{variants[other].text}' do not share their {unshared}"
            why = why if examples[other] else f"'{variants[other].text}' has no run"
            text = f"{count(len(alike), 'run')} of '{variant.text}' not in the table{failed_clause}: {why}"
            yield Exclusion(label, text)


def _farthest(
    one: _Candidate, place: int, examples: _Candidates, names: Sequence[str]
) -> tuple[tuple[str, int], Collection[str]]:
    """Return a run's task with the place of the variant whose nearest run differs in the most fields, and these fields:
    all where the variant has no run.
    """
    nearest: dict[int, Collection[str]] = {}
    for other, arm in enumerate(examples):
        if other != place:
            nearest[other] = min((_clashing_fields(one, run, names) for run in arm), key=len, default=names)
    farthest = max(nearest, key=lambda other: len(nearest[other]))
    return (task_label(one.run.record), farthest), nearest[farthest]


def _differing_names(candidates: _Candidates) -> tuple[list[str], list[str]]:
    """Return the differing fields in which variants must agree, and those of components without a common value."""
    all_candidates = list(chain.from_iterable(candidates))
    shared, unshared = list[str](), list[str]()
    for name in fields.differing((candidate.content for candidate in all_candidates), missing=None):
        values = list(filter(None, (_acting_values(arm, name) for arm in candidates)))
        is_part = any(name in candidate.parts for candidate in all_candidates)
        is_unshared = is_part and len(values) > 1 and not set.intersection(*values)
        (unshared if is_unshared else shared).append(name)
    return shared, unshared


def _acting_values(arm: Sequence[_Candidate], name: str) -> set[str]:
    """Return the values of a field in the runs of a variant in which it acts."""
    return {repr(candidate.content.get(name)) for candidate in arm if candidate.acting([name])}


def _setting_fields(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields that tell settings apart; a field that a setting does not have has no effect in it.

    Pretrainings of several methods differ in most options; of these the ones are named that differ within a method.
    What describes the contents of data is named only where settings differ in nothing else.
    """
    method = f"{PRETRAINING}task"
    contents_by_method = grouped_by(contents, lambda content: content.get(method)).values()
    within_methods = (fields.differing(same_method, missing=NO_EFFECT) for same_method in contents_by_method)
    names_within_methods = {method}.union(*within_methods)
    differing_names = fields.differing(contents, missing=NO_EFFECT)
    names_between_methods = {name for name in differing_names if name.startswith(PRETRAINING)} - names_within_methods
    names = [name for name in differing_names if name not in names_between_methods]
    data_names = [name for name in names if name.removeprefix(PRETRAINING).startswith(OF_DATA)]
    names = fields.fewest(contents, names, data_names)
    return names if fields.told_apart(contents, names) == len(contents) else list(fields.differing(contents))


def _agreeing_groups(candidates: _Candidates, names: Sequence[str]) -> list[_Group]:
    """Return the groups in which all variants agree in what acts in several of them."""
    groups: list[_Group] = [({}, [])]
    for arm in candidates:
        agreeing = list[_Group]()
        for (content, arms), alike in product(groups, _groups_acting_alike(arm, names)):
            acting_fields = alike[0].acting(names)
            if all(content.get(name, value) == value for name, value in acting_fields.items()):
                agreeing.append((content | acting_fields, [*arms, alike]))
        groups = agreeing
    group_by_digest: dict[str, _Group] = {}
    for content, arms in groups:
        _, merged_arms = group_by_digest.setdefault(digest_of(content), (content, [[] for _ in candidates]))
        for arm, further_candidates in zip(merged_arms, arms, strict=True):
            arm += [candidate for candidate in further_candidates if candidate not in arm]
    return list(group_by_digest.values())


def _nearest_runs(candidates: _Candidates, names: Sequence[str]) -> Exclusion:
    """Return two runs of different variants that clash in the fewest fields; of several such pairs the farthest."""
    nearest_pairs = []
    for two_arms in combinations((_examples(arm, names) for arm in candidates if arm), 2):
        pairs = ((a.run.record, b.run.record, _clashing_fields(a, b, names)) for a, b in product(*two_arms))
        nearest_pairs.append(min(pairs, key=lambda pair: len(pair[2])))
    record_a, record_b, clash = max(nearest_pairs, key=lambda pair: len(pair[2]))
    differences = fields.values_label(clash, " vs. ") or "no field"
    advice = "rerun one with the other's value, or add it to both variants (FIELD=VALUE,FIELD=VALUE)"
    text = f"not compared: the nearest runs, {record_a.run_id} and {record_b.run_id}, differ in {differences}; {advice}"
    return Exclusion(task_label(record_a), text)


def _examples(arm: Sequence[_Candidate], names: Sequence[str]) -> list[_Candidate]:
    """Return the last of the runs of a variant in which the fields act alike."""
    return [alike[-1] for alike in _groups_acting_alike(arm, names)]


def _groups_acting_alike(arm: Sequence[_Candidate], names: Sequence[str]) -> Collection[list[_Candidate]]:
    """Return the runs of a variant in groups in which the fields act alike."""
    return grouped_by(arm, lambda candidate: digest_of(candidate.acting(names))).values()


def _clashing_fields(a: _Candidate, b: _Candidate, names: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Return the fields that act in both runs and differ, with both values."""
    acting_a, acting_b = a.acting(names), b.acting(names)
    clash = [name for name in acting_a if name in acting_b and acting_a[name] != acting_b[name]]
    return {name: (a.shown(name), b.shown(name)) for name in _without_pretraining(clash)}


def _without_pretraining(names: Sequence[str]) -> list[str]:
    """Return the names without the fields of a pretraining, if the weights are of another kind."""
    return [name for name in names if not (name.startswith(PRETRAINING) and "weights" in names)]


def _values(candidates: Sequence[_Candidate], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return the values that fields have in runs in which they act, for readers."""
    return {name: without_repeats(one.shown(name) for one in candidates if one.acting([name])) for name in names}


def _describe_differences(
    matched: MatchedRuns, group: _Candidates, variants: Sequence[Selection], unshared: Sequence[str], exports: Exports
) -> Exclusion | None:
    """Write the differences between variants into a match; return the reason if a variant mixes unlike runs."""
    unshared = _without_pretraining(unshared)
    for variant, arm in zip(variants, group, strict=True):
        if mixed_fields := fields.differing(candidate.acting(unshared) for candidate in arm):
            values_by_field = _values(arm, mixed_fields)
            # of several backbones or pretrainings the mean would be meaningless
            name, (value, *_) = next(iter(values_by_field.items()))
            choice = f"--compare '{variant.text},{name}={fields.value_label(value)}' OTHER, or compare these values"
            mixed = fields.values_label(values_by_field, after="; ")
            fault = f"not compared: runs of '{variant.text}' differ in {mixed}"
            return Exclusion(matched.label, f"{fault}; choose one value, as {choice}")
        matched.unshared.append({name: arm[0].shown(name) for name in arm[0].acting(unshared)})
    selected_fields = sorted(set(chain.from_iterable(variant.fields for variant in variants)))
    rows = [{name: fields.value_of(record, name, exports) for name in selected_fields} for record in matched.records]
    matched.differing = list(dict.fromkeys([*fields.differing(rows), *unshared]))
    return None
