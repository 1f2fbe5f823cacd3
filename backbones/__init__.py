"""Backbones, their components and weights, and pretraining.

Importing this package costs nothing; `resolve`, `create` and `Backbone` load what they need when first used (PEP 562).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backbones.backbone import Backbone, create
    from backbones.spec import BackboneSpec, resolve

__all__ = ["Backbone", "BackboneSpec", "create", "resolve"]

_HOMES = dict.fromkeys(("Backbone", "create"), "backbones.backbone")
_HOMES |= dict.fromkeys(("BackboneSpec", "resolve"), "backbones.spec")


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'backbones' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
