"""What parity scripts share: the line that they print for each compared quantity, and stochastic depth as in peers."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from timm.layers import DropPath

from backbones.engine.drop_path import SampleDropPath


@dataclass(frozen=True)
class Check:
    """One compared quantity: the largest difference found, and the largest one allowed."""

    what: str
    difference: float
    limit: float
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the difference is within its limit; nan is not."""
        return self.difference <= self.limit


def report(checks: Sequence[Check]) -> int:
    """Prints the table; the exit status, 1 if any check fails."""
    width = max(len(check.what) for check in checks)
    print(f"{'compared':{width}}  {'difference':>10}  {'limit':>7}")
    for check in checks:
        numbers = f"{check.difference:10.2e}  {check.limit:7.0e}"
        print(f"{check.what:{width}}  {numbers}  {'ok' if check.holds else 'FAILS':5}  {check.note}".rstrip())
    return int(not all(check.holds for check in checks))


def draws_of_torch() -> AbstractContextManager[Any]:
    """Let stochastic depth draw from torch's generator within, as peers do, and not by sample."""
    return mock.patch.object(SampleDropPath, "forward", DropPath.forward)
