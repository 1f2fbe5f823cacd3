"""Whether a score depends on the number of processes that trained. Imports no torch."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from backbones.archs import ARCHS, plain_vits
from backbones.stems import find_stem
from transfer.core.errors import UserError
from transfer.core.user_code import is_user_part

HEADS = {"linear": False, "segment": True}
"""Tasks that train a head on a frozen backbone; whether it has a batch norm."""


def trains(options: Mapping[str, Any]) -> bool:
    """Return whether a run with these options trains: tasks that do have `epochs`, of which 0 train nothing."""
    return bool(options.get("epochs"))


def per_process(task: str, options: Mapping[str, Any], backbone: Mapping[str, Any]) -> list[str]:
    """Return the computations that each process makes from its own part of a batch.

    The list is empty if the number of processes changes nothing. Computations that do not depend on how a batch is
    shared are not in it: mining and the neck of `reid`, which see the features of all processes; stochastic depth and
    augmentation, whose draws are functions of the sample; DINO's center.
    """
    if not trains(options):
        return []
    mixes = options.get("mix_prob") and (options.get("mixup") or options.get("cutmix"))
    own_norm = options.get("sync_bn") is False and task != "detect"
    found = {
        "batch norm": own_norm and _trains_batch_norm(task, backbone),
        "mixing": mixes,
        "the mixing of tokens": options.get("dense_weight"),
        "the perturbation of SAM": options.get("sam", "none") != "none" and options.get("sam_sync") is False,
        "regions and their number": task == "detect",
        "the draws of its model": backbone and task not in HEADS and not _is_known(backbone),
        "what the record does not say": "sync_bn" not in options,
    }
    return [computation for computation, holds in found.items() if holds]


def _is_known(backbone: Mapping[str, Any]) -> bool:
    """Return whether it is known what a backbone computes and draws: not of users' parts and most timm models."""
    arch = str(backbone.get("arch") or "")
    users = any(is_user_part(str(backbone.get(name) or "")) for name in ("arch", "stem", "attention", "ffn"))
    return not users and (arch in ARCHS or arch.split(".")[0] in plain_vits())


def synchronises(task: str, options: Mapping[str, Any], backbone: Mapping[str, Any], world: int | None) -> bool:
    """Return whether the value of `sync_bn` changes anything.

    It needs a batch norm that trains; detectors and the head of `segment` have some of their own. One process computes
    alike without it; with it, it computes what any number of processes does.
    """
    alone = world == 1 and options.get("sync_bn") is False
    return task == "detect" or (not alone and _trains_batch_norm(task, backbone))


def _trains_batch_norm(task: str, backbone: Mapping[str, Any]) -> bool:
    return HEADS.get(task, _has_batch_norm(backbone) is not False)


def _has_batch_norm(backbone: Mapping[str, Any]) -> bool | None:
    """Return whether a backbone has batch norm; None if it is not known."""
    if not _is_known(backbone):
        return None
    if backbone["arch"] not in ARCHS:
        return False
    return True if backbone.get("ffn") == "conv1d_bn" else _in_stem(str(backbone.get("stem") or ""))


@lru_cache
def _in_stem(stem: str) -> bool | None:
    try:
        return bool({"BN", "IBN"} & {*find_stem(stem).norms})
    except UserError:  # a stem of another version of the suite
        return None
