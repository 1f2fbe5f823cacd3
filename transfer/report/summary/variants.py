"""Which variants a page compares when nobody names them, and their names in sentences, headings and figures.

Imports no torch.
"""

import re
from typing import Any

from transfer.comparison.compare_arms import Comparison
from transfer.comparison.selection import fields_of
from transfer.records.fields import BASELINE, NAMED_BY_VALUE, differing, parts_label, value_of
from transfer.records.run_set import RunSet
from transfer.report.tables.pivot import names_of_runs

MOST_PAIRS = 5
"""Pairs that a page compares by itself; further ones are compared on demand."""
MOST_RUNS = 500
"""Runs beyond which nothing is compared unasked: intervals over all of them take minutes."""


def arms_to_compare(runs: RunSet) -> list[tuple[str, str]]:
    """Return selectors of pairs of variants (see `transfer.comparison.selection.select`), each against the baseline.

    Where stems or attention differ, variants are the runs with each of their values; where both do, with each pair of
    values. Where neither does, variants are backbones. A single variant gives no pairs, nor do very many runs.
    """
    if len(runs) > MOST_RUNS:
        return []

    def found(*fields: str) -> list[dict[str, Any]]:
        """Return the combinations of values of some fields that backbones have, in order of appearance."""
        rows = dict.fromkeys(tuple(value_of(record, name, runs.exports) for name in fields) for record in runs.records)
        return [dict(zip(fields, row, strict=True)) for row in rows if None not in row]

    varied = [field for field in BASELINE if len(found(field)) > 1]
    variants = [_selector(values) for values in found(*(varied or ["backbone"]))]
    usual = _selector({field: BASELINE[field] for field in varied})
    base = usual if usual in variants else variants[0] if variants else ""
    return [(variant, base) for variant in variants if variant != base][:MOST_PAIRS]


def _selector(values: dict[str, Any]) -> str:
    return ",".join(str(value) if name == "backbone" else f"{name}={value}" for name, value in values.items())


def why_no_arms(runs: RunSet) -> str:
    """Return what is missing for a comparison, and how to add it."""
    if len(runs) > MOST_RUNS:
        return (
            f"{len(runs):,} runs are too many to be compared unasked. Name two variants: "
            "python -m transfer.report page RUNS --compare stem=conv stem=patchify"
        )
    return (
        "There are no two variants to compare. Add runs with another --stem, --attention or --backbone; "
        "the same options and --seeds pair the runs."
    )


def compared_names(comparison: Comparison, runs: RunSet) -> list[str]:
    """Return the names of the variants of a comparison: those that tables of the runs have, if each has one there.

    Where selectors differ in more than parts of the backbone, or a variant has several names, selectors are the names.
    """
    texts, of_runs = [variant.text for variant in comparison.variants], names_of_runs(runs)
    matched = [[run for one in comparison.matches for run in one.matched.variants[n]] for n in range(len(texts))]
    chosen = zip(matched, comparison.variants, strict=True)
    names = [{of_runs.get(run.record.run_id, "") for run in own or variant.runs} for own, variant in chosen]
    single = [*dict.fromkeys(min(found) for found in names if len(found) == 1)]
    by_parts = all(field in NAMED_BY_VALUE for fields in _differing(texts) for field in fields)
    return single if by_parts and len(single) == len(texts) and all(single) else names_of(texts)


def names_of(selectors: list[str]) -> list[str]:
    """Return names of selectors: "conv" and "LapStem + lr 0.1", without equal fields, folders and hashes.

    Equally named parts of different files get the first digits of their files' digests.
    """
    differing_fields = zip(_differing(selectors), selectors, strict=True)
    names = [parts_label(one or fields_of(text), " + ") for one, text in differing_fields]
    if len({*names}) == len(names):
        return names
    digests = [re.findall("sha256:([0-9a-f]{8})", text) for text in selectors]
    return [f"{name} ({' '.join(found)})" if found else name for name, found in zip(names, digests, strict=True)]


def versus(comparison: Comparison, runs: RunSet) -> str:
    """Return the heading of a comparison: "conv vs. patchify", in brackets what else both variants are selected by."""
    names, texts = compared_names(comparison, runs), [variant.text for variant in comparison.variants]
    told = {*_differing(texts)[0], *(part for part in NAMED_BY_VALUE if names != names_of(texts))}
    rest = {name: value for name, value in fields_of(texts[0]).items() if name not in told}
    return " vs. ".join(names) + f" ({parts_label(rest, ' + ')})" * bool(rest)


def _differing(selectors: list[str]) -> list[dict[str, str]]:
    """Return the fields of each selector in which it differs from another one."""
    known = [fields_of(text) for text in selectors]
    names = differing(known)
    return [{name: value for name, value in of.items() if name in names} for of in known]
