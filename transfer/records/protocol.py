"""What two numbers must have in common to stand in one column, and where weights come from. Imports no torch.

A configuration is a backbone, the training that its weights come from, and a protocol; its runs differ in seeds alone.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

from backbones.errors import UserError
from backbones.stems import find_stem
from backbones.user_code import is_user_part
from transfer.cli.ignored_options import apart, ignored_options, known, usual
from transfer.cli.options import EXECUTION, BackboneOptions, PretrainRunOptions
from transfer.records.store import Record

NOT_RECORDED = "not recorded"
NO_EFFECT = "no effect"
PRETRAINING = "pretraining."
"""Before the name of a field of the run that the weights come from."""
OF_DATA = "dataset_"
"""Begins the fields that say what a data set holds."""
# Options of which it counts what they came to, as the record's environment says.
_RESOLVED = ("precision", "eval_precision")
# What is said of a record elsewhere, or changes no score.
_LEFT_OUT = frozenset(
    (*EXECUTION, *_RESOLVED, *(item.name for kind in (PretrainRunOptions, BackboneOptions) for item in fields(kind)))
)


def protocol(record: Record, without: Collection[str] = ()) -> dict[str, Any]:
    """All that must be equal for two numbers to be compared, besides backbone, weights and seed; one flat dict.

    Task and version; name, version, contents and unreadable images of the data set; the options of the task; the
    precisions of training and of scoring that were used; smoke and subset. What `transfer.cli.ignored_options` knows to
    have no effect, and how a run was executed, is left out of older records too, and a file that an option names counts
    by its content. Of records that do not say what their identity is made of, all other options count as they are. An
    older record names no precision of scoring.

    The number of processes counts (`world_size`, those that share the tokens of an image as one) where each of them
    sees to a part of the batch by itself, see `transfer.cli.ignored_options.apart`; elsewhere the same is computed by
    any number. The kind of device and the version of torch never do: they round otherwise, which is less than what a
    seed changes, and rows that are torn apart with every update serve nobody; `transfer.records.grouping` says where
    runs of several stand together.

    Args:
        without: names to leave out, as those that a map varies on purpose. Options without effect then stay, so that
            all values of the varied ones come with the same fields, unless those that are left say that they have none.
    """
    values = _values(record, without)
    found = {
        "task": record.task,
        "task_version": record.task_version,
        "dataset": record.dataset.get("name"),
        "dataset_version": record.dataset.get("version"),
        "dataset_digest": record.dataset.get("digest"),
        "skipped": record.dataset.get("skipped", 0),
        **{name: record.environment.get(name) for name in _RESOLVED if name in ("precision", *record.environment)},
        "smoke": record.smoke,
        "subset": record.subset,
        **_processes(record, values),
        **_options(record, values, bool(without)),
    }
    return {name: value for name, value in found.items() if name not in without} if without else found


def _values(record: Record, without: Collection[str] = ()) -> dict[str, Any]:
    """What `transfer.cli.ignored_options` is asked of."""
    options, backbone = (
        {name: value for name, value in values.items() if name not in without}
        for values in (record.options, record.backbone)
    )
    return known(record.task, options | {"dataset": record.dataset.get("name")}, backbone)


def _processes(record: Record, values: Mapping[str, Any]) -> dict[str, int]:
    world, sharing = (record.environment.get(name) for name in ("world_size", "sequence_parallel"))
    return {"world_size": world // (sharing or 1)} if isinstance(world, int) and apart(values) else {}


def _options(record: Record, values: Mapping[str, Any], all_said: bool) -> dict[str, Any]:
    left_out = _LEFT_OUT.union(ignored_options(values))
    if (record.task, record.task_version) == ("detect", 1):
        left_out -= {"eval_batch"}  # images of a batch were padded to one size
    said = {name: value for name, value in record.options.items() if name not in left_out}
    if not _has_key_content(record):
        return said
    content: dict[str, Any] = record.current_content.get("content", {})
    counted = {name: value for name, value in record.current_content["options"].items() if name not in left_out}
    found = {name: value for name, value in said.items() if all_said and name not in content} | counted
    for name, value in content.items():
        found[name if name in said else f"{OF_DATA}{name}"] = f"sha256:{digest_of(value)}"
    return found


def _has_key_content(record: Record) -> bool:
    """Whether a record says what its identity is made of, as all but older ones do."""
    return "options" in record.run_key_content


def digest(record: Record, without: Collection[str] = ()) -> str:
    """sha256 of `protocol`, in hex: the same for every version of Python and order of the options."""
    return digest_of(protocol(record, without))


def digest_of(content: Any) -> str:
    """sha256 of plain values, in hex."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differing(records: Iterable[Record], without: Collection[str] = ()) -> dict[str, list[Any]]:
    """The fields of the protocol that are not the same in all records, each with its values in order of appearance.

    A field that is the same wherever it has an effect is not among them: it is another one that takes the effect away.
    """
    return distinguishing_fields(displayed_fields(record, without) for record in records)


def displayed_fields(record: Record, without: Collection[str] = ()) -> dict[str, Any]:
    """`protocol`, to be read: options that it leaves out because they have no effect are there and say so.

    Of an older record, which does not tell them from others, `options` says that all count.
    """
    content = protocol(record, without)
    content["options"] = "with effect" if _has_key_content(record) else "all count"
    # Older records scored in the one precision that they had; newer ones have none of training where nothing trains.
    if "eval_precision" not in without:
        content.setdefault("eval_precision", "as precision")
    if content.get("precision", "") is None:
        content["precision"] = NO_EFFECT
    if "world_size" not in without:
        content.setdefault("world_size", NOT_RECORDED if apart(_values(record, without)) else NO_EFFECT)
    gone = (name for name in record.options if name not in content and name not in _LEFT_OUT and name not in without)
    return content | dict.fromkeys(gone, NO_EFFECT)


def distinguishing_fields(contents: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Of what `stated` gives, the fields that tell the protocols apart, see `differing`."""
    once = list({digest_of(content): content for content in contents}.values())
    found = differences(once)
    return {name: values for name, values in found.items() if len(values) > 1 + (NO_EFFECT in values)}


def differences(contents: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The keys whose values are not the same in all mappings, each with its values in order of appearance."""
    names = dict.fromkeys(name for content in contents for name in content)
    found = {}
    for name in names:
        values = {repr(value): value for value in (content.get(name, NOT_RECORDED) for content in contents)}
        if len(values) > 1:
            found[name] = list(values.values())
    return found


def backbone_of(record: Record, without: Collection[str] = ()) -> dict[str, Any]:
    """The backbone without its weights, so that equal ones are equal: stems in canonical form, users' files by content.

    A field that changes nothing, as the length beside softmax, has one value. It is empty where a run broke down before
    it had a model.

    Args:
        without: see `protocol`; nothing is left out, but nothing of these takes the effect from another field.
    """
    values = {name: value for name, value in record.backbone.items() if name not in ("weights", "files")}
    values = usual(values, ignored_options(_values(record, without)))
    files: dict[str, str] = record.backbone.get("files") or {}
    stem, patch = values.get("stem"), values.get("patch")
    if stem and patch and "stem" not in files and not is_user_part(stem):
        values["stem"] = _canonical(stem, patch)
    for part, sha in files.items():
        values[part] = f"sha256:{sha}:{str(values.get(part)).rpartition(':')[2]}"
    return values


@lru_cache
def _canonical(stem: str, patch: int) -> str:
    try:
        return str(find_stem(stem).sized(patch))
    except UserError:  # a stem that another version of the suite knew by this name
        return stem


def by_export(records: Iterable[Record]) -> dict[str, Record]:
    """The runs that left weights, under the id of these, which is the `weights_id` of what starts from them."""
    found: dict[str, Record] = {}
    for record in records:
        if record.export:
            found.setdefault(record.export, record)
    return found


def pretraining(record: Record, exports: Mapping[str, Record]) -> Record | None:
    """The run that a record's weights come from; None when it is not among `exports` (see `by_export`)."""
    return exports.get(record.weights_id)


def lineage(record: Record, exports: Mapping[str, Record]) -> list[Record]:
    """The runs that a record's weights come from, the last one first; as far back as they are known."""
    found: list[Record] = []
    seen = {record.run_key}
    while (parent := pretraining(found[-1] if found else record, exports)) and parent.run_key not in seen:
        found.append(parent)
        seen.add(parent.run_key)
    return found


def configurations(
    records: Sequence[Record], exports: Mapping[str, Record], without: Collection[str] = ()
) -> list[str]:
    """For each record the digest of its configuration: runs of equal ones differ in seeds alone.

    Weights whose training is known count by its configuration, so that pretraining seeds are seeds as well, and the
    backbone's name, which may be that of the exported folder, does not count then. Other weights count by their id.

    Args:
        exports: see `by_export`.
        without: names of options and of the backbone's fields to leave out, those of the pretraining run behind
            `pretraining.`. A field of the backbone is left out there too.
    """
    origins: dict[tuple[str, frozenset[str]], str] = {}
    same: dict[tuple[Any, ...], str] = {}
    found = []
    for record in records:
        short = _short(record) if _has_key_content(record) else None
        if short is not None and not without and short in same:
            found.append(same[short])
            continue
        chain = lineage(record, exports)
        # What the last run started from may be a run as well, whose weights lead back to one that is seen.
        first = chain[-1] if chain else record
        origin = first.origin.get("training") or first.weights_id
        left_out = [without]
        for _ in chain:
            left_out.append(in_pretraining(left_out[-1], record.backbone))
        for depth in range(len(chain), 0, -1):
            parent = chain[depth - 1]
            key = (parent.run_key, frozenset(left_out[depth]))
            if key not in origins:
                origins[key] = _configuration(parent, left_out[depth], origin, depth < len(chain))
            origin = origins[key]
        found.append(_configuration(record, without, origin, bool(chain)))
        if short is not None:
            same[short] = found[-1]
    return found


def _short(record: Record) -> tuple[Any, ...]:
    """What decides a record's configuration without a digest: what its identity counts besides the seed, and the rest
    that a protocol counts.
    """
    ranks = (record.environment.get(name) for name in ("world_size", "sequence_parallel"))
    return (record.config_digest, record.dataset.get("skipped"), record.weights_id, *ranks)


def alike(record: Record) -> tuple[Any, ...]:
    """What runs that differ in seeds alone have in common, started from equal weights: by the digest of their identity,
    and by the number of their processes where it counts.
    """
    return (record.config_digest, processes(record))


def processes(record: Record) -> int | None:
    """The number of processes where it counts, see `protocol`; None elsewhere."""
    return _processes(record, _values(record)).get("world_size")


def in_pretraining(without: Collection[str], backbone: Mapping[str, Any]) -> Collection[str]:
    """Of names to leave out, those to leave out of the run that the weights come from."""
    behind = {name.removeprefix(PRETRAINING) for name in without if name.startswith(PRETRAINING)}
    return behind | {name for name in without if name in backbone}


def _configuration(record: Record, without: Collection[str], origin: str, known: bool) -> str:
    hidden = {*without, "name"} if known else without
    backbone = {name: value for name, value in backbone_of(record, without).items() if name not in hidden}
    return digest_of([protocol(record, without), backbone, origin])
