"""The rules by which options have no effect, in one table for the values of commands and of records. Imports no torch.

The rules decide which flags are refused (`transfer.cli.command`), what belongs to the identity of a run
(`transfer.evaluation.planned_run`), and by which protocol older and newer records are compared
(`transfer.records.protocol`). A rule holds only if all values on which it depends are known and fulfil it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from backbones.archs import ARCHS, VITS, VOLOS, plain_vits
from backbones.errors import UserError
from backbones.stems import find_stem
from backbones.user_code import is_user_part
from transfer.cli.option_rules import (
    OFF,
    ON,
    ONE,
    RATE,
    UNCERTAIN,
    Condition,
    Rule,
    flag,
    no_effect,
    one_of,
    other_than,
)
from transfer.cli.options import BackboneOptions

FROZEN = ("knn", "fewshot", "classify", "tokens")
"""Tasks that train nothing."""


_NO_NORM = "with a backbone that has no batch norm"
_USERS = Condition("file.py:Name", lambda value: is_user_part(str(value)))
_UNSCALED = Condition("softmax, *_sum or file.py:Name", lambda value: value == "softmax" or value.endswith("_sum"))
_OWN_FILE = Condition("a YAML file", lambda value: str(value).endswith((".yaml", ".yml")))
_SHIPPED = Condition("a shipped one", lambda value: not _OWN_FILE.holds(value))

_LOOP = (
    "lr optimizer momentum weight_decay weight_decay_end no_decay decay_norm decay_scale layer_decay bias_lr_factor "
    "schedule schedule_offset warmup_epochs warmup_lr warmup_lr_factor warmup_inclusive warmup_prefix min_lr "
    "min_lr_factor milestones cooldown_epochs clip_grad clip_grad_per_param grad_accum_steps sam sam_rho sam_sync "
    "sync_bn precision trainable judge_after"
)
UNUSED_WITHOUT_TRAINING = {
    "reid": f"{_LOOP} num_identities num_instances flip pad erase drop_path identity_weight label_smoothing "
    "triplet_weight margin msmt17_val",
    "detect": f"{_LOOP} batch flip drop_path norm_eval validate_at",
    "linear": f"{_LOOP} batch crop_area flip validate_every",
}
"""Options of each task that score nothing: with `--epochs 0` they have no effect."""

# fmt: off
RULES: tuple[Rule, ...] = (
    # where a command runs
    no_effect("nodes gpus processes cpus memory_gb minutes partition account qos constraint", launcher="local"),
    # without training, all that is about training
    *(no_effect(options, "with --epochs 0", epochs=0, task=task) for task, options in UNUSED_WITHOUT_TRAINING.items()),
    # the training loop
    no_effect("momentum", optimizer="adamw"),
    no_effect("decay_scale", optimizer="sgd"),
    no_effect("no_decay decay_norm decay_scale", weight_decay=0, weight_decay_end=OFF),
    no_effect("decay_norm", no_decay=Condition("without 1d", lambda patterns: "1d" not in patterns)),
    no_effect("decay_norm", "in linear, which trains no norm", task="linear"),
    no_effect("layer_decay", "in linear, whose backbone is frozen", task="linear"),
    no_effect("schedule_offset", schedule="step"),
    no_effect("warmup_lr warmup_lr_factor warmup_inclusive warmup_prefix", warmup_epochs=0),
    no_effect("min_lr min_lr_factor warmup_prefix", milestones=ON),
    no_effect("cooldown_epochs", milestones=ON, weight_decay_end=None),
    no_effect("milestones", refused=False, milestones=OFF),
    no_effect("warmup_lr_factor", "beside a rate (add --warmup-lr None)", warmup_lr=RATE),
    no_effect("min_lr_factor", "beside a rate (add --min-lr None)", min_lr=RATE),
    no_effect("clip_grad_per_param", clip_grad=None),
    no_effect("sam_rho sam_sync", sam="none"),
    no_effect("sync_bn", _NO_NORM, batch_norm=False, task=other_than("linear", "detect")),
    no_effect("sync_bn", _NO_NORM, batch_norm=False, task="detect", detector=_SHIPPED),
    no_effect("sync_bn", norm_eval=True, detector=_SHIPPED),
    no_effect("sync_bn", "in linear, whose backbone is frozen", task="linear"),
    no_effect("grad_accum_steps", "in linear, whose images see nothing of each other", refused=False, task="linear"),
    no_effect("grad_accum_steps", _NO_NORM, refused=False, task="pretrain-dino", batch_norm=False),
    no_effect("grad_accum_steps", _NO_NORM, refused=False, batch_norm=False, dense_weight=0, mixup=0, cutmix=0),
    no_effect("grad_accum_steps", _NO_NORM, refused=False, batch_norm=False, dense_weight=0, mix_prob=0),
    # labels and their mixing
    no_effect("fraction_seed", label_fraction=1),
    no_effect("mixing mix_prob switch_prob", mixup=0, cutmix=0),
    no_effect("mixing mixup cutmix switch_prob", mix_prob=0),
    no_effect("mixup cutmix", refused=False, mixup=0, cutmix=0),
    no_effect("mix_prob", refused=False, mix_prob=0),
    no_effect("switch_prob", mixup=0),
    no_effect("switch_prob", cutmix=0),
    no_effect("ema", export="raw"),
    no_effect("drop_path", "with a model of the user's own, which keeps its own", arch=_USERS),
    # augmentation: a transform that a kind lacks must be off there
    no_effect("auto_augment color_jitter erase", refused=False, augment=other_than("timm", "pad")),
    no_effect("image_ops", refused=False, image_ops="pil"),
    no_effect("view", refused=False, view="bicubic", task="knn"),
    no_effect("pad", refused=False, augment=other_than("pad")),
    no_effect("randaug", refused=False, augment=other_than("bigvision")),
    no_effect("crop_area crop_ratio", augment="pad"),
    # timm's rule, except for the policies that include colour jitter
    no_effect("color_jitter", augment=one_of("timm", "pad"),
          auto_augment=Condition("given", lambda text: bool(text) and "3a" not in text)),
    # DINO
    no_effect("local_size local_area local_bn", local_crops=0),
    no_effect("warmup_teacher_temp", warmup_teacher_temp_epochs=0),
    no_effect("local_bn", teacher_bn="own", export="teacher"),
    no_effect("teacher_bn local_bn", _NO_NORM, batch_norm=False),
    # re-identification
    no_effect("msmt17_val", dataset=one_of("market1501", "toy_market")),
    no_effect("margin", triplet_weight=0),
    no_effect("label_smoothing", identity_weight=0),
    no_effect("rerank_k1 rerank_k2 rerank_lambda", rerank=False),
    no_effect("rerank_k1 rerank_k2", rerank=True, rerank_lambda=1),
    # probes and diagnostics
    no_effect("blocks", "with a backbone that is no plain vision transformer", task="linear", plain=False),
    no_effect("l2", probe=other_than("ridge")),
    no_effect("logistic_l2", probe=other_than("logistic")),
    no_effect("k temperature", probe=other_than("knn")),
    no_effect("select", "with one value of --l2", probe="ridge", l2=ONE),
    no_effect("select", "with one value of --logistic-l2", probe="logistic", logistic_l2=ONE),
    no_effect("select", "with one value of --k", probe="knn", k=ONE),
    no_effect("class_token", "with --pool gap, which has no class token", task="tokens", ours=True, pool="gap"),
    # detection
    no_effect("taps", pyramid="simple"),
    no_effect("window_padding global_blocks", window=0),
    no_effect("norm_eval", _NO_NORM, batch_norm=False),
    # the backbone
    no_effect("alpha length", attention=_UNSCALED),
    no_effect("alpha length", attention=_USERS),
    no_effect("train_size", attention=_UNSCALED),
    no_effect("train_size", attention=_USERS),
    no_effect("train_size", length=other_than("train")),
    no_effect("length train_size", alpha=0),
    no_effect("class_position", "with --pool gap, which has no class token", ours=True, pool="gap"),
    no_effect("load", weights="random"),
    no_effect("drop_path", "where nothing trains", refused=False, task=one_of(*FROZEN, "linear")),
)
PER_PROCESS: tuple[Rule, ...] = (
    no_effect("", "batch norm", batch_norm=UNCERTAIN, sync_bn=False, task=other_than("linear", "detect")),
    no_effect("", "mixing", mix_prob=ON, mixup=ON),
    no_effect("", "mixing", mix_prob=ON, cutmix=ON),
    no_effect("", "the mixing of tokens", dense_weight=ON),
    no_effect("", "the perturbation of SAM", sam=other_than("none"), sam_sync=False),
    no_effect("", "regions and their number", task="detect"),
)
# fmt: on
"""The computations that each process makes from its own part of a batch, so that the number of processes matters."""
_PARTS = {item.name for item in fields(BackboneOptions)}
_BACKBONE = {
    "alpha": 1.0, "length": "tokens", "train_size": [224, 224], "class_position": True, "load": "strict",
    "drop_path": 0.0,
}  # fmt: skip
"""The value of each field of the backbone while it has no effect."""


def rule_inputs(task: str, options: Mapping[str, Any], backbone: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the values on which the rules depend: options, the fields of the backbone, and facts that follow.

    Args:
        task: the name of the task in records.
        options: the options by name.
        backbone: the fields of the resolved backbone; None or empty if it is not known, so that no rule on it holds.
    """
    values = {name: value for name, value in options.items() if name not in _PARTS} | {"task": task}
    if backbone and backbone.get("arch"):
        arch = str(backbone["arch"]).split(".")[0]
        values |= {name: value for name, value in backbone.items() if name != "name" and value is not None}
        values |= {"batch_norm": _batch_norm(backbone), "ours": arch in VITS and not is_user_part(backbone["arch"])}
        values["plain"] = False if arch in VOLOS else True if arch in VITS or arch in plain_vits() else None
    return values


def ignored_options(values: Mapping[str, Any]) -> dict[str, Rule]:
    """Return the options and fields without effect among these values, each with the first rule that holds."""
    ignored: dict[str, Rule] = {}
    for rule in _applicable(frozenset(values)):
        if rule.holds(values):
            for name in rule.options:
                ignored.setdefault(name, rule)
    return ignored


@lru_cache
def _applicable(names: frozenset[str]) -> tuple[Rule, ...]:
    """Return the rules that can hold if only these names have a value."""
    return tuple(rule for rule in RULES if rule.when.keys() <= names)


def refusal(values: Mapping[str, Any], flags: Iterable[str]) -> str:
    """Return why the first flag without effect is refused; empty if all flags have an effect."""
    reasons: dict[str, str] = {}
    for rule in RULES:
        if rule.refused and rule.holds(values):
            reasons |= {name: rule.reason(values) for name in rule.options if name not in reasons}
    return next((f"{flag(name)} has no effect {reasons[name]}" for name in flags if name in reasons), "")


def with_default_fields(backbone: Mapping[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """Return a backbone's fields with ignored ones at their default values, so that they distinguish nothing."""
    return {name: _BACKBONE[name] if name in ignored and name in _BACKBONE else backbone[name] for name in backbone}


def per_process(values: Mapping[str, Any]) -> list[str]:
    """Return the computations that each process makes from its own part of a batch.

    The list is empty if the number of processes changes nothing. Computations that do not depend on how a batch is
    shared are not in it: mining and the neck of `reid`, which see the features of all processes; stochastic depth and
    augmentation, whose draws have the same distribution; DINO's center.
    """
    if values["task"] in FROZEN or values.get("epochs") == 0:
        return []
    computations = [rule.because for rule in PER_PROCESS if rule.holds({"batch_norm": None} | dict(values))]
    return list(dict.fromkeys(computations if "sync_bn" in values else [*computations, "what the record does not say"]))


def _batch_norm(backbone: Mapping[str, Any]) -> bool | None:
    """Return whether a backbone has batch norm; None if it is not known, as for users' parts and most timm models."""
    arch, stem, ffn = (str(backbone.get(name) or "") for name in ("arch", "stem", "ffn"))
    if any(is_user_part(str(backbone.get(name) or "")) for name in ("arch", "stem", "attention", "ffn")):
        return None
    if arch not in ARCHS:
        return False if arch.split(".")[0] in plain_vits() else None
    return True if ffn == "conv1d_bn" else _in_stem(stem)


@lru_cache
def _in_stem(stem: str) -> bool | None:
    try:
        return bool({"BN", "IBN"} & {*find_stem(stem).norms})
    except UserError:  # a stem of another version of the suite
        return None
