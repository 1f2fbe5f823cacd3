"""The conformance test of a backbone: `check_backbone`, and `backbone_checks` for your own test suite.

Each check is a small function with a name; `catalogue.py` lists them. Nothing is trained or scored
here, and no record is written. Importing this room imports no torch.
"""

from dataclasses import dataclass
from typing import Literal
from unittest import SkipTest

from transfer.core.lazy import lazy_names

__all__ = ["BackboneCheck", "CheckFailed", "CheckSkipped", "Report", "Result", "backbone_checks", "check_backbone"]


__getattr__ = lazy_names(__name__, {"transfer.testing.catalogue": ("backbone_checks", "check_backbone")})
State = Literal["passed", "failed", "skipped"]
_MARKS: dict[State, str] = {"passed": "passed ", "failed": "FAILED ", "skipped": "skipped"}


class CheckFailed(AssertionError):
    """A check found a fault. The message is the reason: what came, what was expected, and for which input."""


class CheckSkipped(SkipTest):
    """A check has nothing to look at; pytest and unittest count it as skipped."""


@dataclass(frozen=True)
class Result:
    """What one check found.

    Attributes:
        name: of the check.
        state: passed, failed, or skipped.
        reason: why it failed or was skipped; of a passed check what it measured, or nothing.
        hint: how a failure is usually mended.
    """

    name: str
    state: State
    reason: str = ""
    hint: str = ""

    def __str__(self) -> str:
        text = f"{_MARKS[self.state]} {self.name}" + (f": {self.reason}" if self.reason else "")
        return text + (f"\n        hint: {self.hint}" if self.state == "failed" and self.hint else "")


@dataclass(frozen=True)
class Report:
    """The results of all checks of one backbone, in the order of the catalogue.

    Attributes:
        backbone: its name.
        results: one for each check.
    """

    backbone: str
    results: tuple[Result, ...]

    @property
    def failed(self) -> tuple[Result, ...]:
        """The results that failed."""
        return tuple(result for result in self.results if result.state == "failed")

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def raise_if_failed(self) -> None:
        """Raise CheckFailed with the reason and the hint of every failure, if there is one."""
        if self.failed:
            head = f"{self.backbone}: {len(self.failed)} of {len(self.results)} checks failed"
            raise CheckFailed("\n".join([head, *map(str, self.failed)]))

    @property
    def summary(self) -> str:
        """The name of the backbone, and how many checks passed, failed and were skipped."""
        counts = {state: sum(result.state == state for result in self.results) for state in _MARKS}
        return f"{self.backbone}: " + ", ".join(f"{count} {state}" for state, count in counts.items() if count)

    def __str__(self) -> str:
        return "\n".join([self.summary, *map(str, self.results)])
