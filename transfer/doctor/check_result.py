"""One line of what the doctor finds."""

from dataclasses import dataclass
from typing import Literal

MARKS = {"ok": "ok         ", "absent": "absent     ", "incomplete": "INCOMPLETE ", "broken": "BROKEN     "}


@dataclass(frozen=True)
class CheckResult:
    """`absent` limits what can be run; `incomplete` is there, but cannot be used; `broken` stops everything."""

    state: Literal["ok", "absent", "incomplete", "broken"]
    what: str
    mend: str = ""

    def __str__(self) -> str:
        mend = "".join(f"\n               {line}" for line in self.mend.splitlines())
        return f"  {MARKS[self.state]}{self.what}{mend}"
