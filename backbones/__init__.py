"""Backbones, their components and weights, and pretraining.

Importing this package costs nothing; `resolve`, `create` and `Backbone` load what they need when first used (PEP 562).
"""

from typing import TYPE_CHECKING

from transfer.core.lazy import lazy_names

if TYPE_CHECKING:
    from backbones.backbone import Backbone, create
    from backbones.spec import BackboneSpec, resolve

__all__ = ["Backbone", "BackboneSpec", "create", "resolve"]

__getattr__ = lazy_names(
    __name__, {"backbones.backbone": ("Backbone", "create"), "backbones.spec": ("BackboneSpec", "resolve")}
)
