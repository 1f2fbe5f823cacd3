"""The result of one of the doctor's checks, printed as a line."""

from dataclasses import dataclass
from typing import Literal

MARKS = {"ok": "ok         ", "absent": "absent     ", "incomplete": "INCOMPLETE ", "broken": "BROKEN     "}


@dataclass(frozen=True)
class CheckResult:
    """The subject of a check and its state.

    `absent` limits what can be run; `incomplete` exists but cannot be used; `broken` prevents every run.
    """

    state: Literal["ok", "absent", "incomplete", "broken"]
    subject: str
    """The subject of the check with the observed value, such as a version or a folder."""
    fix: str = ""
    """The command or explanation that helps, in one or more lines."""

    def __str__(self) -> str:
        fix = "".join(f"\n               {line}" for line in self.fix.splitlines())
        return f"  {MARKS[self.state]}{self.subject}{fix}"
