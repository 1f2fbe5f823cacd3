"""Protocols: everything that two numbers must share to be compared, and where weights come from. Imports no torch.

A configuration is a backbone, the training that its weights come from, and a protocol. Its runs differ only in seeds.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from backbones.archs import ARCHS, plain_vits
from backbones.spec import BackboneSpec
from backbones.stems import STEMS, find_stem
from transfer.cli.options import BACKBONE_OPTIONS, PretrainRunOptions
from transfer.core.errors import UserError
from transfer.core.options import Execution, Needs, idle_options, noted
from transfer.core.user_code import USER_PARTS, is_in_file, is_user_part
from transfer.engine.options import RESOLVED, FitOptions
from transfer.records.record import Record, digest_of
from transfer.task import Task, load_task

Exports = Mapping[str, Record]
"""Records of the runs that exported weights, by the id of these weights."""
NOT_RECORDED = "not recorded"
NO_EFFECT = "no effect"
PRETRAINING = "pretraining."
"""Prefix of the fields of the run that the weights come from."""
OF_DATA = "dataset_"
"""Prefix of the fields that describe the contents of a dataset."""
HEAD_TASKS = {"linear": False, "segment": True}
"""Tasks that train a head on a frozen backbone; whether it has a batch norm."""


def protocol(record: Record, without: Collection[str] = ()) -> dict[str, Any]:
    """Return everything besides backbone, weights and seed that must be equal for two numbers to be compared.

    The flat dict has: task and version; name, version, contents and unreadable images of the dataset; the options of
    the task; the resolved precisions of training and of scoring; the kind of device; smoke and subset. Options that do
    not act (see `transfer.core.options`) and options of execution are left out. A file that an option names counts by
    its content.

    The number of processes (`world_size`; those that share the tokens of an image count as one) belongs to it if each
    process computes something from its own part of the batch, see `per_process`. The version of torch does not belong
    to it: every update would separate rows. `transfer.records.grouping` marks rows of several machines instead.

    Args:
        record: the record.
        without: names to leave out, such as those that a map varies on purpose. Options that act by these alone stay,
            so that all values of the varied options have the same fields.
    """
    return {name: value for name, value in displayed_fields(record, without).items() if value != NO_EFFECT}


def displayed_fields(record: Record, without: Collection[str] = ()) -> dict[str, Any]:
    """Return `protocol` for readers, in which what has no effect has the value `NO_EFFECT`."""
    counted = _without_fields(record, without)
    # these change no score, or other entries of a record describe them
    left_out = not_of_task(record.task).union(RESOLVED, BACKBONE_OPTIONS)
    options = _without(record.options, left_out)
    ineffective = left_out.union(idle(counted))
    acting = _without(record.run_key_content.get("options", record.options), ineffective)
    for name, value in record.run_key_content.get("content", {}).items():
        field = name if name in options.keys() - ineffective else f"{OF_DATA}{name}"
        acting[field] = f"sha256:{digest_of(value)}"
    environment = record.environment
    content = {
        "task": record.task,
        "task_version": record.task_version,
        "dataset": record.dataset.get("name"),
        "dataset_version": record.dataset.get("version"),
        "dataset_digest": record.dataset.get("digest"),
        "skipped": record.dataset.get("skipped", 0),
        "precision": environment.get("precision") or NO_EFFECT,
        "eval_precision": environment.get("eval_precision"),
        "device_type": environment.get("device_type"),
        "smoke": record.smoke,
        "subset": record.subset,
        **{f"{part} sha256": code["sha256"] for part, code in record.user_code.items()},
        "world_size": (_world(record) or NOT_RECORDED) if per_process(counted) else NO_EFFECT,
        **acting,
    }
    return _without(content | {name: NO_EFFECT for name in options if name not in content}, without)


@lru_cache
def known_task(name: str) -> Task:
    """Return the task that made a record; for a user's the common rules: no file is run that a record alone names."""
    try:
        return Task() if is_in_file(name) else load_task(name)
    except (ImportError, AttributeError):
        return Task()


def _options_of(task: str) -> type[Any]:
    """Return the dataclass of a task's options; of a user's task that of training."""
    return getattr(known_task(task), "options", FitOptions)


@lru_cache
def not_of_task(task: str) -> frozenset[str]:
    """Return the recorded options that are not a task's own: those of every command, and those of execution."""
    return frozenset((*(item.name for item in fields(PretrainRunOptions)), *noted(_options_of(task), Execution)))


def _without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _without_fields(record: Record, names: Collection[str]) -> Record:
    """Return a record without some options and fields of the backbone, from which nothing is to be concluded."""
    if not names:
        return record
    return replace(record, options=_without(record.options, names), backbone=_without(record.backbone, names))


def idle(record: Record) -> set[str]:
    """Return the options and the fields of the backbone that do not act."""
    fields = {name: value for name, value in record.backbone.items() if value is not None}
    needs = noted(BackboneSpec, Needs) | noted(_options_of(record.task), Needs)
    ineffective = {*idle_options(needs, {**_without(record.options, BACKBONE_OPTIONS), **fields})}
    return ineffective if _synchronises(record) else ineffective | {"sync_bn"}


def _world(record: Record) -> int | None:
    """Return the number of processes, of which those that share the tokens of an image count as one."""
    world, sharing = (record.environment.get(name) for name in ("world_size", "sequence_parallel"))
    return world // (sharing or 1) if isinstance(world, int) else None


def processes(record: Record) -> int | None:
    """Return the number of processes if it belongs to the protocol, see `protocol`; else None."""
    return _world(record) if per_process(record) else None


def trains(options: Mapping[str, Any]) -> bool:
    """Return whether a run with these options trains: for `epochs` above 0, or without them in some `precision`."""
    epochs = options.get("epochs")
    return "precision" in options if epochs is None else epochs > 0


def per_process(record: Record) -> list[str]:
    """Return the computations that each process makes from its own part of a batch.

    The list is empty if the number of processes changes nothing. Computations that do not depend on how a batch is
    shared are not in it: mining and the neck of `reid`, which see the features of all processes; stochastic depth and
    augmentation, whose draws are functions of the sample; DINO's center.
    """
    task, options, backbone = record.task, record.options, record.backbone
    if not trains(options):
        return []
    mixes = options.get("mix_prob") and (options.get("mixup") or options.get("cutmix"))
    own_norm = options.get("sync_bn") is False and task != "detect"
    computations = {
        "batch norm": own_norm and _trains_batch_norm(task, backbone),
        "mixing": mixes,
        "the mixing of tokens": options.get("dense_weight"),
        "the perturbation of SAM": options.get("sam", "none") != "none" and options.get("sam_sync") is False,
        "regions and their number": task == "detect",
        "the draws of its model": backbone and task not in HEAD_TASKS and not _is_known(backbone),
        "what the record does not say": "sync_bn" not in options,
    }
    return [computation for computation, holds in computations.items() if holds]


def _synchronises(record: Record) -> bool:
    """Return whether the value of `sync_bn` changes anything.

    It needs a batch norm that trains; detectors and the head of `segment` have some of their own. One process computes
    alike without it; with it, it computes what any number of processes does.
    """
    alone = _world(record) == 1 and record.options.get("sync_bn") is False
    return record.task == "detect" or (not alone and _trains_batch_norm(record.task, record.backbone))


def _is_known(backbone: Mapping[str, Any]) -> bool:
    """Return whether it is known what a backbone computes and draws: not of users' parts and most timm models."""
    arch = str(backbone.get("arch") or "")
    users = any(is_user_part(str(backbone.get(name) or "")) for name in USER_PARTS)
    return not users and (arch in ARCHS or arch.split(".")[0] in plain_vits())


def _trains_batch_norm(task: str, backbone: Mapping[str, Any]) -> bool:
    """Return whether a batch norm is trained, or may be where it is not known what the backbone has."""
    if task in HEAD_TASKS:
        return HEAD_TASKS[task]
    if not _is_known(backbone):
        return True
    if backbone["arch"] not in ARCHS:
        return False
    return backbone.get("ffn") == "conv1d_bn" or _may_have_batch_norm(str(backbone.get("stem") or ""))


@lru_cache
def _may_have_batch_norm(stem: str) -> bool:
    try:
        return bool({"BN", "IBN"} & {*find_stem(stem).norms})
    except UserError:  # a stem of another version of the suite
        return True


def backbone_of(record: Record, without: Collection[str] = ()) -> dict[str, Any]:
    """Return `resolved_backbone`, in which a field without effect, such as the length with softmax, is `NO_EFFECT`.

    Args:
        record: the record.
        without: names that take the effect from no field here; see `protocol`. No field is left out.
    """
    values, ineffective = resolved_backbone(record), idle(_without_fields(record, without))
    return values | {name: NO_EFFECT for name in ineffective if name in values}


def resolved_backbone(record: Record) -> dict[str, Any]:
    """Return the backbone's fields without its weights, such that equal backbones have equal fields.

    Equal stems have one name, and users' files are named by their content. The dict is empty if the run failed before
    it had a model.
    """
    values = named_by_content(record.backbone)
    if stem := values.get("stem"):
        values["stem"] = stem_name(stem, values.get("patch"))
    return values


def named_by_content(backbone: Mapping[str, Any]) -> dict[str, Any]:
    """Return a backbone without weights, stems in canonical form, and users' parts by the sha256 of their files."""
    values, files = _without(backbone, ("weights", "files")), backbone.get("files") or {}
    stem, patch = values.get("stem"), values.get("patch")
    if stem and patch and "stem" not in files and not is_user_part(stem):
        values["stem"] = canonical_stem(stem, patch)
    for part, sha in files.items():
        values[part] = f"sha256:{sha}:{str(values.get(part)).rpartition(':')[2]}"
    return values


@lru_cache
def canonical_stem(stem: str, patch: int) -> str:
    """Return the canonical form of a stem; unchanged if no stem of this patch size has the name."""
    try:
        return str(find_stem(stem).sized(patch))
    except UserError:  # of another version of the suite, or strides of another patch size
        return stem


@lru_cache
def stem_name(text: str, patch: int | None) -> str:
    """Return a stem's short name, else its canonical form; any other text is unchanged."""
    if not patch or is_user_part(text):
        return text
    stem = canonical_stem(text, patch)
    return next((name for name in STEMS if canonical_stem(name, patch) == stem), stem)


def by_export(records: Iterable[Record]) -> dict[str, Record]:
    """Return the runs that left weights by the id of these, which is the `weights_id` of runs that start from them."""
    exports: dict[str, Record] = {}
    for record in records:
        if record.export:
            exports.setdefault(record.export, record)
    return exports


def pretraining(record: Record, exports: Exports) -> Record | None:
    """Return the run that a record's weights come from; None if it is not among `exports` (see `by_export`)."""
    return exports.get(record.weights_id)


def lineage(record: Record, exports: Exports) -> list[Record]:
    """Return the trainings that a record's weights come from, the last one first, as far as they are known."""
    chain: list[Record] = []
    seen = {record.run_key}
    while (parent := pretraining(chain[-1] if chain else record, exports)) and parent.run_key not in seen:
        chain.append(parent)
        seen.add(parent.run_key)
    return chain


def configurations(records: Sequence[Record], exports: Exports, without: Collection[str] = ()) -> list[str]:
    """Return the digest of each record's configuration; runs with equal digests differ only in seeds.

    Weights of a known training count by its configuration, so that seeds of a pretraining are seeds too; the name of
    the backbone, which may be that of the exported folder, does not count then. Other weights count by their id.

    Args:
        records: the records.
        exports: see `by_export`.
        without: names of options and fields of the backbone to leave out; those of the pretraining have the prefix
            `pretraining.`, and a field of the backbone is left out of the pretraining too.
    """
    known: dict[tuple[Any, ...], str] = {}

    def configuration(record: Record, without: Collection[str], seen: frozenset[str]) -> str:
        facts = (*_deciding_facts(record), frozenset(without))
        if facts not in known:
            origin, hidden = record.origin.get("training") or record.weights_id, frozenset(without)
            parent = pretraining(record, exports)
            if parent and parent.run_key not in seen:  # an export may lead back to a run that starts from it
                left_out = in_pretraining(without, record.backbone)
                origin, hidden = configuration(parent, left_out, seen | {parent.run_key}), hidden | {"name"}
            backbone = _without(backbone_of(record, without), hidden)
            known[facts] = digest_of([protocol(record, without), backbone, origin])
        return known[facts]

    return [configuration(record, without, frozenset([record.run_key])) for record in records]


def _deciding_facts(record: Record) -> tuple[Any, ...]:
    """Return facts that decide a record's configuration and need no digest: those of its run key, without the seed,
    and the others that belong to a protocol.
    """
    machine = (record.environment.get(name) for name in ("world_size", "sequence_parallel", "device_type"))
    return (record.config_digest, record.dataset.get("skipped"), record.weights_id, *machine)


def in_pretraining(without: Collection[str], backbone: Mapping[str, Any]) -> Collection[str]:
    """Return the names to leave out of the run that the weights come from, see `configurations`."""
    of_pretraining = {name.removeprefix(PRETRAINING) for name in without if name.startswith(PRETRAINING)}
    return of_pretraining | {name for name in without if name in backbone}
