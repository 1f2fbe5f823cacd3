"""The conformance test of a backbone: `check_backbone`, and `backbone_checks` for a test suite of one's own.

Each check is a small function with a name; `catalogue.py` lists them with a hint each. Nothing is trained or scored
here, and no record is written. Importing this room imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transfer.testing.check import BackboneCheck, backbone_checks, check_backbone
    from transfer.testing.results import CheckFailed, CheckSkipped, Report, Result

__all__ = ["BackboneCheck", "CheckFailed", "CheckSkipped", "Report", "Result", "backbone_checks", "check_backbone"]

_RESULTS = ("CheckFailed", "CheckSkipped", "Report", "Result")


def __getattr__(name: str) -> Any:
    """Import a part of the interface when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("transfer.testing.results" if name in _RESULTS else "transfer.testing.check"), name)
