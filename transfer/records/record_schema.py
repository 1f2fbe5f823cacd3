"""Whether the entries of a record have the types and ranges with which reports read them. Imports no torch."""

import math
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

COSTS = (
    *("params", "gflops", "train_seconds", "eval_seconds", "images_per_second", "data_wait_share", "device_hours"),
    *("extraction_seconds", "found_hours", "peak_mib"),
)
"""Entries of `Record.cost` with which reports compute: numbers or None."""
LONGEST = 10_000
"""The most characters of a text in a record: tables, which break lines, take long for longer ones."""
DEEPEST = 100
"""The most levels of dicts and lists in each other, of which records have fewer than ten."""
LARGEST_NUMBER = 1e100
"""The largest score or cost: squares of larger ones, in deviations, are no numbers."""
FIRST_YEAR, LAST_YEAR = 1970, 2200
"""When runs may have been started."""
LARGEST = 2**63 - 1
"""The largest whole number of the columns of data frames."""
STATUSES = ("completed", "nonfinite", "diverged", "collapsed", "at_chance")


def invalid_entries(content: dict[str, Any]) -> list[str]:
    """Return the entries with values that reports cannot use: an unknown status, a score that is no finite number."""
    outcome, scores, details = content["outcome"], content["scores"], content["details"].values()
    metrics = content["metrics"].values()
    errors = [about.get("standard_error") for about in details if isinstance(about, dict)]
    valid = {
        "outcome": outcome.get("status") in STATUSES and _is_number_or_none(outcome.get("step", 0)),
        "scores": all(score is not None and _is_number_or_none(score) for score in scores.values()),
        "scores of a training that broke down": not scores or outcome.get("status") in ("completed", None),
        "metrics": all(isinstance(metric, dict) and _is_metric(metric) for metric in metrics),
        "cost": all(_is_number_or_none(cost) and (cost or 0) >= 0 for cost in map(content["cost"].get, COSTS))
        and float(content["cost"].get("params") or 0).is_integer()
        and (content["cost"].get("params") or 0) <= LARGEST,
        "details": all(map(_is_number_or_none, errors)),
    }
    return [name for entries in (valid, _parts(content)) for name, is_valid in entries.items() if not is_valid]


def entries_with_odd_texts(raw: bytes, content: dict[str, Any]) -> list[str]:
    """Return the entries that hold a text which is too long, or which no file can hold: half of a surrogate pair.

    Args:
        raw: the bytes that the content was read from, which say at once whether there may be one.
        content: the entries of the record.
    """
    # thousands of records are read for one table; a quote inside a text ends no text
    longest = max(map(len, raw.replace(b'\\"', b"  ").split(b'"')))
    if longest <= LONGEST and b"\\ud" not in raw.lower():
        return []
    return [name for name, entry in content.items() if any(map(_is_odd, (name, *_texts_in(entry))))]


def too_deep_entries(raw: bytes, content: dict[str, Any]) -> list[str]:
    """Return the entries with more dicts and lists in each other than a record has; arguments as above."""
    if raw.count(b"[") + raw.count(b"{") <= DEEPEST:  # as in most records
        return []
    return [name for name, entry in content.items() if _is_too_deep(entry)]


def _is_too_deep(entry: Any) -> bool:
    level = [entry]
    for _ in range(DEEPEST + 1):
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        if not inside:
            return False
        level = [one for values in inside for one in values]
    return True


class Numbers:
    """Reads the numbers of a record, and notes whether one is not finite, which no run writes."""

    not_finite = False

    def read(self, text: str) -> float:
        """Return a number with a fraction or an exponent, or what Python takes for one: NaN, Infinity."""
        number = float(text)
        self.not_finite |= not math.isfinite(number)
        return number


def not_finite_entries(content: dict[str, Any]) -> list[str]:
    """Return the entries that hold a number which is not finite: nothing that has one can be written, or has a key."""
    odd = {name: [one for one in _plain_values(entry) if isinstance(one, float)] for name, entry in content.items()}
    return [name for name, numbers in odd.items() if not all(map(math.isfinite, numbers))]


def _texts_in(value: Any) -> Iterator[str]:
    return (one for one in _plain_values(value) if isinstance(one, str))


def _plain_values(value: Any) -> Iterator[Any]:
    """Yield the keys and values in nested dicts and lists."""
    if isinstance(value, dict):
        yield from value
    elif not isinstance(value, list):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _plain_values(inner)


def _is_odd(text: str) -> bool:
    return len(text) > LONGEST or any("\ud800" <= character <= "\udfff" for character in text)


def _parts(content: dict[str, Any]) -> dict[str, bool]:
    """Return whether the parts of entries have the types with which reports read them, by a name for messages."""
    dataset, backbone, environment = content["dataset"], content["backbone"], content["environment"]
    details, origin, outcome = content["details"], content["origin"], content["outcome"]
    return {
        "dataset": "name" in dataset
        and _texts(dataset, "name", "digest", "root")
        and is_a(dataset.get("skipped"), (int, type(None)))
        and is_a(dataset.get("version"), (str, int, type(None)))
        and is_a(dataset.get("counts"), (dict, type(None))),
        "backbone": "name" in backbone
        and _texts(backbone, "name", "arch", "stem", "attention", "ffn")
        and is_a(backbone.get("files"), (dict, type(None)))
        and all(isinstance(sha, str) for sha in (backbone.get("files") or {}).values())
        and all(_is_number_or_none(backbone.get(name)) for name in ("patch", "depth")),
        "environment": _texts(environment, "device", "device_type", "started", "precision", "eval_precision")
        and is_a(environment.get("versions", {}), dict)
        and all(is_a(environment.get(name), (int, type(None))) for name in ("world_size", "sequence_parallel"))
        and all(_is_number_or_none(environment.get(name)) for name in ("threads", "workers"))
        and _is_time_or_none(environment.get("started")),
        "outcome": _texts(outcome, "reason"),
        "details": _are_token_facts(details)
        and _texts(details, "detector")
        and is_a(details.get("features"), (dict, type(None)))
        and is_a(details.get("resumed"), (list, type(None)))
        and _is_support(details.get("support")),
        "origin": _texts(origin, "training") and is_a(origin.get("subset"), (int, type(None))),
        "untrained": all(isinstance(name, str) for name in content["untrained"]),
        "notes": all(isinstance(note, str) for note in content["notes"]),
        "files": all(isinstance(about, dict) and _texts(about, "sha256") for about in content["files"].values()),
        "user_code": all(
            isinstance(code, dict) and _texts(code, "file", "sha256") and code.keys() >= {"file", "sha256"}
            for code in content["user_code"].values()
        ),
        "run_key_content": all(
            isinstance(content["run_key_content"].get(name, {}), dict) for name in ("options", "content", "dataset")
        ),
        "seed": 0 <= content["seed"] <= LARGEST,
        "subset": (content["subset"] or 0) <= LARGEST,
        "run_id": bool(content["run_id"]) and "/" not in content["run_id"] and "\x00" not in content["run_id"],
    }


def _is_time_or_none(value: Any) -> bool:
    """Return whether a value is None, or a time that data frames can hold."""
    try:
        return value is None or FIRST_YEAR <= datetime.fromisoformat(value).year <= LAST_YEAR
    except ValueError:
        return False


def are_token_facts_of_epoch(line: dict[str, Any]) -> bool:
    """Return whether a history's line of token diagnostics has what tables by layer and epoch read."""
    return line.get("epoch") is not None and _is_number_or_none(line["epoch"]) and _are_token_facts(line)


def _are_token_facts(facts: dict[str, Any]) -> bool:
    """Return whether token diagnostics, where there are any, are as tables by layer read them."""
    tables, stem = [facts.get(name) or [] for name in ("layers", "attention")], facts.get("stem") or {}
    return (
        all(isinstance(table, list) and all(isinstance(row, dict) for row in table) for table in tables)
        and all(isinstance(row.get("place"), str) and _is_plain(row) for table in tables for row in table)
        and isinstance(stem, dict)
        and _are_norms(stem)
    )


def _are_norms(stem: dict[str, Any]) -> bool:
    """Return whether the facts on a stem's last activation are there with rows of named weights, or are not."""
    last = stem.get("last_activation") or {}
    rows = last.get("weights", []) if isinstance(last, dict) else None
    return isinstance(rows, list) and all(
        isinstance(row, dict) and isinstance(row.get("of"), str) and _is_plain(row) for row in rows
    )


def _is_plain(row: dict[str, Any]) -> bool:
    """Return whether a row of token diagnostics has finite numbers, texts, None, or lists of them."""
    values = [one for value in row.values() for one in (value if isinstance(value, list) else [value])]
    return all(isinstance(one, str | bool) or _is_number_or_none(one) for one in values)


def _is_support(support: Any) -> bool:
    """Return whether the facts on support sets are there with numbers of classes by number of shots, or are not."""
    fewer = support.get("classes_with_fewer") if isinstance(support, dict) else None
    return fewer is None or (isinstance(fewer, dict) and all(is_a(classes, int) for classes in fewer.values()))


def _texts(entry: dict[str, Any], *names: str) -> bool:
    """Return whether values, where there are any, are texts."""
    return all(entry.get(name) is None or isinstance(entry[name], str) for name in names)


def is_a(value: Any, kind: Any) -> bool:
    """Return whether a value has a type; True and False are no integers."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _is_number_or_none(value: Any, largest: float = LARGEST_NUMBER) -> bool:
    """Return whether a value is None, or a number with which reports can compute."""
    return value is None or (type(value) in (float, int) and abs(value) <= largest)


def _is_metric(metric: dict[str, Any]) -> bool:
    unit, direction = metric.get("unit", "fraction"), metric.get("direction", "higher")
    bounds = metric.get("bounds") or [0, 0]
    in_pairs = (
        isinstance(bounds, list)
        and len(bounds) == 2
        and all(_is_number_or_none(bound, sys.float_info.max) for bound in bounds)  # as a user's metric states them
    )
    return isinstance(unit, str) and direction in ("higher", "lower") and in_pairs
