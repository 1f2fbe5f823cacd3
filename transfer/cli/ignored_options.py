"""The rules by which options have no effect, in one table for the values of commands and of records. Imports no torch.

The rules decide which flags are refused (`transfer.cli.command`), what belongs to the identity of a run
(`transfer.evaluation.planned_run`), and by which protocol older and newer records are compared
(`transfer.records.protocol`). A rule holds only if all values on which it depends are known and fulfil it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from backbones.archs import ARCHS, VITS, VOLOS, plain_vits
from backbones.errors import UserError
from backbones.stems import find_stem
from backbones.user_code import is_user_part
from transfer.cli.options import BackboneOptions

FROZEN = ("knn", "fewshot", "classify", "tokens")
"""Tasks that train nothing."""


@dataclass(frozen=True)
class Condition:
    """A condition on a value other than equality; `text` is a phrase that follows the name of the option."""

    text: str
    holds: Callable[[Any], bool]


ON, OFF = Condition("given", bool), Condition("none or 0", lambda value: not value)
RATE = Condition("a rate", lambda value: value is not None)
ONE = Condition("of one value", lambda value: len(value) == 1)
UNCERTAIN = Condition("", lambda value: value is not False)
"""The condition that a fact is true or unknown."""


def other_than(*others: Any) -> Condition:
    """Return the condition that a value is none of these."""
    return Condition(f"other than {' and '.join(map(str, others))}", lambda value: value not in others)


def one_of(*values: Any) -> Condition:
    """Return the condition that a value is one of these."""
    return Condition(" or ".join(map(str, values)), lambda value: value in values)


@dataclass(frozen=True)
class Rule:
    """Options that have no effect if all other values are as `when` requires.

    Attributes:
        options: the names of the options.
        when: the required value, or a `Condition`, of each name on which the rule depends.
        because: the reason as text; empty if the required values are the reason.
        refused: whether a flag is refused then. It is not if the flag turns something off, or if it asks for something
            that does not belong to the computation.
    """

    options: tuple[str, ...]
    when: Mapping[str, Any]
    because: str = ""
    refused: bool = True

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether the options have no effect with these values."""
        return all(name in values and _fulfils(values[name], wanted) for name, wanted in self.when.items())

    def reason(self, values: Mapping[str, Any]) -> str:
        """Return the reason that a refusal gives: "with --optimizer adamw"."""
        if self.because:
            return self.because
        unset = [name for name in self.when if values[name] in (None, [], ()) or values[name] is False]
        set_flags = [_flag_with_value(name, values[name]) for name in self.when if name not in unset]
        parts = ["with " + " ".join(set_flags)] * bool(set_flags)
        parts += ["without " + " or ".join(map(_flag, unset))] * bool(unset)
        return " and ".join(parts)

    def condition(self) -> str:
        """Return when the rule holds, as the page of options prints it."""
        names = [name for name in self.when if name not in FACTS and f"--{name}" not in self.because]
        parts = [f"`{name}` {_text(self.when[name])}" for name in names]
        return ", ".join([*parts, self.because.removeprefix("with ")] if self.because else parts)


def _fulfils(value: Any, wanted: Any) -> bool:
    try:
        return bool(wanted.holds(value)) if isinstance(wanted, Condition) else bool(value == wanted)
    except (AttributeError, TypeError):  # a value of another type, which only another version can have written
        return False


def _text(wanted: Any) -> str:
    if isinstance(wanted, Condition):
        return wanted.text
    return {True: "on", False: "off"}[wanted] if isinstance(wanted, bool) else "none" if wanted is None else str(wanted)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _flag_with_value(name: str, value: Any) -> str:
    if value is True:
        return _flag(name)
    values = value if isinstance(value, list | tuple) else [value]
    return " ".join([_flag(name), *(f"{item:g}" if isinstance(item, float) else str(item) for item in values)])


def _rule(options: str, because: str = "", *, refused: bool = True, **when: Any) -> Rule:
    return Rule(tuple(options.split()), when, because, refused)


FACTS = ("task", "batch_norm", "ours", "plain")
"""The facts on which a rule may depend besides options and fields of the backbone, see `rule_inputs`."""
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
    _rule("nodes gpus processes cpus memory_gb minutes partition account qos constraint", launcher="local"),
    # without training, all that is about training
    *(_rule(options, "with --epochs 0", epochs=0, task=task) for task, options in UNUSED_WITHOUT_TRAINING.items()),
    # the training loop
    _rule("momentum", optimizer="adamw"),
    _rule("decay_scale", optimizer="sgd"),
    _rule("no_decay decay_norm decay_scale", weight_decay=0, weight_decay_end=OFF),
    _rule("decay_norm", no_decay=Condition("without 1d", lambda patterns: "1d" not in patterns)),
    _rule("decay_norm", "in linear, which trains no norm", task="linear"),
    _rule("layer_decay", "in linear, whose backbone is frozen", task="linear"),
    _rule("schedule_offset", schedule="step"),
    _rule("warmup_lr warmup_lr_factor warmup_inclusive warmup_prefix", warmup_epochs=0),
    _rule("min_lr min_lr_factor warmup_prefix", milestones=ON),
    _rule("cooldown_epochs", milestones=ON, weight_decay_end=None),
    _rule("milestones", refused=False, milestones=OFF),
    _rule("warmup_lr_factor", "beside a rate (add --warmup-lr None)", warmup_lr=RATE),
    _rule("min_lr_factor", "beside a rate (add --min-lr None)", min_lr=RATE),
    _rule("clip_grad_per_param", clip_grad=None),
    _rule("sam_rho sam_sync", sam="none"),
    _rule("sync_bn", _NO_NORM, batch_norm=False, task=other_than("linear", "detect")),
    _rule("sync_bn", _NO_NORM, batch_norm=False, task="detect", detector=_SHIPPED),
    _rule("sync_bn", norm_eval=True, detector=_SHIPPED),
    _rule("sync_bn", "in linear, whose backbone is frozen", task="linear"),
    _rule("grad_accum_steps", "in linear, whose images see nothing of each other", refused=False, task="linear"),
    _rule("grad_accum_steps", _NO_NORM, refused=False, task="pretrain-dino", batch_norm=False),
    _rule("grad_accum_steps", _NO_NORM, refused=False, batch_norm=False, dense_weight=0, mixup=0, cutmix=0),
    _rule("grad_accum_steps", _NO_NORM, refused=False, batch_norm=False, dense_weight=0, mix_prob=0),
    # labels and their mixing
    _rule("fraction_seed", label_fraction=1),
    _rule("mixing mix_prob switch_prob", mixup=0, cutmix=0),
    _rule("mixing mixup cutmix switch_prob", mix_prob=0),
    _rule("mixup cutmix", refused=False, mixup=0, cutmix=0),
    _rule("mix_prob", refused=False, mix_prob=0),
    _rule("switch_prob", mixup=0),
    _rule("switch_prob", cutmix=0),
    _rule("ema", export="raw"),
    _rule("drop_path", "with a model of the user's own, which keeps its own", arch=_USERS),
    # augmentation: a transform that a kind lacks must be off there
    _rule("auto_augment color_jitter erase", refused=False, augment=other_than("timm", "pad")),
    _rule("image_ops", refused=False, image_ops="pil"),
    _rule("pad", refused=False, augment=other_than("pad")),
    _rule("randaug", refused=False, augment=other_than("bigvision")),
    _rule("crop_area crop_ratio", augment="pad"),
    # timm's rule, except for the policies that include colour jitter
    _rule("color_jitter", augment=one_of("timm", "pad"),
          auto_augment=Condition("given", lambda text: bool(text) and "3a" not in text)),
    # DINO
    _rule("local_size local_area local_bn", local_crops=0),
    _rule("warmup_teacher_temp", warmup_teacher_temp_epochs=0),
    _rule("local_bn", teacher_bn="own", export="teacher"),
    _rule("teacher_bn local_bn", _NO_NORM, batch_norm=False),
    # re-identification
    _rule("msmt17_val", dataset=one_of("market1501", "toy_market")),
    _rule("margin", triplet_weight=0),
    _rule("label_smoothing", identity_weight=0),
    _rule("rerank_k1 rerank_k2 rerank_lambda", rerank=False),
    _rule("rerank_k1 rerank_k2", rerank=True, rerank_lambda=1),
    # probes and diagnostics
    _rule("blocks", "with a backbone that is no plain vision transformer", task="linear", plain=False),
    _rule("l2", probe=other_than("ridge")),
    _rule("logistic_l2", probe=other_than("logistic")),
    _rule("k temperature", probe=other_than("knn")),
    _rule("select", "with one value of --l2", probe="ridge", l2=ONE),
    _rule("select", "with one value of --logistic-l2", probe="logistic", logistic_l2=ONE),
    _rule("select", "with one value of --k", probe="knn", k=ONE),
    _rule("class_token", "with --pool gap, which has no class token", task="tokens", ours=True, pool="gap"),
    # detection
    _rule("taps", pyramid="simple"),
    _rule("window_padding global_blocks", window=0),
    _rule("norm_eval", _NO_NORM, batch_norm=False),
    # the backbone
    _rule("alpha length", attention=_UNSCALED),
    _rule("alpha length", attention=_USERS),
    _rule("train_size", attention=_UNSCALED),
    _rule("train_size", attention=_USERS),
    _rule("train_size", length=other_than("train")),
    _rule("length train_size", alpha=0),
    _rule("class_position", "with --pool gap, which has no class token", ours=True, pool="gap"),
    _rule("load", weights="random"),
    _rule("drop_path", "where nothing trains", refused=False, task=one_of(*FROZEN, "linear")),
)
PER_PROCESS: tuple[Rule, ...] = (
    _rule("", "batch norm", batch_norm=UNCERTAIN, sync_bn=False, task=other_than("linear", "detect")),
    _rule("", "mixing", mix_prob=ON, mixup=ON),
    _rule("", "mixing", mix_prob=ON, cutmix=ON),
    _rule("", "the mixing of tokens", dense_weight=ON),
    _rule("", "the perturbation of SAM", sam=other_than("none"), sam_sync=False),
    _rule("", "regions and their number", task="detect"),
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
    return next((f"{_flag(name)} has no effect {reasons[name]}" for name in flags if name in reasons), "")


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
