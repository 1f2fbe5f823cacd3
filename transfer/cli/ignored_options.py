"""Which options change nothing, and when: one table, asked of plain values, of a command's and of a record's alike.

What a rule says holds for the refusal of a flag (`transfer.cli.command`), for the identity of a run
(`transfer.evaluation.planned_run`) and for the protocol that older and newer records are compared by
(`transfer.records.protocol`). A rule holds where all that it asks for is known and so: of what a record does not say
nothing is concluded. Imports no torch.
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
    """What a value must be, where that is not one value, in words that follow the name of the option."""

    words: str
    holds: Callable[[Any], bool]


ON, OFF = Condition("given", bool), Condition("none or 0", lambda value: not value)
RATE = Condition("a rate", lambda value: value is not None)
ONE = Condition("of one value", lambda value: len(value) == 1)
UNCERTAIN = Condition("", lambda value: value is not False)
"""The condition that a fact may be true or unknown."""


def but(*others: Any) -> Condition:
    """Any value but these."""
    return Condition(f"other than {' and '.join(map(str, others))}", lambda value: value not in others)


def of(*values: Any) -> Condition:
    """One of these values."""
    return Condition(" or ".join(map(str, values)), lambda value: value in values)


@dataclass(frozen=True)
class Rule:
    """Options that change nothing where other values are as `when` says, all of them.

    Attributes:
        because: in words, where the values themselves do not say it.
        refused: whether a flag is refused there; not where it is how one turns something off, or asks for something
            that is no part of what is computed.
    """

    options: tuple[str, ...]
    when: Mapping[str, Any]
    because: str = ""
    refused: bool = True

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether these values take the effect from the options."""
        return all(name in values and _is(values[name], wanted) for name, wanted in self.when.items())

    def reason(self, values: Mapping[str, Any]) -> str:
        """Why, as a refusal says it: "with --optimizer adamw"."""
        if self.because:
            return self.because
        lacking = [name for name in self.when if values[name] in (None, [], ()) or values[name] is False]
        there = [_said(name, values[name]) for name in self.when if name not in lacking]
        parts = ["with " + " ".join(there)] * bool(there)
        parts += ["without " + " or ".join(map(_flag, lacking))] * bool(lacking)
        return " and ".join(parts)

    def condition(self) -> str:
        """When it holds, for the page of options."""
        told = [name for name in self.when if name not in FACTS and f"--{name}" not in self.because]
        asked = [f"`{name}` {_worded(self.when[name])}" for name in told]
        return ", ".join([*asked, self.because.removeprefix("with ")] if self.because else asked)


def _is(value: Any, wanted: Any) -> bool:
    try:
        return bool(wanted.holds(value)) if isinstance(wanted, Condition) else bool(value == wanted)
    except (AttributeError, TypeError):  # a value of another kind, as only another version could have written
        return False


def _worded(wanted: Any) -> str:
    if isinstance(wanted, Condition):
        return wanted.words
    return {True: "on", False: "off"}[wanted] if isinstance(wanted, bool) else "none" if wanted is None else str(wanted)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _said(name: str, value: Any) -> str:
    if value is True:
        return _flag(name)
    values = value if isinstance(value, list | tuple) else [value]
    return " ".join([_flag(name), *(f"{one:g}" if isinstance(one, float) else str(one) for one in values)])


def _rule(options: str, because: str = "", *, refused: bool = True, **when: Any) -> Rule:
    return Rule(tuple(options.split()), when, because, refused)


FACTS = ("task", "batch_norm", "ours", "plain")
"""What a rule can ask for besides options and fields of the backbone, see `known`."""
_NO_NORM = "with a backbone that has no batch norm"
_USERS = Condition("file.py:Name", lambda value: is_user_part(str(value)))
_UNSCALED = Condition("softmax, *_sum or file.py:Name", lambda value: value == "softmax" or value.endswith("_sum"))
_OWN_FILE = Condition("a YAML file", lambda value: str(value).endswith((".yaml", ".yml")))
_SHIPPED = Condition("a shipped one", lambda value: not _OWN_FILE.holds(value))

# fmt: off
RULES: tuple[Rule, ...] = (
    # where a command runs
    _rule("nodes gpus processes cpus memory_gb minutes partition account qos constraint", launcher="local"),
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
    _rule("sync_bn", _NO_NORM, batch_norm=False, task=but("linear", "detect")),
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
    # augmentation: what a kind has not must be off there
    _rule("auto_augment color_jitter erase", refused=False, augment=but("timm", "pad")),
    _rule("pad", refused=False, augment=but("pad")),
    _rule("randaug", refused=False, augment=but("bigvision")),
    _rule("crop_area crop_ratio", augment="pad"),
    # timm's rule, but for the policies that bring colour jitter along
    _rule("color_jitter", augment=of("timm", "pad"),
          auto_augment=Condition("given", lambda text: bool(text) and "3a" not in text)),
    # DINO
    _rule("local_size local_area local_bn", local_crops=0),
    _rule("warmup_teacher_temp", warmup_teacher_temp_epochs=0),
    _rule("local_bn", teacher_bn="own", export="teacher"),
    _rule("teacher_bn local_bn", _NO_NORM, batch_norm=False),
    # re-identification
    _rule("msmt17_val", dataset=of("market1501", "toy_market")),
    _rule("margin", triplet_weight=0),
    _rule("label_smoothing", identity_weight=0),
    _rule("rerank_k1 rerank_k2 rerank_lambda", rerank=False),
    _rule("rerank_k1 rerank_k2", rerank=True, rerank_lambda=1),
    # probes and diagnostics
    _rule("blocks", "with a backbone that is no plain vision transformer", task="linear", plain=False),
    _rule("l2", probe=but("ridge")),
    _rule("logistic_l2", probe=but("logistic")),
    _rule("k temperature", probe=but("knn")),
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
    _rule("train_size", length=but("train")),
    _rule("length train_size", alpha=0),
    _rule("class_position", "with --pool gap, which has no class token", ours=True, pool="gap"),
    _rule("load", weights="random"),
    _rule("drop_path", "where nothing trains", refused=False, task=of(*FROZEN, "linear")),
)
APART: tuple[Rule, ...] = (
    _rule("", "batch norm", batch_norm=UNCERTAIN, sync_bn=False, task=but("linear", "detect")),
    _rule("", "mixing", mix_prob=ON, mixup=ON),
    _rule("", "mixing", mix_prob=ON, cutmix=ON),
    _rule("", "the mixing of tokens", dense_weight=ON),
    _rule("", "the perturbation of SAM", sam=but("none"), sam_sync=False),
    _rule("", "regions and their number", task="detect"),
)
# fmt: on
"""What each process does with its own part of a batch, so that their number is part of what is computed."""
_PARTS = {item.name for item in fields(BackboneOptions)}
_BACKBONE = {
    "alpha": 1.0, "length": "tokens", "train_size": [224, 224], "class_position": True, "load": "strict",
    "drop_path": 0.0,
}  # fmt: skip
"""What a field of the backbone that changes nothing counts as."""


def known(task: str, options: Mapping[str, Any], backbone: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the rules are asked of: options, the fields of the backbone, and facts that follow.

    Args:
        backbone: as resolved; None or empty where it is not known, and then nothing is said about it.
    """
    values = {name: value for name, value in options.items() if name not in _PARTS} | {"task": task}
    if backbone and backbone.get("arch"):
        arch = str(backbone["arch"]).split(".")[0]
        values |= {name: value for name, value in backbone.items() if name != "name" and value is not None}
        values |= {"batch_norm": _batch_norm(backbone), "ours": arch in VITS and not is_user_part(backbone["arch"])}
        values["plain"] = False if arch in VOLOS else True if arch in VITS or arch in plain_vits() else None
    return values


def ignored_options(values: Mapping[str, Any]) -> dict[str, Rule]:
    """The options and fields that change nothing among these values, each with the first rule that says so."""
    found: dict[str, Rule] = {}
    for rule in _answerable(frozenset(values)):
        if rule.holds(values):
            for name in rule.options:
                found.setdefault(name, rule)
    return found


@lru_cache
def _answerable(names: frozenset[str]) -> tuple[Rule, ...]:
    """The rules that ask for nothing else: all that can hold where these names have a value."""
    return tuple(rule for rule in RULES if rule.when.keys() <= names)


def refused(values: Mapping[str, Any], written: Iterable[str]) -> str:
    """Why the first flag of those that were written cannot stand there; empty where all have an effect."""
    why: dict[str, str] = {}
    for rule in RULES:
        if rule.refused and rule.holds(values):
            why |= {name: rule.reason(values) for name in rule.options if name not in why}
    return next((f"{_flag(name)} has no effect {why[name]}" for name in written if name in why), "")


def usual(backbone: Mapping[str, Any], without: Collection[str]) -> dict[str, Any]:
    """A backbone's fields with those that change nothing at one value, so that they tell nothing apart."""
    return {name: _BACKBONE[name] if name in without and name in _BACKBONE else backbone[name] for name in backbone}


def apart(values: Mapping[str, Any]) -> list[str]:
    """What each process of a job does with its own part of a batch; empty where their number changes nothing.

    Not among these, as it comes to the same however a batch is shared: mining and the neck of `reid`, which see the
    features of all; stochastic depth and augmentation, whose draws are of the same distribution; DINO's center.
    """
    if values["task"] in FROZEN:
        return []
    found = [rule.because for rule in APART if rule.holds({"batch_norm": None} | dict(values))]
    return list(dict.fromkeys(found if "sync_bn" in values else [*found, "what the record does not say"]))


def _batch_norm(backbone: Mapping[str, Any]) -> bool | None:
    """Whether a backbone has batch norm; None where its values do not say, as of users' parts and most of timm's."""
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
    except UserError:  # a stem that another version of the suite knew by this name
        return None
